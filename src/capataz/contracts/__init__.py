"""Contracts: errors, signals, ids, units, records and ports. The bottom room: it imports no other."""
