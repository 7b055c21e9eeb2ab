"""The embedded PostgreSQL server: one for each CAPATAZ_HOME, shared by every process that uses it."""
