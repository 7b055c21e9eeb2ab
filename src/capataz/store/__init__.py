"""The store: PostgreSQL (embedded or by URL) and blobs. The only room that imports psycopg and fsspec."""
