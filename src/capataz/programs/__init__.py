"""Bundled programs: ordinary programs of the authoring surface, pinned and replayed like a user's."""
