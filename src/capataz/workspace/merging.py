"""Three-way merges of trees by ``git merge-tree``, rename-aware, without drivers or attributes of the repository."""

from __future__ import annotations

from capataz.contracts.errors import GitFailed
from capataz.contracts.workspace import MergeResult
from capataz.workspace.objects import ObjectStore

_SIGNATURE = b"Capataz <capataz@localhost> %d +0000"


def write_commit(store: ObjectStore, tree: str, parents: list[str], message: str, at: float) -> str:
    """Equal inputs give an equal SHA; ``at`` is cut to whole seconds since the epoch."""
    who = _SIGNATURE % max(0, int(at))
    lines = [b"tree " + tree.encode("ascii")]
    lines += [b"parent " + p.encode("ascii") for p in parents]
    lines += [b"author " + who, b"committer " + who]
    text = message.replace("\0", "\\0").replace("\r\n", "\n").strip("\n") + "\n"
    return store.write("commit", b"\n".join(lines) + b"\n\n" + text.encode("utf-8", "replace"))


def merge_trees(store: ObjectStore, base: str, ours: str, theirs: str) -> MergeResult:
    """Commits are made for the three trees so that git finds the base by itself (``--merge-base`` needs git 2.40)."""
    if ours == theirs or theirs == base:
        return MergeResult(ours, ())
    if ours == base:
        return MergeResult(theirs, ())
    root = write_commit(store, base, [], "base", 0)
    left = write_commit(store, ours, [root], "ours", 0)
    right = write_commit(store, theirs, [root], "theirs", 0)
    result = store.git.run("merge-tree", "--write-tree", "-z", "--messages", "--name-only", left, right)
    if result.code not in (0, 1):
        raise GitFailed(f"git merge-tree failed: {result.words()}")
    tree, _, rest = result.stdout.partition(b"\0")
    if result.code == 0:
        return MergeResult(tree.decode("ascii"), ())
    names = {left.encode(): b"ours", right.encode(): b"theirs", left[:7].encode(): b"ours", right[:7].encode(): b"theirs"}
    return MergeResult(None, _conflicts(rest, names))


def _conflicts(output: bytes, names: dict[bytes, bytes]) -> tuple[tuple[bytes, str], ...]:
    """``PATH NUL ... NUL NUL (COUNT NUL PATH NUL ... KIND NUL MESSAGE NUL)...``."""
    fields = output.split(b"\0")
    end = fields.index(b"") if b"" in fields else len(fields)
    unmerged, at = fields[:end], end + 1
    found: dict[bytes, str] = {}
    while at < len(fields) - 1:
        count = int(fields[at])
        paths, kind, text = fields[at + 1 : at + 1 + count], fields[at + 1 + count], fields[at + 2 + count]
        at += 3 + count
        if kind.startswith(b"CONFLICT"):
            for path in paths[:1]:
                found.setdefault(_renamed(path, names), _one_line(text, names))
    for path in unmerged:
        found.setdefault(_renamed(path, names), "CONFLICT: both sides changed it")
    return tuple(sorted(found.items()))


def _renamed(path: bytes, names: dict[bytes, bytes]) -> bytes:
    """Git puts a file that collides with a folder aside as ``path~COMMIT``: the path is what matters."""
    stem, _, suffix = path.rpartition(b"~")
    suffix, _, number = suffix.partition(b"_")
    return stem if stem and suffix in names and (not number or number.isdigit()) else path


def _one_line(text: bytes, names: dict[bytes, bytes]) -> str:
    for sha, name in names.items():
        text = text.replace(sha, name)
    return " ".join(text.decode("utf-8", "backslashreplace").split())
