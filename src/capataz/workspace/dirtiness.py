"""Why a checked-out branch may not be updated. Reads only."""

from __future__ import annotations

from pathlib import Path

from capataz.contracts.workspace import RepositoryInfo
from capataz.workspace.bare import scratch
from capataz.workspace.index_file import INTENT_TO_ADD
from capataz.workspace.inspection import config_value, resolve
from capataz.workspace.listing import changes, entries
from capataz.workspace.names import shown
from capataz.workspace.objects import ObjectStore
from capataz.workspace.source_files import SourceFiles
from capataz.workspace.source_index import SourceIndex, load_index

_UNDER_WAY = {
    "MERGE_HEAD": "a merge", "CHERRY_PICK_HEAD": "a cherry-pick", "REVERT_HEAD": "a revert", "rebase-merge": "a rebase",
    "rebase-apply": "a rebase", "BISECT_LOG": "a bisect",
}


def why_dirty(info: RepositoryInfo, new_tree: str | None, *, scratch_folder: Path, run_objects: list[Path]) -> str | None:
    """One line for a person; None: clean, or nothing is checked out."""
    if info.work_tree is None:
        return None
    for name, what in _UNDER_WAY.items():
        if (info.git_dir / name).exists():
            return f"{what} is under way"
    index = load_index(info, scratch_folder)
    with scratch(scratch_folder, info, run_objects) as git:
        head = f"{resolve(info, 'HEAD')}^{{tree}}"
        reason = _staged(index, {e.path: (e.mode, e.sha) for e in entries(git, head)})
        if reason is not None:
            return reason
        store = ObjectStore(git, info.object_format)
        try:
            with SourceFiles(info, store, file_mode=config_value(info, "core.fileMode") != "false") as files:
                reason = _modified(index, files)
                if reason is None and new_tree is not None:
                    added = [c.path for c in changes(git, head, new_tree) if c.status in "AT"]
                    reason = _in_the_way(index, files, added)
                return reason
        finally:
            store.close()


def _staged(index: SourceIndex, head: dict[bytes, tuple[str, str]]) -> str | None:
    for path in sorted(index.unmerged):
        return f"{shown(path)} has an unresolved conflict"
    for path, entry in index.entries.items():
        if head.get(path) != (entry.mode, entry.sha) or entry.extended & INTENT_TO_ADD:
            return f"{shown(path)} is staged"
    for path in head:
        if path not in index.entries:
            return f"the removal of {shown(path)} is staged"
    return None


def _modified(index: SourceIndex, files: SourceFiles) -> str | None:
    for path in sorted(index.entries):
        state = files.tracked_state(index.entries[path], index.written_ns)
        if state != "same":
            return f"{shown(path)} {'is deleted' if state == 'missing' else 'has local changes'}"
    return None


def _in_the_way(index: SourceIndex, files: SourceFiles, added: list[bytes]) -> str | None:
    for path in added:
        for stranger in _strangers(index, files, path):
            return f"the untracked {shown(stranger)} would be overwritten"
    return None


def _strangers(index: SourceIndex, files: SourceFiles, path: bytes) -> list[bytes]:
    """Untracked files that stand at a path, above it (a file where a folder must be) or below it (the other way round)."""
    parts = path.split(b"/")
    for end in range(1, len(parts)):
        above = b"/".join(parts[:end])
        if above not in index.entries and _is_file(files, above):
            return [above]
    if path in index.entries:
        return []
    below = files.files_below(path)
    if below is not None:
        return [p for p in below if p not in index.entries]
    return [path] if _is_file(files, path) else []


def _is_file(files: SourceFiles, path: bytes) -> bool:
    """Anything but a folder; links count as files."""
    try:
        st = files.stat(path)
    except NotADirectoryError:
        return False                               # the file above was reported, or is tracked and goes away
    return st is not None and st.st_mode & 0o170000 != 0o040000
