"""What the kernel does not do for a program that nobody vouches for: what would run or publish something outside its sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from capataz.contracts.errors import ForbiddenAccess

if TYPE_CHECKING:
    from capataz.vm.effect import Effect


def refuse(effect: Effect, options: Mapping[str, Any]) -> None:
    """Raises ``ForbiddenAccess``, with the line."""
    if not options.get("untrusted"):
        return
    what = _forbidden(effect)
    if what is not None:
        raise ForbiddenAccess(f"{effect.site}: an untrusted program may not {what}; run it without --untrusted if you vouch for it")


def _forbidden(effect: Effect) -> str | None:
    if effect.kind.startswith("coding."):
        return "work on repositories (capataz.coding)"
    given = {**effect.args, **(effect.input if isinstance(effect.input, dict) else {})}
    if effect.kind == "agent" and str(given.get("model") or "").startswith("scripted:"):
        return "name a scripted model, which is code that runs in the worker"
    if effect.kind == "agent" and given.get("mcp"):
        return "give agents MCP servers, which the worker would reach or show folders of the host to"
    return None
