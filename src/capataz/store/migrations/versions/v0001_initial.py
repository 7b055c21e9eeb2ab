"""The first schema."""

from capataz.store.migrations.apply import upgrade_with

revision = "0001"
down_revision = None


def upgrade() -> None:
    upgrade_with(__file__)
