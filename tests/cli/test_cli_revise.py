"""plan, fork, resolve, topup, crashtest on the command line."""

from __future__ import annotations

from typing import Any

import pytest
from cli_fakes import RUN, FakeApp

from capataz.contracts.faults import POINTS


def test_a_plan_is_told_as_a_table_and_as_json(cli: Any, app: FakeApp) -> None:
    said = cli("plan", RUN, "--with", "new.py")
    assert said.code == 0 and "agent s/a" in said.out and "changed" in said.out and "took effect outside" in said.out
    assert cli("plan", RUN, "--with", "new.py", "--json").json()["price"]["estimate_usd"] == "0.5"
    assert app.calls == [("plan", RUN, "new.py")] * 2


def test_a_fork_is_carried_on_unless_it_is_only_made(cli: Any, app: FakeApp) -> None:
    said = cli("fork", RUN, "--at", "agent:a", "--json")
    assert said.code == 0 and said.json()["run_id"] == "r1123456789abcdef" and "run r1123456789abcdef" in said.err
    assert cli("fork", RUN, "--at", "agent:a", "--no-run", "--json").json()["state"] == "queued"
    assert [call[0] for call in app.calls] == ["fork", "drive", "fork"]


@pytest.mark.parametrize(("args", "decision"), [(["--redo"], {"redo": True}), (["--result", "[1]"], {"result": [1]}), (["--result", "null"], {"result": None})])
def test_an_effect_in_doubt_is_resolved_and_the_run_goes_on(cli: Any, app: FakeApp, args: list[str], decision: dict[str, Any]) -> None:
    assert cli("resolve", RUN, "step:pay#0.0", *args, "--json").code == 0
    assert app.calls[0] == ("resolve", RUN, "step:pay#0.0", decision)
    assert [call[0] for call in app.calls] == ["resolve", "prepare_resume", "drive"]


@pytest.mark.parametrize("args", [[], ["--redo", "--result", "1"], ["--result", "{"]])
def test_a_decision_that_says_nothing_or_two_things_is_refused(cli: Any, app: FakeApp, args: list[str]) -> None:
    assert cli("resolve", RUN, "step:pay#0.0", *args).code == 64 and not app.calls


def test_a_topup_wakes_a_run_that_nobody_holds(cli: Any, app: FakeApp) -> None:
    assert cli("topup", RUN, "--usd", "2.50", "--turns", "3", "--scope", "s").code == 0
    assert app.calls[0] == ("topup", RUN, {"usd": "2.50", "turns": "3"}, "s")
    assert [call[0] for call in app.calls] == ["topup", "prepare_resume", "drive"]
    app.live_holder = True
    app.calls.clear()
    assert cli("topup", RUN, "--usd", "1").code == 0 and [call[0] for call in app.calls] == ["topup"]


@pytest.mark.parametrize("args", [[], ["--usd", "0"], ["--usd", "-1"], ["--usd", "x"], ["--turns", "0"]])
def test_an_amount_must_be_some(cli: Any, app: FakeApp, args: list[str]) -> None:
    assert cli("topup", RUN, *args).code == 64 and not app.calls


def test_orphans_may_be_accepted_beforehand(cli: Any, app: FakeApp, tmp_path: Any) -> None:
    assert cli("resume", RUN, "--with", "new.py", "--accept-orphans", "--json").code == 0
    assert app.calls[0][0] == "prepare_resume"


def test_fault_points_are_listed(cli: Any) -> None:
    assert cli("crashtest", "--points", "--json").json()["points"] == [{"point": name, "at": text} for name, text in POINTS.items()]
    assert cli("crashtest").code == 64
