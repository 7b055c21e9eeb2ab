"""Write scopes: what a task may write, and whether two tasks could write the same file."""

from __future__ import annotations

from itertools import combinations

from capataz.contracts.canonical import bytes_to_json
from capataz.contracts.errors import OverlappingScopes, PlanInvalid, ScopeViolation, UsageError
from capataz.contracts.globs import compile_glob, matches_any, overlap
from capataz.contracts.records import WorkItem


def show(path: bytes) -> str:
    """A path as one readable word: UTF-8 as it is, other bytes and control characters escaped."""
    text = path.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def allowed(path: bytes, write_globs: list[str], protected: list[str]) -> bool:
    """Whether the scope holds the path: some glob matches and it is not protected."""
    return matches_any(write_globs, path) and not matches_any(protected, path)


def check_globs(item: WorkItem, protected: list[str]) -> None:
    """Every glob is a glob and none is about protected paths alone. Raises ``PlanInvalid``, ``ScopeViolation``."""
    for glob in item.write_globs:
        try:
            compile_glob(glob)
        except UsageError as error:
            raise PlanInvalid(f"task {item.id}: {error.message}", task=item.id) from None
        named = _names_protected(glob, protected)
        if named:
            raise ScopeViolation(
                f"task {item.id}: write_globs names {glob}, which is protected ({named}); leave it out",
                task=item.id, paths=[glob],
            )


def _names_protected(glob: str, protected: list[str]) -> str | None:
    literal = compile_glob(glob).literal
    for pattern in protected:
        folder = pattern[:-2] if pattern.endswith("/**") else None
        if literal is not None and compile_glob(pattern).match(literal):
            return pattern
        if glob == pattern or (folder and glob.removeprefix("./").startswith(folder)):
            return pattern
    return None


def check_overlaps(items: list[WorkItem], protected: list[str], files: list[bytes]) -> None:
    """No two tasks may write the same file, existing or possible. Raises ``OverlappingScopes`` naming both and a path."""
    for one, other in combinations([i for i in items if not i.read_only], 2):
        for a in one.write_globs:
            for b in other.write_globs:
                path = _common(a, b, protected, files)
                if path is not None:
                    raise OverlappingScopes(
                        f"tasks {one.id} and {other.id} may both write {show(path)} ({a} and {b}); give each file to one task",
                        tasks=[one.id, other.id], globs=[a, b], paths=[bytes_to_json(path)],
                    )


def _common(a: str, b: str, protected: list[str], files: list[bytes]) -> bytes | None:
    path = overlap(a, b)
    if path is None or not matches_any(protected, path):
        return path
    left, right = compile_glob(a), compile_glob(b)
    return next((f for f in files if left.match(f) and right.match(f) and not matches_any(protected, f)), None)


def check_folders(item: WorkItem, folders: set[bytes]) -> None:
    """A glob that is the bare name of a folder of the base could match nothing. Raises ``PlanInvalid``."""
    for glob in item.write_globs:
        literal = compile_glob(glob).literal
        if literal in folders and not any(overlap(g, f"{glob.rstrip('/')}/**") for g in item.write_globs):
            raise PlanInvalid(f"task {item.id}: {glob} is a folder; write {glob}/** for the files in it", task=item.id)


def folders_of(files: list[bytes]) -> set[bytes]:
    """Every folder that holds one of the files."""
    found: set[bytes] = set()
    for path in files:
        while b"/" in path:
            path = path.rsplit(b"/", 1)[0]
            if path in found:
                break
            found.add(path)
    return found
