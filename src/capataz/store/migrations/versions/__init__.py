"""One revision a pair of files: ``vNNNN_title.py`` names it, ``vNNNN_title.sql`` does it."""
