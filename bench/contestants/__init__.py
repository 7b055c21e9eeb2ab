"""Each module here is a process of its own: ``python -m bench.contestants.NAME CONFIG`` prints one line of JSON."""
