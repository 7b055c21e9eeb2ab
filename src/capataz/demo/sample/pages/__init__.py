"""Cuts long lists into pages."""
