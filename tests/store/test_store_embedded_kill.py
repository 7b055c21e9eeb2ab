"""The embedded server under kill -9: of the server, its supervisor, a client that starts it, and all at once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from capataz.contracts.errors import StoreUnavailable
from capataz.contracts.journal import Batch
from capataz.store.embedded.launcher import _lock_holder, ensure_server, folder_of, running, stop_server
from capataz.store.store import open_store
from capataz.testing.journal_conformance import ALICE, LONG, event, new_run

START = "import sys, pathlib; from capataz.store.embedded.launcher import ensure_server; ensure_server(pathlib.Path(sys.argv[1]))"


def postmaster(home: Path) -> int:
    return int((home / "postgres/data/postmaster.pid").read_text().split()[0])


def supervisor(home: Path) -> int:
    pid = _lock_holder(folder_of(home) / "supervisor.lock")
    assert pid > 0
    return pid


def ends(pid: int) -> None:
    """Waits until a process is gone (a zombie is)."""
    until = time.monotonic() + 30
    while Path(f"/proc/{pid}/cwd").exists():
        assert time.monotonic() < until, "the process should have ended"
        time.sleep(0.02)


def kill_server(home: Path) -> None:
    """Its backends too have gone then: one that is busy answers a while longer than its postmaster lives."""
    server = postmaster(home)
    backends = [int(pid) for pid in Path(f"/proc/{server}/task/{server}/children").read_text().split()]
    os.kill(server, signal.SIGKILL)
    for pid in (server, *backends):
        ends(pid)


def starter(home: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", START, str(home)])



async def test_a_killed_server_is_started_again_by_the_next_command(own_home: Path) -> None:
    for _ in range(3):
        store = await open_store(own_home)
        await store.close()
        kill_server(own_home)
    store = await open_store(own_home)
    assert await store.journal.list_runs() == []
    await store.close()


async def test_work_goes_on_over_a_killed_server(own_home: Path) -> None:
    store = await open_store(own_home)
    journal = store.journal
    await journal.create_run(new_run())
    lease = await journal.claim("r1", ALICE, ttl_s=LONG)
    assert lease is not None
    for seq in range(1, 9):
        if seq % 3 == 0:
            kill_server(own_home)
        await journal.commit(lease, Batch(events=(event(seq),)))
    assert [e.seq for e in await journal.events("r1")] == list(range(1, 9))
    await store.close()


async def test_work_goes_on_over_a_stopped_server(own_home: Path) -> None:
    store = await open_store(own_home)
    await store.journal.create_run(new_run())
    assert stop_server(own_home)
    assert (await store.journal.get_run("r1")).run_id == "r1"
    await store.close()


def test_a_server_without_its_supervisor_serves_on_and_stops(own_home: Path) -> None:
    address = ensure_server(own_home)
    os.kill(supervisor(own_home), signal.SIGKILL)
    assert running(folder_of(own_home)) == ensure_server(own_home) == address
    assert stop_server(own_home)
    assert running(folder_of(own_home)) is None
    assert ensure_server(own_home)


def test_both_killed(own_home: Path) -> None:
    ensure_server(own_home)
    server, above = postmaster(own_home), supervisor(own_home)
    os.kill(above, signal.SIGKILL)
    os.kill(server, signal.SIGKILL)
    assert ensure_server(own_home)
    assert postmaster(own_home) != server


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.05, 0.2, 0.6])
def test_a_client_killed_while_it_starts_the_first_server(tmp_path: Path, after_s: float) -> None:
    home = tmp_path / "h"
    child = starter(home)
    try:
        child.wait(after_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    assert ensure_server(home)
    stop_server(home)


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.0, 0.3])
def test_a_supervisor_killed_while_it_makes_the_first_server(tmp_path: Path, after_s: float) -> None:
    home = tmp_path / "h"
    child = starter(home)
    until = time.monotonic() + 10
    while not (above := _lock_holder(folder_of(home) / "supervisor.lock")) and time.monotonic() < until:
        time.sleep(0.005)
    time.sleep(after_s)
    os.kill(above, signal.SIGKILL)
    child.wait()
    assert ensure_server(home)
    assert not list((home / "postgres").glob("data.new-*"))
    stop_server(home)


@pytest.mark.slow
def test_ten_processes_at_once_share_one_server(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys, pathlib\n"
        "from capataz.store.store import open_store\n"
        "async def main():\n"
        "    store = await open_store(pathlib.Path(sys.argv[1]))\n"
        "    async with store.database.connection() as c:\n"
        "        print((await (await c.execute('select system_identifier, pg_postmaster_start_time()::text from pg_control_system()')).fetchone()))\n"
        "    await store.close()\n"
        "asyncio.run(main())\n"
    )
    home = tmp_path / "h"
    children = [subprocess.Popen([sys.executable, "-c", code, str(home)], stdout=subprocess.PIPE) for _ in range(10)]
    said = [child.communicate(timeout=120)[0] for child in children]
    assert all(child.returncode == 0 for child in children)
    assert len(set(said)) == 1 and said[0]
    stop_server(home)


def test_a_stale_pid_file_that_names_a_stranger_is_no_obstacle(own_home: Path) -> None:
    ensure_server(own_home)
    os.kill(supervisor(own_home), signal.SIGKILL)
    kill_server(own_home)
    stale = own_home / "postgres/data/postmaster.pid"
    lines = stale.read_text().splitlines()
    stale.write_text("\n".join([str(os.getppid()), *lines[1:]]) + "\n")
    assert ensure_server(own_home)


async def test_a_home_deleted_under_a_client_is_an_error_and_not_a_new_empty_store(own_home: Path) -> None:
    store = await open_store(own_home)
    server = postmaster(own_home)
    (own_home / "postgres").rename(own_home / "gone")
    await asyncio.to_thread(ends, server)
    with pytest.raises(StoreUnavailable, match="deleted"):
        await store.journal.list_runs()
    assert not (own_home / "postgres").exists()
    await store.close()
