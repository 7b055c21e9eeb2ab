from __future__ import annotations

import json
from typing import Any

import pytest
from cli_fakes import RUN, FakeApp, FakeWiring, ask_record, effect, run_record

from capataz.contracts.faults import POINTS
from capataz.contracts.journal import NewEvent

OTHER = "r0123456789abcdeg"


def test_ps_has_exactly_its_fields(cli: Any, app: FakeApp) -> None:
    found = cli("ps", "--json").json()
    assert found == {
        "runs": [{"run_id": RUN, "program": "ultracode", "state": "queued", "outcome": None, "started": "2023-11-14T22:13:21+00:00"}]
    }
    assert RUN in cli("ps").out


@pytest.mark.parametrize("verb", [["show"], ["tree"], ["events"], ["diff"], ["cancel"], ["pause"], ["resume"]])
@pytest.mark.parametrize("run_id", [OTHER, "nonsense", "../../etc"])
def test_an_unknown_run_is_64(cli: Any, verb: list[str], run_id: str) -> None:
    said = cli(*verb, run_id, "--json")
    assert said.code == 64
    assert said.json()["error"]["code"] == "not_found"
    assert "capataz ps" in said.err and said.err.count("\n") == 1


def test_show_prints_the_summary(cli: Any, app: FakeApp) -> None:
    found = cli("show", RUN, "--json").json()
    assert (found["run_id"], found["state"], found["usage"]["usd"]) == (RUN, "queued", "0.50")
    assert RUN in cli("show", RUN).out


def test_events_are_one_a_line_and_follow_ends_with_the_run(cli: Any, app: FakeApp) -> None:
    app.journal.runs[RUN] = run_record(state="completed", outcome="report")
    app.journal.log = [NewEvent(seq=n, type="program.checkpoint", at=1.0, effect=None, data={"message": f"m{n}"}) for n in range(1, 4)]
    said = cli("events", RUN, "-f", "--json")
    assert [json.loads(line)["seq"] for line in said.out.splitlines()] == [1, 2, 3]
    assert "m3" in cli("events", RUN).out


def test_hostile_text_cannot_drive_the_terminal(cli: Any, app: FakeApp) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202egnp.exe\u009b31m[bold]"
    app.journal.runs[RUN] = run_record(state="failed", outcome="failed", reason={"code": "agent_failed", "message": evil}, result=evil)
    app.journal.log = [NewEvent(seq=1, type="program.checkpoint", at=1.0, effect=None, data={"message": evil})]
    app.journal.questions["a1"] = ask_record(question=evil, context={"x": evil})
    for args in (["show", RUN], ["events", RUN], ["asks"], ["resume", RUN]):
        said = cli(*args)
        for char in "\x1b\x07\u202e\u009b":
            assert char not in said.out and char not in said.err, args
        assert "owned" in said.out + said.err


def test_diff_and_logs_print_the_bytes(cli: Any, app: FakeApp) -> None:
    assert cli("diff", RUN).code == 64
    app.journal.rows = [
        effect("coding.compose", result={"sha": "c" * 40, "diff_uri": "blob:d"}),
        effect("coding.test", result={"suites": [{"id": "unit", "exit_code": 1, "artifact_uri": "blob:l"}]}),
    ]
    app.blobs.kept = {"blob:d": b"+caf\xe9\n", "blob:l": b"boom\n"}
    assert cli("diff", RUN, "--json").json()["diff"] == {"b64": "K2NhZukK"}
    assert cli("logs", RUN, "unit").out == "boom\n"
    assert cli("logs", RUN, "unit", "--json").json()["exit_code"] == 1
    missing = cli("logs", RUN, "lint")
    assert missing.code == 64 and "unit" in missing.err


def test_tree_nests_scopes_and_sub_effects(cli: Any, app: FakeApp) -> None:
    app.journal.rows = [
        effect("agent", "planner", key="A"),
        effect("agent", "worker:api", key="B", scope="round-0/~one:api", status="error", error={"code": "agent_stuck", "details": {"turns": 4}}),
        effect("tool", "run_command", key="B>t", parent="B", scope="round-0/~one:api"),
    ]
    found = cli("tree", RUN, "--json").json()["tree"]
    assert [node["name"] for node in found] == ["planner", "round-0"]
    worker = found[1]["children"][0]
    assert (worker["reason"], worker["turns"], worker["children"][0]["name"]) == ("agent_stuck", 4, "run_command")
    assert "worker:api" in cli("tree", RUN).out


def test_cancel_pause_notify(cli: Any, app: FakeApp) -> None:
    assert cli("pause", RUN, "--agent", "planner").code == 0
    assert cli("notify", RUN, "hello", "--json").json()["sent"] is True
    assert cli("cancel", RUN, "--reason", "no", "--json").json() == {"run_id": RUN, "state": "cancelled", "outcome": "cancelled"}
    assert app.calls == [("pause", RUN, "planner"), ("notify", RUN, "hello", None), ("cancel", RUN, "no")]
    assert cli("cancel", RUN).code == 64
    assert cli("notify", RUN, "late").code == 64


def test_answer_carries_the_run_on_without_a_live_worker(cli: Any, app: FakeApp) -> None:
    app.journal.questions["a1"] = ask_record()
    app.end = {"state": "completed", "outcome": "declined"}
    said = cli("answer", "a1", "decline", "--note", "later", "--json")
    assert said.code == 2 and said.json()["approval"]["decision"] == "decline"
    assert [call[0] for call in app.calls] == ["answer", "prepare_resume", "drive"]


def test_answer_leaves_a_held_run_to_its_worker(cli: Any, app: FakeApp) -> None:
    app.journal.questions["a1"] = ask_record()
    app.live_holder = True
    assert cli("answer", "a1", "approve").code == 0
    assert [call[0] for call in app.calls] == ["answer"]


@pytest.mark.parametrize("value", ["approv", "yes", "a", "1", ""])
def test_a_decision_is_an_option_in_full(cli: Any, app: FakeApp, value: str) -> None:
    app.journal.questions["a1"] = ask_record()
    said = cli("answer", "a1", value)
    assert said.code == 64 and "approve, decline" in said.err
    assert app.calls == []


def test_a_second_answer_is_refused(cli: Any, app: FakeApp) -> None:
    app.journal.questions["a1"] = ask_record(answer="approve", answered_by="ana")
    said = cli("answer", "a1", "decline", "--json")
    assert said.code == 64 and said.json()["error"]["code"] == "already_answered"
    assert cli("answer", "zzz", "approve").code == 64


def test_asks_lists_what_is_open(cli: Any, app: FakeApp) -> None:
    app.journal.questions = {"a1": ask_record(), "a2": ask_record(ask_id="a2", answer="approve", answered_by="ana")}
    assert [ask["ask_id"] for ask in cli("asks", "--json").json()["asks"]] == ["a1"]
    assert len(cli("asks", "--all", "--json").json()["asks"]) == 2


def test_host_verbs(cli: Any, wired: FakeWiring) -> None:
    assert [p["point"] for p in cli("crashtest", "--points", "--json").json()["points"]] == list(POINTS)
    assert cli("crashtest").code == 64
    assert cli("doctor", "--json").json()["ok"] is True
    wired.healthy = False
    assert cli("doctor").code == 3
    assert cli("programs", "--json").json()["programs"][0]["name"] == "ultracode"
    assert "no key" in cli("models").out
    assert cli("prompts", "planner").out == "You plan.\n"
    assert cli("prompts", "nope").code == 64
    assert cli("gc", "--json").json()["freed_bytes"] == 3


def test_database_verbs(cli: Any, tmp_path: Any) -> None:
    assert cli("db", "url").out == "postgresql:///x\n"
    assert cli("db", "stop", "--json").json() == {"stopped": True}
    assert cli("db", "migrate", "--json").json() == {"from": None, "to": "0001"}
    assert cli("db", "backup", str(tmp_path / "b")).code == 0
    assert cli("db", "restore", str(tmp_path / "missing")).code == 64
    assert cli("db").code == 64 and cli("nosuch").code == 64 and cli().code == 64


def test_every_verb_has_help(cli: Any) -> None:
    from capataz.cli.verbs import app as typer_app

    for command in typer_app.registered_commands:
        name = command.callback.__name__  # type: ignore[union-attr]
        said = cli(name, "--help")
        assert said.code == 0 and "Usage: capataz" in said.out, said.err
