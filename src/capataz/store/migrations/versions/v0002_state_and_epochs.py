"""State that runs wait for, and the archive of finished epochs."""

from capataz.store.migrations.apply import upgrade_with

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    upgrade_with(__file__)
