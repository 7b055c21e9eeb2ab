"""A provider's bad days: what recovers, what ends a run at once, and what must not poison a conversation."""

from __future__ import annotations

from pathlib import Path

import pytest
from main_job import Cli, Source, log_lines, script, small_repository

FAILURES = {
    "429": "fail(429, retry_after=0.2)", "500": "fail(500)", "stall": "fail(kind='stall')", "reset": "fail(kind='reset')",
    "truncated": "fail(kind='truncated')", "529": "fail(529)", "408": "fail(408)",
}


def test_every_passing_trouble_recovers(cli: Cli, tmp_path: Path) -> None:
    """Each of the first calls fails in its own way, twice, before it is answered."""
    repo = small_repository(tmp_path / "repo")
    text = "\n".join([
        f"FAILURES = [{', '.join(FAILURES.values())}]",
        "PLACES = ['planner 0', 'round-0/worker:mul 0', 'round-0/worker:mul 1', 'round-0/worker:mul 2', 'round-0/reducer 0',",
        "          'round-0/verifier 0', 'round-1/worker:mul 1']",
        "def respond(call):",
        "    place = f'{call.agent} {call.turn}'",
        "    if place in PLACES and call.attempt < 2:",
        "        return FAILURES[PLACES.index(place)]",
        "    return base.respond(call)",
    ])
    done = cli.do(repo, "--yes", script=script(tmp_path, text))
    assert done.code == 0 and done.json["outcome"] == "promoted", done
    lines = log_lines(cli.script_log)
    assert sum(line["attempt"] == 2 for line in lines) == len(FAILURES)
    assert done.json["usage"]["model_calls"] == 17 and done.json["usage"]["repeated_model_calls"] == 0
    events = cli.run("events", str(done.run_id), "--json").out
    assert events.count('"model.failed"') == 2 * len(FAILURES)


@pytest.mark.parametrize("status", [401, pytest.param(400, marks=pytest.mark.sweep)])
def test_a_refusal_stops_at_once(cli: Cli, tmp_path: Path, status: int) -> None:
    repo = small_repository(tmp_path / "repo")
    before = Source.of(repo)
    text = f"def work(call, name):\n    return fail({status}) if name == 'worker:mul' else base.work(call, name)\n"
    done = cli.do(repo, "--yes", script=script(tmp_path, text))
    assert done.code == 3, done
    reason = done.json["reason"]
    assert reason["code"] == "provider_rejected" and str(status) in reason["message"] and reason["task"] == "mul"
    assert "\n" not in reason["message"] and "Traceback" not in done.err
    assert sum(line["agent"] == "round-0/worker:mul" for line in log_lines(cli.script_log)) == 1
    assert Source.of(repo) == before


def test_a_provider_that_never_comes_back(cli: Cli, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    done = cli.do(repo, "--yes", script=script(tmp_path, "def plan(data):\n    return fail(503)\n"))
    assert done.code == 3 and done.json["reason"]["code"] == "provider_unavailable", done
    assert len(log_lines(cli.script_log)) == 6        # the call and five retries


@pytest.mark.parametrize("bad", ["raise SystemExit(7)", pytest.param("return None", marks=pytest.mark.sweep)])
def test_a_script_that_breaks(cli: Cli, tmp_path: Path, bad: str) -> None:
    repo = small_repository(tmp_path / "repo")
    done = cli.do(repo, "--yes", script=script(tmp_path, f"def plan(data):\n    {bad}\n"))
    assert done.code == 3 and done.json["reason"]["code"] == "script_error", done


def test_rough_answers_do_not_poison_the_conversation(cli: Cli, tmp_path: Path) -> None:
    """Malformed arguments, repeated ids, an empty answer, an unknown tool, arguments that are no object; then good work."""
    repo = small_repository(tmp_path / "repo")
    text = r'''
def calls(*pairs):
    return raw({"role": "assistant", "content": None, "tool_calls": [
        {"id": "same", "type": "function", "function": {"name": name, "arguments": arguments}} for name, arguments in pairs]})

def work(call, name):
    if name != "worker:mul" or not call.agent.startswith("round-0/"):
        return base.work(call, name)
    for i, message in enumerate(call.messages):
        if message["role"] == "assistant":
            answers = [m for m in call.messages[i + 1:] if m["role"] == "tool"]
            assert len(answers) >= len(message["tool_calls"] or ()), call.messages
    rough = [
        calls(("write_file", '{"path": "mul.py", "content": '), ("list_directory", "{}")),
        calls(("list_directory", '{"path": "."}'), ("list_directory", '{"path": "."}')),
        raw({"role": "assistant", "content": ""}),
        raw({"role": "assistant", "content": None, "tool_calls": []}),
        calls(("teleport", "{}")),
        calls(("list_directory", "[1, 2]"), ("list_directory", "null"), ("list_directory", '"."')),
        calls(("list_directory", '{"path": "."}')),
    ]
    if call.turn < len(rough):
        return rough[call.turn]
    if call.turn == len(rough):
        return calls(("write_file", '{"path": "mul.py", "content": "def mul(a, b):\\n    return a * b\\n"}'))
    return submit(status="completed", summary="done", unresolved_risks=[])
'''
    text = text.replace('raw({"role": "assistant", "content": None, "tool_calls": []}),\n', "")
    done = cli.do(repo, "--yes", script=script(tmp_path, text))
    assert done.code == 0 and done.json["outcome"] == "promoted", done
    assert len(done.json["rounds"]) == 1


def test_two_empty_answers_end_in_output_invalid(cli: Cli, tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "repo")
    text = "def plan(data):\n    return raw({'role': 'assistant', 'content': None, 'tool_calls': []})\n"
    done = cli.do(repo, "--yes", script=script(tmp_path, text))
    assert done.code == 1 and done.json["reason"]["code"] == "output_invalid", done
