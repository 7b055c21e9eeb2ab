"""What a person watching a run sees, kept up to date from its events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from capataz.cli.output import clean
from capataz.contracts.journal import NewEvent

MARKS = {"running": "…", "ok": "✓", "error": "✗", "cancelled": "–"}
_SHOWN = 100


@dataclass(slots=True)
class AgentLine:
    """One agent: ``note`` is its last tool, failure or reason."""

    name: str
    model: str
    state: str = "running"
    turns: int = 0
    usd: Decimal = Decimal(0)
    tokens: int = 0
    note: str = ""


@dataclass(slots=True)
class RunView:
    """Folds events. ``heard`` returns a line for a plain log, or None for what only a live display shows."""

    run_id: str
    stage: str = "starting"
    agents: dict[str, AgentLine] = field(default_factory=dict[str, AgentLine])
    suites: list[str] = field(default_factory=list[str])
    usd: Decimal = Decimal(0)
    calls: int = 0

    def heard(self, event: NewEvent) -> str | None:
        data: dict[str, Any] = event.data if isinstance(event.data, dict) else {}
        handler = _HANDLERS.get(event.type)
        return handler(self, data) if handler else None

    def agent(self, data: dict[str, Any]) -> AgentLine:
        name = clean(data.get("agent") or "agent")
        return self.agents.setdefault(name, AgentLine(name, clean(data.get("model", ""))))


def _cut(text: object) -> str:
    line = clean(text)
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"


def _agent_started(view: RunView, data: dict[str, Any]) -> str:
    line = view.agent(data)
    line.state, line.note = "running", ""
    view.stage = _stage(line.name)
    return f"{line.name} started"


def _stage(name: str) -> str:
    place, _, role = name.rpartition("/")
    what = {"planner": "planning", "reducer": "reducing", "verifier": "reviewing", "refuter": "reviewing"}.get(role)
    what = what or ("working" if role.startswith("worker:") else f"running {role}")
    return f"{place.replace('round-', 'round ')}: {what}" if place else what


def _agent_ended(view: RunView, data: dict[str, Any]) -> str:
    line = view.agent(data)
    line.state = str(data.get("status", "ok"))
    line.note = clean(data.get("reason") or "")
    turns = data.get("turns")
    line.turns = turns if isinstance(turns, int) else line.turns
    ended = {"ok": "done", "error": "failed", "cancelled": "cancelled"}.get(line.state, line.state)
    return f"{line.name} {ended} after {line.turns} turns" + (f": {line.note}" if line.note else "")


def _model_called(view: RunView, data: dict[str, Any]) -> None:
    line = view.agent(data)
    cost = _usd(data.get("usd"))
    line.turns = max(line.turns, int(data.get("turn", 0)) + 1)
    line.tokens += int(data.get("input_tokens", 0)) + int(data.get("output_tokens", 0))
    line.usd += cost
    view.usd += cost
    view.calls += 1


def _usd(value: object) -> Decimal:
    try:
        return Decimal(str(value or 0))
    except InvalidOperation:
        return Decimal(0)


def _model_failed(view: RunView, data: dict[str, Any]) -> str:
    line = view.agent(data)
    retry = data.get("retry_in_s")
    later = f"; again in {float(retry):.0f} s" if isinstance(retry, (int, float)) else ""
    line.note = _cut(f"{data.get('message') or data.get('code')}{later}")
    return f"{line.name}: model call failed: {line.note}"


def _tool_called(view: RunView, data: dict[str, Any]) -> None:
    arguments = data.get("arguments")
    main = next((arguments[k] for k in ("command", "path", "pattern", "message") if k in arguments), "") if isinstance(arguments, dict) else ""
    view.agent(data).note = _cut(f"{data.get('tool')} {main}")


def _tool_ended(view: RunView, data: dict[str, Any]) -> None:
    if data.get("failed"):
        line = view.agent(data)
        line.note = _cut(f"{data.get('tool')} failed: {data.get('summary') or ''}")


def _composed(view: RunView, data: dict[str, Any]) -> str:
    candidate: dict[str, Any] = data.get("candidate") or {}
    view.stage = "testing"
    view.suites.clear()
    return f"candidate {clean(candidate.get('sha', ''))[:12]} composed, {len(candidate.get('changed_files') or [])} files changed"


def _suite_ended(view: RunView, data: dict[str, Any]) -> str:
    outcome = "passed" if data.get("passed") else f"failed (exit {data.get('exit_code')})"
    said = f"suite {clean(data.get('suite'))} {outcome} in {float(data.get('duration_s') or 0):.1f} s"
    view.suites.append(said)
    return said


def _review_ended(view: RunView, data: dict[str, Any]) -> str:
    issues = data.get("blocking_issues") or []
    passed = "passes the candidate" if data.get("passed") else "rejects the candidate"
    return f"{clean(data.get('reviewer'))} {passed}" + "".join(f"\n  {clean(issue)}" for issue in issues)


def _checkpoint(view: RunView, data: dict[str, Any]) -> str:
    return clean(data.get("message"))


def _frozen(view: RunView, data: dict[str, Any]) -> str:
    return f"task {clean(data.get('task_id'))}: {len(data.get('changed_files') or [])} files changed"


def _budget(view: RunView, data: dict[str, Any]) -> str:
    account = clean(data.get("account") or "the run")
    return f"budget of {account}: {clean(data.get('dimension'))} " + (
        f"used {clean(data['used'])} of {clean(data.get('limit'))}" if "used" in data else "exhausted"
    )


def _promoted(view: RunView, data: dict[str, Any]) -> str:
    view.stage = "promoted"
    return f"promoted to {clean(data.get('ref'))}" + (f": {clean(data['note'])}" if data.get("note") else "")


def _ask_opened(view: RunView, data: dict[str, Any]) -> str:
    view.stage = "waiting for an answer"
    return f"asks {clean(data.get('ask'))}: {clean(data.get('question'))}"


def _ask_answered(view: RunView, data: dict[str, Any]) -> str:
    return f"{clean(data.get('by'))} answers {clean(data.get('value'))}"


def _ended(view: RunView, data: dict[str, Any]) -> None:
    view.stage = clean(data.get("outcome") or data.get("state") or "ended")


def _started(view: RunView, data: dict[str, Any]) -> None:
    view.stage = "starting"


_HANDLERS: dict[str, Callable[[RunView, dict[str, Any]], str | None]] = {
    "run.started": _started,
    "run.resumed": _started,
    "run.ended": _ended,
    "program.checkpoint": _checkpoint,
    "agent.started": _agent_started,
    "agent.ended": _agent_ended,
    "model.called": _model_called,
    "model.failed": _model_failed,
    "tool.called": _tool_called,
    "tool.ended": _tool_ended,
    "workspace.frozen": _frozen,
    "candidate.composed": _composed,
    "suite.ended": _suite_ended,
    "review.ended": _review_ended,
    "ask.opened": _ask_opened,
    "ask.answered": _ask_answered,
    "budget.warned": _budget,
    "budget.exhausted": _budget,
    "promotion.done": _promoted,
}
