"""Tools of a program's own, by real processes: asked for, run once, declined, in doubt."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from main_job import Cli, Outcome

HERE = Path(__file__).parent
DEPLOY = ["deploy", {"environment": "production", "version": 3}]
DEPLOYED = '{"deployed":"production"}'


class Shop:
    """A folder with the program; ``calls``: what its tools did outside."""

    def __init__(self, cli: Cli, folder: Path) -> None:
        self.cli = cli
        self.folder = folder
        shutil.copy(HERE / "tool_case.py", folder / "shop.py")
        shutil.copy(HERE / "tool_script.py", folder / "script.py")

    def start(self, *wanted: Any, **env: str) -> Outcome:
        order = json.dumps(json.dumps(wanted))
        return self.cli.run("run", "shop.py", "--input", order, "--model", f"scripted:{self.folder / 'script.py'}", "--json", cwd=self.folder, **env)

    def resume(self, run_id: str) -> dict[str, Any]:
        return self.cli.json("resume", run_id)

    def answer(self, question: dict[str, Any], word: str, **env: str) -> Outcome:
        return self.cli.run("answer", question["ask_id"], word, "--json", **env)

    def question(self, run_id: str) -> dict[str, Any]:
        [found] = [ask for ask in self.cli.json("asks")["asks"] if ask["run_id"] == run_id]
        return found

    def asks(self, run_id: str) -> int:
        return sum(ask["run_id"] == run_id for ask in self.cli.json("asks")["asks"])

    @property
    def calls(self) -> list[str]:
        log = self.folder / "calls.log"
        return [line.rpartition(" ")[0] for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture
def shop(cli: Cli, tmp_path: Path) -> Shop:
    return Shop(cli, tmp_path)


def parked(done: Outcome) -> str:
    assert (done.code, done.json["state"]) == (0, "parked"), done
    return done.json["run_id"]


@pytest.mark.slow
def test_a_call_with_approval_is_asked_with_its_arguments_and_runs_once_across_kills_on_both_sides(shop: Shop) -> None:
    killed = shop.start(DEPLOY, CAPATAZ_FAULT="ask.after")
    assert killed.code == -9 and killed.run_id, killed
    run_id = killed.run_id
    assert (shop.resume(run_id)["state"], shop.calls) == ("parked", [])
    question = shop.question(run_id)
    assert question["question"] == 'May shipper call deploy(environment="production", version=3)?'
    assert question["context"] == {"agent": "shipper", "tool": "deploy", "arguments": DEPLOY[1]}
    after = shop.answer(question, "approve", CAPATAZ_FAULT="tool.before")
    assert (after.code, shop.calls) == (-9, [])
    again = shop.cli.run("resume", run_id, "--json", CAPATAZ_FAULT="model.before")
    assert (again.code, shop.calls) == (-9, ["deploy production 3"])
    done = shop.resume(run_id)
    assert (done["state"], json.loads(done["result"]), shop.calls) == ("completed", [DEPLOYED], ["deploy production 3"])
    assert shop.asks(run_id) == 0


@pytest.mark.slow
def test_a_declined_call_is_not_made_and_the_model_is_told_also_across_a_kill_after_the_answer(shop: Shop) -> None:
    run_id = parked(shop.start(DEPLOY))
    killed = shop.answer(shop.question(run_id), "decline", CAPATAZ_FAULT="tool.before")
    assert killed.code == -9
    done = shop.resume(run_id)
    [told] = json.loads(done["result"])
    assert done["state"] == "completed" and "declined this call of deploy" in told and "\n" not in told
    assert shop.calls == []


@pytest.mark.slow
def test_a_policy_says_which_calls_are_asked_and_errors_are_one_line_for_the_model(shop: Shop) -> None:
    started = shop.start(["pay", {"dollars": 5}], ["send", {"text": "bad"}], ["hang", {}], ["pay", {"dollars": "much"}], ["pay", {"dollars": 500}])
    run_id = parked(started)
    assert shop.calls == ["pay 5", "send bad"]
    assert shop.question(run_id)["context"]["arguments"] == {"dollars": 500}
    done = shop.answer(shop.question(run_id), "approve").json
    first, failed, late, wrong, last = json.loads(done["result"])
    assert (first, last) == ("paid", "paid")
    assert failed == "error: send: ValueError: no stamp"
    assert late.startswith("error: hang: hang did not end within 0.2 s")
    assert wrong.startswith("error: pay: dollars: Input should be a valid integer")
    assert shop.calls == ["pay 5", "send bad", "pay 500"]


@pytest.mark.sweep
@pytest.mark.slow
def test_a_call_that_must_not_be_repeated_is_in_doubt_after_a_kill(shop: Shop) -> None:
    killed = shop.start(["send", {"text": "a"}], CAPATAZ_FAULT="tool.after")
    assert (killed.code, shop.calls) == (-9, ["send a"])
    assert killed.run_id
    waiting = shop.cli.run("resume", killed.run_id, "--json")
    assert (waiting.json["state"], shop.calls) == ("parked", ["send a"]) and "tool call send was under way" in waiting.err
    [key] = {match for match in re.findall(r"capataz resolve \S+ '([^']+)'", waiting.err)}
    shop.cli.json("resolve", killed.run_id, key, "--result", '"it was sent"')
    done = shop.resume(killed.run_id)
    assert (done["state"], json.loads(done["result"]), shop.calls) == ("completed", ["it was sent"], ["send a"])


@pytest.mark.sweep
@pytest.mark.slow
def test_an_idempotent_call_in_doubt_is_made_again_with_the_same_key(shop: Shop) -> None:
    killed = shop.start(["pay", {"dollars": 1}], CAPATAZ_FAULT="tool.after")
    assert killed.code == -9 and killed.run_id
    assert shop.resume(killed.run_id)["state"] == "completed"
    lines = (shop.folder / "calls.log").read_text().splitlines()
    assert len(lines) == 2 and len(set(lines)) == 1


@pytest.mark.sweep
@pytest.mark.slow
def test_an_agent_asks_a_person_twice_the_same_and_gets_two_answers(shop: Shop) -> None:
    ask = ["ask_human", {"question": "Which?", "options": ["red", "blue"]}]
    run_id = parked(shop.start(ask, ask))
    assert shop.answer(shop.question(run_id), "red").json["state"] == "parked"
    done = shop.answer(shop.question(run_id), "blue").json
    assert (done["state"], json.loads(done["result"])) == ("completed", ["red", "blue"])
