"""``read_file``, ``write_file``, ``edit_file``, ``apply_patch``, ``list_directory``: all through the sandbox's own file helper."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from capataz.agents.tools import patches, text
from capataz.agents.tools.bench import Bench
from capataz.agents.tools.errors import ToolError
from capataz.agents.tools.paths import relative, show_path
from capataz.contracts.errors import NotFound, UsageError
from capataz.contracts.harness import ToolReply
from capataz.contracts.sandbox import SessionFiles

READ_LIMIT = 16 << 20                          # bytes of one file that tools look at
SHOWN_CHARS = 64 << 10
SHOWN_LINE = 2_000
SHOWN_ENTRIES = 1_000


async def read_file(bench: Bench, *, path: object, offset: int = 1, limit: int = 2_000) -> ToolReply:
    name = relative(path)
    files = (await bench.session()).files
    data = await _content(files, name)
    shown = show_path(name)
    if text.looks_binary(data):
        size = (await files.stat(name)).size
        return ToolReply(content=f"{shown}: {text.kind_of(data)}, {size} bytes, not shown", summary=f"{shown}: binary")
    content, remarks = text.describe(data)
    if len(data) >= READ_LIMIT:
        remarks.append(f"only the first {READ_LIMIT} bytes can be read here")
    lines = content.split("\n")
    if lines[-1] == "":
        lines.pop()
    if offset > max(len(lines), 1):
        raise ToolError(f"offset {offset} is past the end: {shown} has {len(lines)} lines")
    body, last = _numbered(lines, offset, limit)
    if last < len(lines):
        remarks.append(f"lines {offset} to {last} of {len(lines)}; go on with offset={last + 1}")
    head = f"[{'; '.join(remarks)}]\n" if remarks else ""
    return ToolReply(content=head + body if lines else head + "(empty file)", summary=f"{shown}: lines {offset} to {last}")


def _numbered(lines: list[str], offset: int, limit: int) -> tuple[str, int]:
    out: list[str] = []
    size = 0
    last = offset - 1
    for number, line in enumerate(lines[offset - 1 : offset - 1 + limit], offset):
        line = line.rstrip("\r")
        if len(line) > SHOWN_LINE:
            line = f"{line[:SHOWN_LINE]}… ({len(line) - SHOWN_LINE} more characters)"
        size += len(line) + 8
        if size > SHOWN_CHARS and out:
            break
        out.append(f"{number:6}\t{line}")
        last = number
    return "\n".join(out), last


async def _content(files: SessionFiles, path: bytes) -> bytes:
    if path == b".":
        raise ToolError("path names the workspace itself; use list_directory for a folder")
    if (await files.stat(path)).kind == "dir":
        raise ToolError(f"{show_path(path)} is a folder; use list_directory")
    return await files.read(path, limit=READ_LIMIT)


async def _whole(files: SessionFiles, path: bytes) -> bytes:
    """A file to be edited: all of it or an error."""
    data = await _content(files, path)
    if len(data) >= READ_LIMIT:
        raise ToolError(f"{show_path(path)} is too large to edit here; use run_command")
    return data


async def write_file(bench: Bench, *, path: object, content: str) -> ToolReply:
    name = relative(path)
    bench.scope.check(name)
    try:
        data = content.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ToolError("content is not valid Unicode (a lone surrogate)") from None
    files = (await bench.session()).files
    await files.write(name, data)
    return ToolReply(content=f"wrote {show_path(name)} ({len(data)} bytes)", summary=f"wrote {show_path(name)}")


async def edit_file(bench: Bench, *, path: object, old: str, new: str, count: int = 1) -> ToolReply:
    name = relative(path)
    bench.scope.check(name)
    files = (await bench.session()).files
    data, lines = text.edit(await _whole(files, name), old, new, count)
    await files.write(name, data)
    where = ", ".join(map(str, lines[:20])) + (", …" if len(lines) > 20 else "")
    return ToolReply(content=f"edited {show_path(name)} at line {where}", summary=f"edited {show_path(name)}")


@dataclass(slots=True)
class _Planned:
    """One file of a patch: the bytes before (None: none) and after (None: deleted)."""

    path: bytes
    before: bytes | None
    after: bytes | None
    mode: int | None = None
    old_mode: int | None = None


async def apply_patch(bench: Bench, *, patch: str) -> ToolReply:
    files = (await bench.session()).files
    planned: dict[bytes, _Planned] = {}
    rejected: list[str] = []
    for part in patches.parse(patch):
        await _plan(bench, files, part, planned, rejected)
    if rejected:
        raise ToolError("nothing was changed; " + "; ".join(rejected))
    await _write_all(files, list(planned.values()))
    done = ", ".join(f"{'deleted' if p.after is None else 'added' if p.before is None else 'changed'} {show_path(p.path)}" for p in planned.values())
    return ToolReply(content=done, summary=done[:200])


async def _plan(bench: Bench, files: SessionFiles, part: patches.FilePatch, planned: dict[bytes, _Planned], rejected: list[str]) -> None:
    old = relative(show_path(part.old)) if part.old is not None else None
    new = relative(show_path(part.new)) if part.new is not None else None
    for path in {old, new} - {None}:
        bench.scope.check(path)                # type: ignore[arg-type]
    before = await _before(files, old, planned)
    if old is not None and before is None:
        rejected.append(f"{show_path(old)} does not exist")
        return
    if old is None and new is not None and await _before(files, new, planned) is not None:
        rejected.append(f"{show_path(new)} exists already")
        return
    known = text.decode(before or b"")
    changed, problems = patches.apply(known.text, part) if part.hunks else (known.text, [])
    rejected += problems
    if new is None and changed:
        rejected.append(f"the patch deletes {part.shown} but leaves {changed.count(chr(10)) + 1} lines of it")
    mode = (await files.stat(old)).mode if old is not None and old not in planned else None
    after = None if new is None else _encoded(known, changed)
    if old is not None and old != new:
        planned[old] = _Planned(old, before, None, old_mode=mode)
    if new is not None:
        first = planned.get(new)
        planned[new] = _Planned(new, first.before if first else (before if old == new else None), after, part.mode or (mode if old != new else None), mode)


def _encoded(known: text.Text, changed: str) -> bytes:
    try:
        return known.encode(changed)
    except UnicodeEncodeError:
        raise ToolError("the patch adds characters that this file's encoding cannot hold") from None


async def _before(files: SessionFiles, path: bytes | None, planned: dict[bytes, _Planned]) -> bytes | None:
    if path is None:
        return None
    if path in planned:
        return planned[path].after
    try:
        return None if (await files.stat(path)).kind == "missing" else await _whole(files, path)
    except NotFound:
        return None


async def _write_all(files: SessionFiles, planned: list[_Planned]) -> None:
    """All or none: a write that fails takes the earlier ones back."""
    done: list[_Planned] = []
    try:
        for item in planned:
            done.append(item)
            await _put(files, item.path, item.after, item.mode)
    except Exception:
        for item in reversed(done):
            with contextlib.suppress(NotFound, UsageError):
                await _put(files, item.path, item.before, item.old_mode)
        raise


async def _put(files: SessionFiles, path: bytes, data: bytes | None, mode: int | None) -> None:
    if data is not None:
        await files.write(path, data, mode=mode)
        return
    try:
        await files.remove(path)
    except NotFound:
        pass


async def list_directory(bench: Bench, *, path: object = ".", depth: int = 1) -> ToolReply:
    name = relative(path)
    files = (await bench.session()).files
    entries = await files.list(name, depth=depth, limit=SHOWN_ENTRIES + 1)
    prefix = b"" if name == b"." else name + b"/"
    lines: list[str] = []
    for entry in sorted(entries, key=lambda e: e.path):
        full = prefix + entry.path
        if full == b".git" or full.startswith(b".git/"):
            continue
        mark = {"dir": "/", "link": "  (link)", "other": "  (special file)"}.get(entry.kind, "")
        lines.append(show_path(full) + mark)
    if len(entries) > SHOWN_ENTRIES:
        lines = [*lines[:SHOWN_ENTRIES], f"[only the first {SHOWN_ENTRIES} entries; list a folder below, or use a smaller depth]"]
    return ToolReply(content="\n".join(lines) or "(empty folder)", summary=f"{show_path(name)}: {len(lines)} entries")
