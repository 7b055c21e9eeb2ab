"""One module a question. Each has ``measure(context)`` and gives rows."""
