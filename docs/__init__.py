"""The documentation's own tools: ``python -m docs.generate``. Not part of the installed package."""
