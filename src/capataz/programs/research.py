"""Research: read-only agents look through a code base at the same time; code checks every place that they name."""

from __future__ import annotations

from pydantic import Field

from capataz import Failure, artifact, checkpoint, coding, fan_out, program, run
from capataz.contracts.canonical import to_json
from capataz.contracts.coding import Cited, CodingJob, JobOptions, Reference, WorkspaceRef
from capataz.contracts.records import Record, TaskId
from capataz.programs.prompting import render

MAX_CLAIMS = 40
"""Claims of one reader that are taken; the prompt says so."""


class ResearchInput(Record):
    """``areas``: what to look at, one reader each; empty: a planner chooses at most ``max_readers``."""

    repository: str = "."
    question: str = Field(min_length=1)
    base: str | None = None
    areas: list[str] = []
    max_readers: int = Field(default=4, ge=1, le=16)
    model: str | None = None
    max_turns: int = Field(default=40, ge=1)


class Area(Record):
    id: TaskId
    question: str


class Areas(Record):
    areas: list[Area] = Field(min_length=1)


class Claim(Record):
    """What a reader says, and where it can be seen."""

    statement: str
    references: list[Reference]


class Notes(Record):
    claims: list[Claim]
    open_questions: list[str] = []


class Finding(Record):
    """A claim whose places exist; ``evidence`` holds their lines as they are in the commit."""

    area: str
    statement: str
    evidence: list[Cited]


class Rejected(Record):
    area: str
    statement: str
    reason: str


class Digest(Record):
    summary: str
    open_questions: list[str] = []


class Packet(Record):
    """What was found at one commit. ``rejected``: claims of agents that name no place, or one that is not there."""

    repository: str
    base_sha: str
    question: str
    summary: str
    findings: list[Finding]
    rejected: list[Rejected] = []
    open_questions: list[str] = []


@program
async def research(input: ResearchInput) -> Packet:
    """Looks through a code base with parallel read-only agents and returns findings whose places are checked by code."""
    options = JobOptions(model=input.model, max_turns=input.max_turns)
    job = await coding.job(input.repository, input.question, base=input.base, options=options)
    workspace = await coding.workspace(job, None, base_sha=job.request.base_sha, round=0)
    areas = await _areas(input, job, workspace)

    async def look(area: Area) -> Notes:
        return await _read(input, job, workspace, area)

    notes = await fan_out(areas[:16], look, limit=4, key=lambda area: area.id, on_error="collect")
    packet = await _packet(input, job, list(zip(areas, notes, strict=True)))
    await artifact("packet.json", to_json(packet))
    return packet


async def _areas(input: ResearchInput, job: CodingJob, workspace: WorkspaceRef) -> list[Area]:
    if input.areas:
        return [Area(id=f"area-{n}", question=text) for n, text in enumerate(input.areas[: input.max_readers], 1)]
    planned = await run(
        "planner",
        prompt=render(job.policy.prompts, "research_planner", max_readers=input.max_readers),
        data={"question": input.question},
        type="read",
        output=Areas,
        model=input.model,
        max_turns=input.max_turns,
        workspace=workspace,
    )
    by_id = {area.id: area for area in planned.areas}
    return list(by_id.values())[: input.max_readers]


async def _read(input: ResearchInput, job: CodingJob, workspace: WorkspaceRef, area: Area) -> Notes:
    return await run(
        f"reader:{area.id}",
        prompt=render(job.policy.prompts, "research_reader", max_claims=MAX_CLAIMS),
        data={"question": input.question, "area": area.question},
        type="read",
        output=Notes,
        model=input.model,
        max_turns=input.max_turns,
        workspace=workspace,
    )


async def _packet(input: ResearchInput, job: CodingJob, read: list[tuple[Area, Notes | Failure]]) -> Packet:
    claims = [(area.id, claim) for area, notes in read if isinstance(notes, Notes) for claim in notes.claims[:MAX_CLAIMS]]
    questions = [q for _, notes in read if isinstance(notes, Notes) for q in notes.open_questions]
    questions += [f"{area.question} (its reader failed: {n.error})" for area, n in read if isinstance(n, Failure)]
    findings, rejected = await _checked(job, claims)
    await checkpoint("References are checked", {"findings": len(findings), "rejected": len(rejected)})
    digest = await run(
        "writer",
        prompt=render(job.policy.prompts, "research_writer"),
        data={"question": input.question, "findings": to_json(findings), "open_questions": questions},
        type="reason",
        output=Digest,
        model=input.model,
        max_turns=input.max_turns,
    )
    return Packet(
        repository=job.request.repository,
        base_sha=job.request.base_sha,
        question=input.question,
        summary=digest.summary,
        findings=findings,
        rejected=rejected,
        open_questions=list(dict.fromkeys([*questions, *digest.open_questions])),
    )


async def _checked(job: CodingJob, claims: list[tuple[str, Claim]]) -> tuple[list[Finding], list[Rejected]]:
    """A claim stands when it names places and each of them is there."""
    places = [place for _, claim in claims for place in claim.references]
    cited = iter(await coding.cite(job, places, sha=job.request.base_sha) if places else [])
    findings: list[Finding] = []
    rejected: list[Rejected] = []
    for area, claim in claims:
        evidence = [next(cited) for _ in claim.references]
        reason = _fault(evidence)
        if reason is None:
            findings.append(Finding(area=area, statement=claim.statement, evidence=evidence))
        else:
            rejected.append(Rejected(area=area, statement=claim.statement, reason=reason))
    return findings, rejected


def _fault(evidence: list[Cited]) -> str | None:
    if not evidence:
        return "it names no place"
    gone = next((cited.reference for cited in evidence if cited.text is None), None)
    return None if gone is None else f"{gone.path}:{gone.line} is not in the commit"
