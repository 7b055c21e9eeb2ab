"""Trusted git: run repositories, shared checkouts, private workspaces, snapshots, publication.

The one entry is ``capataz.workspace.repositories.LocalRepositories``.
"""
