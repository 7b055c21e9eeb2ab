"""The store: PostgreSQL (embedded or by URL) and blobs. The only room that imports psycopg and fsspec.

``capataz.store.store.open_store`` opens it, ``capataz.store.admin`` serves ``capataz db``.
"""
