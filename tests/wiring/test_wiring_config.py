"""Where an installation keeps its things."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from capataz.contracts.errors import UsageError
from capataz.wiring.config import load_config


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_home_is_closed_to_others_and_an_old_one_keeps_its_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    (tmp_path / "old").mkdir(mode=0o755)
    assert mode(load_config(tmp_path / "new" / "home").home) == 0o700
    assert mode(load_config(tmp_path / "old").home) == 0o755
    assert mode(tmp_path / "new") == mode(tmp_path / "old"), "only the home itself"


def test_a_home_that_is_no_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot be used: .*; set CAPATAZ_HOME"):
        load_config(tmp_path / "file")
