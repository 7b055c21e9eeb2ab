"""A run's effects as a tree: scopes hold effects, agents and children hold their sub-effects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from capataz.cli.output import clean
from capataz.cli.view import MARKS
from capataz.contracts.journal import EffectRow

_STATE = {"requested": "running", "ok": "ok", "error": "error", "cancelled": "cancelled", "doubt": "error"}


def tree_json(rows: Sequence[EffectRow]) -> list[dict[str, Any]]:
    """Nested nodes in request order. A scope is a node of kind ``scope``."""
    roots: list[dict[str, Any]] = []
    nodes = {row.key: _node(row) for row in rows}
    scopes: dict[tuple[str | None, str], dict[str, Any]] = {}
    for row in rows:
        place = roots
        if row.parent in nodes and row.parent != row.key:
            place = nodes[row.parent]["children"]
        _scope(scopes, row, place).append(nodes[row.key])
    return roots


def _scope(scopes: dict[tuple[str | None, str], dict[str, Any]], row: EffectRow, place: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The list that the row belongs to, making the scopes above it that are missing. Sub-effects of agents have none."""
    if row.kind in {"model", "tool", "accept", "steering", "compact"}:
        return place
    path = ""
    for part in (p for p in row.scope.split("/") if p and not p.startswith("~")):
        path = f"{path}/{part}" if path else part
        node = scopes.get((row.parent, path))
        if node is None:
            node = scopes[(row.parent, path)] = {"kind": "scope", "name": part, "key": path, "status": None, "children": []}
            place.append(node)
        place = node["children"]
    return place


def _node(row: EffectRow) -> dict[str, Any]:
    error = row.error if isinstance(row.error, dict) else None
    return {
        "kind": row.kind,
        "name": row.name,
        "key": row.key,
        "status": row.status,
        "reason": error.get("code") if error else None,
        "turns": _turns(row),
        "usd": _usd(row),
        "duration_s": round(row.ended_at - row.started_at, 3) if row.ended_at is not None else None,
        "repeated": row.repeated,
        "children": [],
    }


def _turns(row: EffectRow) -> int:
    for said in (row.result, (row.error or {}).get("details") if isinstance(row.error, dict) else None):
        if row.kind == "agent" and isinstance(said, dict) and isinstance(said.get("turns"), int):
            return said["turns"]
    return row.usage.turns


def _usd(row: EffectRow) -> str:
    """An agent's row holds its own use only; what its calls cost stands in its result."""
    used = row.result.get("usage") if row.kind == "agent" and isinstance(row.result, dict) else None
    return str(used["usd"]) if isinstance(used, dict) and "usd" in used else str(row.usage.usd)


def tree_lines(run_id: str, rows: Sequence[EffectRow]) -> Iterator[str]:
    """The tree as text."""
    yield run_id
    yield from _lines(tree_json(rows), "  ")


def _lines(nodes: Sequence[dict[str, Any]], indent: str) -> Iterator[str]:
    for node in nodes:
        if node["kind"] == "scope":
            yield f"{indent}{clean(node['name'])}"
        else:
            duration = "" if node["duration_s"] is None else f"  {node['duration_s']:.2f} s"
            reason = f"  {clean(node['reason'])}" if node["reason"] else ""
            yield f"{indent}{MARKS[_STATE[node['status']]]} {node['kind']} {clean(node['name'])}{duration}{reason}"
        yield from _lines(node["children"], indent + "  ")
