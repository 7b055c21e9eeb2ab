"""Keys: an effect's identity is (scope, kind, name, digest of its inputs, ordinal among identical ones)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from capataz.contracts.canonical import JsonValue, digest

SHOWN_DIGEST = 16


@dataclass(frozen=True, slots=True)
class Identity:
    """What a key is made of; ``input_digest`` has all 64 hex digits, the key shows 16. ``key`` is asked for a dozen times an effect."""

    scope: str
    kind: str
    name: str
    input_digest: str
    ordinal: int
    key: str = field(init=False)

    def __post_init__(self) -> None:
        place = f"{self.scope}/" if self.scope else ""
        key = f"{place}{self.kind}:{self.name}#{self.input_digest[:SHOWN_DIGEST]}.{self.ordinal}"
        object.__setattr__(self, "key", key)


class Identities:
    """Gives out identities in request order, hence the same ones at each replay."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, str, str, str]] = Counter()

    def identify(self, scope: str, kind: str, name: str, input: JsonValue) -> Identity:
        input_digest = digest(input)
        place = (scope, kind, name, input_digest)
        ordinal = self._seen[place]
        self._seen[place] += 1
        return Identity(scope, kind, name, input_digest, ordinal)


def child_scope(child: Identity) -> str:
    """The scope of a child program's own effects: of its name for people, and of its own for keys, since two children of one
    name may ask for the same."""
    ordinal = f".{child.ordinal}" if child.ordinal else ""
    part = f"{child.name}{ordinal}".replace("/", "_") + f"/~{child.input_digest[:8]}"
    return f"{child.scope}/{part}" if child.scope else part


def sub_key(parent: str, kind: str, name: str, input_digest: str, ordinal: int = 0) -> str:
    """The key of an agent's sub-effect: its place in the conversation and the digest of what was asked."""
    return f"{parent}>{kind}:{name}#{input_digest[:SHOWN_DIGEST]}.{ordinal}"


def agent_name(scope: str, name: str) -> str:
    """The scoped name that people and scripts see: the explicit scopes and the agent's own name."""
    return "/".join([part for part in scope.split("/") if part and not part.startswith("~")] + [name])
