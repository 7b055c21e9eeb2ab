"""Trusted git: run repositories, shared checkouts, private workspaces, snapshots, publication (SANDBOX.md).

The one entry is ``capataz.workspace.repositories.LocalRepositories``.
"""
