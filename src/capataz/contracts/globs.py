"""Globs over paths of a tree: bytes, case-sensitive, anchored at the root.

``?`` is one byte, ``*`` any number, ``[a-z]`` and ``[!a-z]`` one byte of a set; none of them crosses ``/``. ``**`` crosses: ``**/x``
is ``x`` at any depth, ``a/**`` everything below ``a``. No negation, no braces, no escapes: those bytes stand for themselves, and a
glob always matches the path that is spelled like it (``pages/[id].tsx``). ``./`` and ``/`` in front are dropped, ``src/`` is ``src/**``.

Matching runs a finite automaton, in time linear in the path whatever the pattern; two patterns are intersected by the same
automata, so that an overlap is found even where no file exists yet.
"""

from __future__ import annotations

import re
from collections import deque
from functools import lru_cache

from capataz.contracts.errors import UsageError

_SLASH = 1 << 0x2F
_ANY = (1 << 256) - 2                          # every byte but NUL
_NAME = _ANY & ~_SLASH
_NICE = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-. /"
_MAX_DFA_STATES = 4096


class _Automaton:
    """A nondeterministic automaton: ``edges[s]`` are (set of bytes as a bit mask, target), ``free[s]`` steps without a byte."""

    def __init__(self) -> None:
        self.edges: list[list[tuple[int, int]]] = [[]]
        self.free: list[list[int]] = [[]]
        self.last = 0

    def state(self) -> int:
        self.edges.append([])
        self.free.append([])
        return len(self.edges) - 1

    def step(self, mask: int) -> None:
        new = self.state()
        self.edges[self.last].append((mask, new))
        self.last = new

    def repeat(self, mask: int) -> None:
        new = self.state()
        self.free[self.last].append(new)
        self.edges[new].append((mask, new))
        self.last = new

    def folders(self) -> None:
        """Zero or more whole folders, each with its slash."""
        inside, end = self.state(), self.state()
        self.free[self.last].append(end)
        self.edges[self.last].append((_NAME, inside))
        self.edges[inside] += [(_ANY, inside), (_SLASH, end)]
        self.last = end

    def closure(self, states: set[int]) -> frozenset[int]:
        todo = list(states)
        while todo:
            for target in self.free[todo.pop()]:
                if target not in states:
                    states.add(target)
                    todo.append(target)
        return frozenset(states)


class Glob:
    """A compiled pattern. ``literal``: the one path it names, when it has no wildcard."""

    def __init__(self, text: str) -> None:
        self.text = text
        pattern = _normal(text)
        self.literal: bytes | None = None if re.search(rb"[*?]|\[.+\]", pattern, re.DOTALL) else pattern
        self._automaton = automaton = _Automaton()
        _build(automaton, pattern)
        self._ends = {automaton.last}
        if b"[" in pattern:
            self._spelled(pattern)
        self._start = automaton.closure({0})
        self._dfa: dict[frozenset[int], dict[int, frozenset[int]]] = {}

    def __repr__(self) -> str:
        return f"Glob({self.text!r})"

    def _spelled(self, pattern: bytes) -> None:
        automaton = self._automaton
        automaton.last = automaton.state()
        automaton.free[0].append(automaton.last)
        for byte in pattern:
            automaton.step(1 << byte)
        self._ends.add(automaton.last)

    def match(self, path: bytes) -> bool:
        """Whether the pattern matches the whole path."""
        states = self._start
        for byte in path:
            row = self._dfa.get(states)
            if row is None:
                row = self._row(states)
            following = row.get(byte)
            if following is None:
                following = row[byte] = self._after(states, byte)
            if not following:
                return False
            states = following
        return not self._ends.isdisjoint(states)

    def _row(self, states: frozenset[int]) -> dict[int, frozenset[int]]:
        if len(self._dfa) >= _MAX_DFA_STATES:
            self._dfa.clear()
        return self._dfa.setdefault(states, {})

    def _after(self, states: frozenset[int], byte: int) -> frozenset[int]:
        bit = 1 << byte
        edges = self._automaton.edges
        return self._automaton.closure({target for state in states for mask, target in edges[state] if mask & bit})


def _normal(text: str) -> bytes:
    pattern = text.encode("utf-8", "surrogateescape")
    while pattern.startswith((b"./", b"/")):
        pattern = pattern[pattern.index(b"/") + 1 :]
    if pattern.endswith(b"/"):
        pattern += b"**"
    if not pattern or b"\0" in pattern:
        raise UsageError(f"{text!r} is no glob; write for example src/**/*.py")
    if any(part in (b"", b".", b"..") for part in pattern.split(b"/")):
        raise UsageError(f"the glob {text!r} has an empty, '.' or '..' part; write a path below the root")
    return pattern


def _build(automaton: _Automaton, pattern: bytes) -> None:
    i = 0
    while i < len(pattern):
        if pattern.startswith(b"**", i):
            i = _double_star(automaton, pattern, i)
        elif pattern[i] == 0x2A:
            automaton.repeat(_NAME)
            i += 1
        elif pattern[i] == 0x3F:
            automaton.step(_NAME)
            i += 1
        else:
            mask, i = _one(pattern, i)
            automaton.step(mask)


def _double_star(automaton: _Automaton, pattern: bytes, i: int) -> int:
    end = i
    while end < len(pattern) and pattern[end] == 0x2A:
        end += 1
    at_start = i == 0 or pattern[i - 1] == 0x2F
    if at_start and pattern[end : end + 1] == b"/":
        automaton.folders()
        return end + 1
    if at_start and end == len(pattern):
        automaton.step(_ANY)                   # everything below a folder, not the folder itself
    automaton.repeat(_ANY)
    return end


def _one(pattern: bytes, i: int) -> tuple[int, int]:
    """The set of bytes that the byte or class at ``i`` stands for, and where the pattern goes on."""
    if pattern[i] != 0x5B:
        return 1 << pattern[i], i + 1
    negated = pattern[i + 1 : i + 2] in (b"!", b"^")
    first = i + 1 + negated
    end = pattern.find(b"]", first + 1)
    if end < 0 or b"/" in pattern[first:end]:
        return 1 << 0x5B, i + 1                # no class: the bracket itself
    mask, j = 0, first
    while j < end:
        low = high = pattern[j]
        if pattern[j + 1 : j + 2] == b"-" and j + 2 < end:
            high = pattern[j + 2]
            j += 2
        for byte in range(low, high + 1):
            mask |= 1 << byte
        j += 1
    return (_NAME & ~mask if negated else _NAME & mask), end + 1


@lru_cache(maxsize=4096)
def compile_glob(text: str) -> Glob:
    """Raises ``UsageError`` for an empty pattern, NUL, and empty, ``.`` or ``..`` parts."""
    return Glob(text)


def matches_any(globs: tuple[str, ...] | list[str], path: bytes) -> bool:
    """Whether one of the globs matches."""
    return any(compile_glob(text).match(path) for text in globs)


def overlap(a: str, b: str) -> bytes | None:
    """A shortest path that both globs match, existing or not; None: no such path."""
    return _witness(compile_glob(a), compile_glob(b))


_Pair = tuple[int, int, bool]


@lru_cache(maxsize=4096)
def _witness(a: Glob, b: Glob) -> bytes | None:
    """Breadth first over both automata and the rule that no part of a path is empty (the third member: inside a name)."""
    start: _Pair = (0, 0, False)
    came: dict[_Pair, tuple[_Pair, int] | None] = {start: None}
    todo: deque[_Pair] = deque([start])
    while todo:
        pair = todo.popleft()
        if pair[2] and pair[0] in a._ends and pair[1] in b._ends:  # pyright: ignore[reportPrivateUsage]
            return _spell(came, pair)
        for following, byte in _moves(a, b, pair):
            if following not in came:
                came[following] = (pair, byte)
                (todo.appendleft if byte < 0 else todo.append)(following)
    return None


def _moves(a: Glob, b: Glob, pair: _Pair) -> list[tuple[_Pair, int]]:
    s, t, inside = pair
    left, right = a._automaton, b._automaton  # pyright: ignore[reportPrivateUsage]
    moves: list[tuple[_Pair, int]] = [((x, t, inside), -1) for x in left.free[s]] + [((s, y, inside), -1) for y in right.free[t]]
    for mask, x in left.edges[s]:
        for other, y in right.edges[t]:
            both = mask & other
            if both & _NAME:
                moves.append(((x, y, True), _nice(both & _NAME)))
            if both & _SLASH and inside:
                moves.append(((x, y, False), 0x2F))
    return moves


def _nice(mask: int) -> int:
    return next((byte for byte in _NICE if mask >> byte & 1), (mask & -mask).bit_length() - 1)


def _spell(came: dict[_Pair, tuple[_Pair, int] | None], pair: _Pair) -> bytes:
    path = bytearray()
    while (step := came[pair]) is not None:
        pair, byte = step
        if byte >= 0:
            path.append(byte)
    return bytes(reversed(path))
