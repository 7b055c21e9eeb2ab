"""``capataz show --json``: one object for a run, made from its journal alone.

A pure function of rows, so it says the same for a run that is under way, parked, crashed or finished, and for programs that
are no coding jobs (their coding fields are null or empty).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from capataz.contracts.canonical import digest
from capataz.contracts.journal import FINAL_STATES, AskRecord, EffectRow, RunRecord, Usage

_ROUND = re.compile(r"^round-(\d+)(?:/|$)")
_CANDIDATE = ("id", "sha", "tree", "base_sha", "original_base_sha", "changed_files")
_USAGE = (
    "input_tokens",
    "output_tokens",
    "model_calls",
    "repeated_model_calls",
    "tool_calls",
    "sandbox_s",
    "wall_s",
    "download_bytes",
    "artifact_bytes",
)


def summarise(
    run: RunRecord,
    effects: Sequence[EffectRow],
    asks: Sequence[AskRecord],
    usage: Usage,
    *,
    now: float,
    orphans: Sequence[str] = (),
    sandbox: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The object that ``do --json`` ends with. ``effects``: rows of the newest generation; ``asks``: all of the run;
    ``now``: seconds since the epoch, for the wall time of an unfinished run; ``sandbox``: backend, as the last
    ``sandbox.started`` event says it."""
    own = [row for row in effects if row.parent is None]
    over = run.state in FINAL_STATES
    rounds = [_Round(number, own, effects, over=over) for number in _numbers(own)]
    last = next((r for r in reversed(rounds) if r.candidate is not None), None)
    report = last.report if last else None
    return {
        "run_id": run.run_id,
        "program": run.program,
        "state": run.state,
        "outcome": run.outcome,
        "reason": _reason(run),
        "rounds": [r.to_json() for r in rounds],
        "candidate": _pick(last.candidate, _CANDIDATE) if last else None,
        "suites": _suites(report),
        "digests": _digests(last),
        "approval": _approval(own, asks),
        "promotion": _promotion(own),
        "result": run.result,
        "usage": _usage(run, usage, now),
        "orphans": list(orphans),
        "sandbox": _sandbox(report, sandbox),
    }


class _Round:
    """One round as its effects tell it."""

    def __init__(self, number: int, own: Sequence[EffectRow], effects: Sequence[EffectRow], *, over: bool) -> None:
        self.number = number
        self._over = over
        self._rows = [row for row in own if _number(row) == number]
        self._turns = _turns(effects)
        self.candidate: dict[str, Any] | None = self._result("coding.compose")
        self.report: dict[str, Any] | None = self._result("coding.test")
        self.manifest: dict[str, Any] | None = self._result("coding.manifest")
        self.envelope: dict[str, Any] | None = self._result("coding.envelope")

    def to_json(self) -> dict[str, Any]:
        verdict = self._result("coding.plan_check")
        end = self._end()
        return {
            "round": self.number,
            "plan": verdict.get("plan") if verdict else None,
            "workers": self._workers(verdict),
            "candidate": _pick(self.candidate, _CANDIDATE),
            "suites": _suites(self.report),
            "synthesis": self._answer("reducer"),
            "reviews": {"verifier": self._answer("verifier"), "refuter": self._answer("refuter")},
            "failures": end["failures"] if end else self._failures(),
            "passed": bool(end and end["passed"]),
        }

    def _last(self, kind: str) -> EffectRow | None:
        return next((row for row in reversed(self._rows) if row.kind == kind), None)

    def _result(self, kind: str) -> dict[str, Any] | None:
        row = self._last(kind)
        return row.result if row and row.status == "ok" and isinstance(row.result, dict) else None

    def _agents(self, name: str) -> list[EffectRow]:
        return [row for row in self._rows if row.kind == "agent" and row.name == name]

    def _answer(self, name: str) -> Any:
        rows = [row for row in self._agents(name) if row.status == "ok"]
        return agent_output(rows[-1]) if rows else None

    def _end(self) -> dict[str, Any] | None:
        """The program's own word on how the round ended: its last checkpoint."""
        for row in reversed(self._rows):
            data = (row.input or {}).get("data") if row.kind == "checkpoint" else None
            if isinstance(data, dict) and "failures" in data and data.get("round") == self.number:
                return data
        return None

    def _workers(self, verdict: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """In the plan's order; workers start in any."""
        tasks: list[dict[str, Any]] = ((verdict or {}).get("plan") or {}).get("tasks", [])
        order = {f"worker:{task['id']}": place for place, task in enumerate(tasks)}
        names = dict.fromkeys(row.name for row in self._rows if row.kind == "agent" and row.name.startswith("worker:"))
        return [self._worker(name) for name in sorted(names, key=lambda name: order.get(name, len(order)))]

    def _worker(self, name: str) -> dict[str, Any]:
        row = self._agents(name)[-1]
        task = name.removeprefix("worker:")
        freeze = self._freeze(task)
        record = freeze.result if freeze and freeze.status == "ok" else None
        output = agent_output(row) if row.status == "ok" else None
        said: dict[str, Any] = output if isinstance(output, dict) else {}
        refused = freeze.error if freeze and freeze.status == "error" else None
        return {
            "task_id": task,
            "status": _worker_status(row, said, refused, over=self._over),
            "changed_files": record["changed_files"] if record else [],
            "turns": agent_turns(row, self._turns.get(row.key, 0)),
            "summary": said.get("summary", ""),
            "unresolved_risks": said.get("unresolved_risks", []),
            "reason": _brief(row.error if row.status == "error" else refused) or _blocked(said),
        }

    def _freeze(self, task: str) -> EffectRow | None:
        for row in reversed(self._rows):
            if row.kind == "coding.freeze" and ((row.input or {}).get("item") or {}).get("id") == task:
                return row
        return None

    def _failures(self) -> list[dict[str, Any]]:
        """Of a round that has not ended: what its effects have refused so far."""
        failures = [{"task": w["task_id"], **w["reason"]} for w in self._workers() if w["reason"]]
        for row in self._rows:
            mine = row.status == "error" and row.kind != "coding.freeze" and not row.name.startswith("worker:")
            if mine and (brief := _brief(row.error)):
                failures.append({"task": None, **brief})
        return failures


def agent_output(row: EffectRow) -> Any:
    """What an agent's row gave to the program: its validated output, or its text."""
    result = row.result
    if isinstance(result, dict) and "output" in result:
        return result["output"] if result["output"] is not None else result.get("text")
    return result


def agent_turns(row: EffectRow, counted: int) -> int:
    """Model turns of an agent: what it ended with, else the model calls that are journaled so far (``counted``)."""
    said = row.result if isinstance(row.result, dict) else (row.error or {}).get("details", {}) if isinstance(row.error, dict) else {}
    turns = said.get("turns")
    return turns if isinstance(turns, int) else max(row.usage.turns, counted)


def _numbers(own: Sequence[EffectRow]) -> list[int]:
    coding = any(row.kind.startswith("coding.") for row in own)
    return sorted({n for row in own if (n := _number(row)) is not None}) if coding else []


def _number(row: EffectRow) -> int | None:
    match = _ROUND.match("/".join(part for part in row.scope.split("/") if not part.startswith("~")))
    return int(match[1]) if match else None


def _turns(effects: Sequence[EffectRow]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in effects:
        if row.kind == "model" and row.parent and row.status == "ok":
            counts[row.parent] = counts.get(row.parent, 0) + 1
    return counts


def _worker_status(row: EffectRow, said: Mapping[str, Any], refused: Any, *, over: bool) -> str:
    if refused:
        return "refused"
    if row.status == "ok":
        return str(said.get("status", "completed"))
    return {"error": "failed", "cancelled": "cancelled"}.get(row.status, "cancelled" if over else "running")


def _brief(error: Any) -> dict[str, Any] | None:
    return {"code": error.get("code", ""), "message": error.get("message", "")} if isinstance(error, dict) else None


def _blocked(said: Mapping[str, Any]) -> dict[str, Any] | None:
    return {"code": "agent_blocked", "message": said.get("summary", "")} if said.get("status") == "blocked" else None


def _reason(run: RunRecord) -> dict[str, Any] | None:
    if not isinstance(run.reason, dict):
        return None
    reason = run.reason
    place = _ROUND.match(str(reason.get("effect") or ""))
    round_ = reason.get("round")
    return {
        "code": reason.get("code", ""),
        "message": reason.get("message", ""),
        "round": round_ if round_ is not None else int(place[1]) if place else None,
        "task": reason.get("task"),
    }


def _pick(value: Mapping[str, Any] | None, names: Sequence[str]) -> dict[str, Any] | None:
    return {name: value.get(name) for name in names} if value else None


def _suites(report: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    return [
        {
            "id": suite["id"],
            "command": suite["command"],
            "exit_code": suite["exit_code"],
            "duration_s": suite["duration"],
            "artifact": suite["artifact_uri"],
        }
        for suite in (report or {}).get("suites", [])
    ]


def _digests(last: _Round | None) -> dict[str, Any]:
    """Hex digits of 64; null for what does not exist (yet)."""
    uri = str((last.candidate or {}).get("diff_uri", "")) if last else ""
    return {
        "diff": uri.removeprefix("blob:") or None,
        "test_report": last.report.get("digest") if last and last.report else None,
        "evidence": last.manifest.get("digest") if last and last.manifest else None,
        "envelope": digest(last.envelope) if last and last.envelope else None,
    }


def _approval(own: Sequence[EffectRow], asks: Sequence[AskRecord]) -> dict[str, Any] | None:
    """The decision: what the promotion was given (policy's too), else the person's answer to the approval."""
    answered = [ask for ask in asks if ask.kind == "approval" and ask.binding and ask.answer is not None]
    if answered:
        ask = answered[-1]
        at = datetime.fromtimestamp(ask.answered_at or 0.0, UTC).isoformat()
        return {"decision": _value(ask.answer), "by": ask.answered_by, "channel": ask.answer_channel, "at": at}
    promotes = [row for row in own if row.kind == "coding.promote"]
    given = (promotes[-1].input or {}).get("approval") if promotes else None
    if not isinstance(given, dict):
        return None
    return {"decision": given.get("value"), **{name: given.get(name) for name in ("by", "channel", "at")}}


def _value(answer: Any) -> Any:
    return answer["value"] if isinstance(answer, dict) and "value" in answer else answer


def _promotion(own: Sequence[EffectRow]) -> dict[str, Any] | None:
    done = [row for row in own if row.kind == "coding.promote" and row.status == "ok"]
    return _pick(done[-1].result, ("ref", "old", "new")) if done else None


def _usage(run: RunRecord, usage: Usage, now: float) -> dict[str, Any]:
    started = run.started_at
    wall_s = max(0.0, (run.ended_at or now) - started) if started is not None else 0.0
    values = {name: getattr(usage, name) for name in _USAGE} | {"wall_s": round(wall_s, 3), "sandbox_s": round(usage.sandbox_s, 3)}
    return {"usd": dollars(usage.usd), **values}


def dollars(amount: Decimal) -> str:
    """At least two decimals, no exponent, no lost digits: ``0.00``, ``1.5`` is ``1.50``, ``0.000123`` stays."""
    text = format(amount.normalize() if amount else Decimal(0), "f")
    whole, _, part = text.partition(".")
    return f"{whole}.{part.ljust(2, '0')}"


def _sandbox(report: Mapping[str, Any] | None, started: Mapping[str, Any] | None) -> dict[str, Any]:
    said = (report or {}).get("sandbox") or started or {}
    return {"backend": said.get("backend"), "enforces": list(said.get("enforces", []))}
