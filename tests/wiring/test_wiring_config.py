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


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[model]\ndefault = 'a/b'\n", r"unknown table \[model\]; did you mean models\?"),
        ("models = 'openai/x'\n", r"models must be a table, \[models\], not 'openai/x'"),
        ("[programs]\nbusy = 3\n", r"unknown key 'busy' in \[programs\]; did you mean busy_s\?"),
        ("[commands]\npi = '/opt/pi'\n", r"write \[commands.pi\], not pi = '/opt/pi'"),
        ("[prompts]\nplanner = 3\n", r"\[prompts\] planner must be a text"),
        ("[models\n", r"cannot be read: "),
    ],
)
def test_a_mistake_in_config_toml_is_one_line(tmp_path: Path, text: str, line: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(UsageError, match=line) as caught:
        load_config(tmp_path)
    assert str(tmp_path / "config.toml") in str(caught.value) and "\n" not in str(caught.value)
