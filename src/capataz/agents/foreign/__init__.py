"""Agents of other frameworks, as a program brings them: adapters that work in the program's process."""
