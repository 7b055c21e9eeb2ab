"""Fixtures of the evidence room's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from evidence_rig import MemoryBlobs, PlainSandbox, Rig, make_repo

from capataz.contracts.coding import JobOptions
from capataz.evidence.service import EvidenceService
from capataz.workspace.repositories import LocalRepositories


@pytest.fixture
def build(tmp_path: Path):
    """``build(files)``: a rig on a repository with these files (the default ones when none are given)."""
    made: list[LocalRepositories] = []

    def make(files: dict[str, str | bytes | None] | None = None, *, overlay: bool = False) -> Rig:
        repo = make_repo(tmp_path / "repo", files)
        home = tmp_path / "home"
        repositories = LocalRepositories(home, overlay=overlay)
        made.append(repositories)
        blobs, sandbox = MemoryBlobs(), PlainSandbox()

        async def sandbox_for(_: JobOptions) -> Any:
            return sandbox

        service = EvidenceService(repositories, sandbox_for, blobs, home)
        return Rig(home, repo, repositories, blobs, sandbox, service)

    yield make
    for repositories in made:
        repositories.close()


@pytest.fixture
def rig(build: Callable[..., Rig]) -> Rig:
    return build()
