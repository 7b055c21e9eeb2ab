"""The schema and how it got there: Alembic revisions whose work is in the ``.sql`` file beside each."""
