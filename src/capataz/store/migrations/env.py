"""Alembic's entry: runs the asked revisions on the connection that ``apply`` gives. No ini file, no engine of its own."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], version_table="capataz_schema", transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
