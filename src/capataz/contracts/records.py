"""Evidence records: frozen, canonical JSON, SHA-256. They are the shapes that models see and people approve."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator

from capataz.contracts.canonical import bytes_from_json, bytes_to_json, digest


def _path(value: Any) -> bytes:
    return value if isinstance(value, bytes) else bytes_from_json(value)


RepoPath = Annotated[
    bytes,
    PlainValidator(_path, json_schema_input_type=str | dict[str, str]),
    PlainSerializer(bytes_to_json, return_type=Any),
]
"""A path in a tree: bytes; in JSON a string when it is UTF-8, else ``{"b64": ...}``."""


class Record(BaseModel):
    """Frozen; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def sha256(self) -> str:
        return digest(self)


class CodingRequest(Record):
    repository: str
    base_sha: str
    request: str
    success_criteria: list[str]


TaskId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class WorkItem(Record):
    id: TaskId
    objective: str = Field(min_length=1)
    read_only: bool = False
    write_globs: list[str] = []
    additional_suite_ids: list[str] = []


class WorkflowPlan(Record):
    substantive: bool
    reason: str
    success_criteria: list[str]
    tasks: list[WorkItem] = Field(min_length=1)


class WorkerOutput(Record):
    status: Literal["completed", "blocked"]
    summary: str
    unresolved_risks: list[str] = []


class WorkerRecord(Record):
    task_id: str
    round: int
    workspace_id: str
    base_sha: str
    tree: str
    changed_files: list[RepoPath]
    output: WorkerOutput


class Candidate(Record):
    id: str
    sha: str
    tree: str
    base_sha: str
    original_base_sha: str
    round: int
    changed_files: list[RepoPath]
    diff_uri: str


class SuiteResult(Record):
    id: str
    command: str
    exit_code: int
    duration: float
    artifact_uri: str
    required: bool = True
    passed: bool = False
    reason: str = "exit"                       # exit, timeout, memory, pids, disk, killed, not_started, test_edits, new_tests_missing
    findings: list[str] = []                   # lost or skipped test ids and the like, one sentence each
    tests_collected: int | None = None


class TestReport(Record):
    __test__ = False
    candidate_id: str
    candidate_sha: str
    tree: str
    suites: list[SuiteResult]
    passed: bool
    test_edits: list[RepoPath] = []
    notes: list[str] = []                      # network shared for set-up, local sandbox, ids that could be forged ...
    sandbox: dict[str, Any] = {}               # {"backend", "enforces", "tools"}
    digest: str


class EvidenceManifest(Record):
    candidate_id: str
    candidate_sha: str
    diff_uri: str
    test_artifact_uri: str
    test_report_digest: str
    diff_text: str
    test_log_text: str
    digest: str


class SynthesisOutput(Record):
    candidate_id: str
    candidate_sha: str
    test_report_digest: str
    evidence_digest: str
    summary: str
    acceptance_evidence: list[str]
    unresolved_risks: list[str] = []


class ReviewOutput(Record):
    candidate_id: str
    candidate_sha: str
    test_report_digest: str
    evidence_digest: str
    candidate_passed: bool
    blocking_issues: list[str]
    evidence: list[str] = []


class CandidateEnvelope(Record):
    passed: bool
    candidate_id: str
    candidate_sha: str
    original_base_sha: str
    changed_files: list[RepoPath]
    test_edits: list[RepoPath]
    test_report_digest: str
    evidence_digest: str
    diff_uri: str
    test_artifact_uri: str
    suites: list[SuiteResult]
    reviews: dict[str, ReviewOutput]
    synthesis: SynthesisOutput
    usage: dict[str, Any]
