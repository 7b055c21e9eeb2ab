"""The manifest: exactly what reviewers get. Long diffs and logs are cut by file and suite, and every cut is named."""

from __future__ import annotations

from capataz.contracts.blobs import Blobs
from capataz.contracts.canonical import digest
from capataz.contracts.records import Candidate, EvidenceManifest, SuiteResult, TestReport
from capataz.contracts.workspace import Change, RunRepository
from capataz.evidence.scopes import show
from capataz.evidence.testing import unsealed
from capataz.evidence.text import escape_note, readable

DIFF_BYTES = 256 << 10
LOG_BYTES = 128 << 10
_STATUS = {"A": "added", "M": "modified", "D": "deleted", "T": "type changed"}


async def make_manifest(run: RunRepository, blobs: Blobs, candidate: Candidate, report: TestReport) -> EvidenceManifest:
    """Stores the whole diff and the whole log as blobs and seals what reviewers see of them."""
    base = await run.tree_of(candidate.original_base_sha)
    changes = await run.changes(base, candidate.tree)
    diff = await blobs.get(candidate.diff_uri)
    logs = [(suite, await blobs.get(suite.artifact_uri)) for suite in report.suites]
    bare = EvidenceManifest(
        candidate_id=candidate.id,
        candidate_sha=candidate.sha,
        diff_uri=candidate.diff_uri,
        test_artifact_uri=await blobs.put(b"".join(_heading(suite).encode() + log + b"\n" for suite, log in logs)),
        test_report_digest=report.digest,
        diff_text=diff_text(changes, diff, candidate.diff_uri),
        test_log_text=log_text(report, logs),
        digest="",
    )
    return bare.model_copy(update={"digest": digest(unsealed(bare))})


def diff_text(changes: list[Change], diff: bytes, uri: str, *, budget: int = DIFF_BYTES) -> str:
    """A list of all changed files, then the patch. A patch over the budget is shown by file, smallest first, so that as
    many files as possible are whole; what is left out is said at its place."""
    parts = split_diff(diff)
    shares = _shares([len(p) for p in parts], budget)
    body = b"".join(_cut(part, share, uri) for part, share in zip(parts, shares, strict=True))
    text, escaped = readable(body)
    files = "".join(f"{_line(c)}\n" for c in sorted(changes, key=lambda c: c.path))
    return f"{escape_note(escaped)}{len(changes)} files changed:\n{files}\n{text}"


def _line(change: Change) -> str:
    """One changed file in words: modes, links, submodules and odd names included."""
    said = _STATUS[change.status]
    if change.status == "M" and change.old_mode != change.new_mode:
        same = ", same content" if change.old_sha == change.new_sha else ""
        said += f", mode {change.old_mode} to {change.new_mode}{same}"
    kind = {"120000": ", symbolic link", "160000": ", submodule", "100755": ", executable"}
    said += kind.get(change.new_mode if change.status != "D" else change.old_mode, "")
    name = show(change.path)
    odd = f" (bytes {change.path!r})" if name.encode("utf-8", "replace") != change.path else ""
    return f"  {name}{odd}: {said}"


def split_diff(diff: bytes) -> list[bytes]:
    """The patch of each file. Lines of content start with a blank, ``+``, ``-`` or ``\\``, so they cannot look like a header."""
    mark = b"diff --git "
    starts = [0] if diff.startswith(mark) else []
    at = diff.find(b"\n" + mark)
    while at >= 0:
        starts.append(at + 1)
        at = diff.find(b"\n" + mark, at + 1)
    if not starts:
        return [diff] if diff else []
    return [diff[a:b] for a, b in zip(starts, [*starts[1:], len(diff)], strict=True)]


def _shares(sizes: list[int], budget: int) -> list[int]:
    """How many bytes of each part may be shown: small parts whole, the rest shared evenly by the large ones."""
    shares = [0] * len(sizes)
    left = budget
    order = sorted(range(len(sizes)), key=lambda i: (sizes[i], i))
    for place, i in enumerate(order):
        shares[i] = min(sizes[i], left // (len(order) - place))
        left -= shares[i]
    return shares


def _cut(part: bytes, share: int, uri: str) -> bytes:
    if len(part) <= share:
        return part
    header = part.split(b"\n@@", 1)[0].split(b"\nGIT binary patch", 1)[0][:4096] + b"\n"
    shown = part[:share].rsplit(b"\n", 1)[0] + b"\n" if share > len(header) else header
    left = len(part) - len(shown)
    return shown + f"[capataz: {left} bytes of this file's patch are left out here; the whole diff is {uri}]\n".encode()


def log_text(report: TestReport, logs: list[tuple[SuiteResult, bytes]], *, budget: int = LOG_BYTES) -> str:
    """Each suite's result and log, head and tail kept; then the notes of the report."""
    shares = _shares([len(log) for _, log in logs], budget)
    shown = zip(logs, shares, strict=True)
    body = b"".join(_heading(suite).encode() + _middle_cut(log, share, suite) for (suite, log), share in shown)
    text, escaped = readable(body)
    notes = "".join(f"note: {note}\n" for note in report.notes)
    edits = "".join(f"existing test file edited: {show(p)}\n" for p in report.test_edits)
    return f"{escape_note(escaped)}{text}{edits}{notes}"


def _heading(suite: SuiteResult) -> str:
    word = "passed" if suite.passed else "FAILED"
    findings = "".join(f"finding: {f}\n" for f in suite.findings)
    how = f"exit code {suite.exit_code}" + ("" if suite.reason == "exit" else f", {suite.reason}")
    return f"=== suite {suite.id}: {word} ({how}, {suite.duration:.1f} s)\n$ {suite.command}\n{findings}"


def _middle_cut(log: bytes, share: int, suite: SuiteResult) -> bytes:
    ending = b"" if log.endswith(b"\n") or not log else b"\n"
    if len(log) <= share:
        return log + ending
    head, tail = log[: share // 3], log[len(log) - (share - share // 3) :]
    left = len(log) - len(head) - len(tail)
    return head + f"\n[capataz: {left} bytes are left out here; the whole log is {suite.artifact_uri}]\n".encode() + tail + ending
