"""The gate: a passed envelope is approved by policy or by a person, then promoted as it is."""

from __future__ import annotations

from typing import Any

from capataz import ask, coding, now
from capataz.contracts.canonical import to_json
from capataz.contracts.coding import CodingJob, CodingOutcome, Reason
from capataz.contracts.errors import AskDeclined
from capataz.programs.diffstat import diffstat
from capataz.programs.verdict import Made, Round


async def pass_gate(job: CodingJob, done: Round) -> CodingOutcome:
    """Report, declined or promoted. Raises ``TargetMoved``, ``BindingBroken``: nothing was written then."""
    assert done.made is not None
    digest = done.made.envelope.sha256()
    common: dict[str, Any] = {"rounds": done.number + 1, "envelope_digest": digest, "result": done.made.synthesis}
    if job.options.approval == "no_promote":
        return CodingOutcome(outcome="report", **common)
    approval = await _approval(job, done, done.made, digest)
    if approval["value"] != "approve":
        said = approval["note"] or f"{approval['by']} declined the candidate"
        return CodingOutcome(outcome="declined", reason=Reason(code=AskDeclined.code, message=said, round=done.number), **common)
    promotion = await coding.promote(job, done.made.envelope, approval=approval)
    return CodingOutcome(outcome="promoted", promotion=promotion, **common)


async def _approval(job: CodingJob, done: Round, made: Made, digest: str) -> dict[str, Any]:
    """``{"value", "binding", "by", "channel", "at", "note"}``: the decision, bound to the envelope's digest."""
    if job.options.approval == "yes":
        at = (await now()).isoformat()
        return {"value": "approve", "binding": digest, "by": "policy", "channel": "policy", "at": at, "note": None}
    answer = await ask(
        f"Promote candidate {made.candidate.sha[:12]} to {job.target.ref}?",
        kind="approval",
        options=["approve", "decline"],
        context=_context(job, done, made),
        binding=digest,
    )
    return {
        "value": answer.value,
        "binding": digest,
        "by": answer.by,
        "channel": answer.channel,
        "at": answer.at.isoformat(),
        "note": answer.note,
    }


def _context(job: CodingJob, done: Round, made: Made) -> dict[str, Any]:
    """Everything that a person should see before deciding."""
    envelope = made.envelope
    return {
        "request": job.request.request,
        "success_criteria": job.request.success_criteria,
        "target": to_json(job.target),
        "rounds": done.number + 1,
        "plan": to_json(done.plan),
        "candidate": to_json(made.candidate),
        "diff": {"uri": made.candidate.diff_uri, "files": diffstat(made.manifest.diff_text)},
        "test_edits": to_json(envelope)["test_edits"],
        "suites": to_json(envelope.suites),
        "notes": made.report.notes,
        "reviews": to_json(envelope.reviews),
        "synthesis": to_json(envelope.synthesis),
        "risks": _risks(done, made),
        "usage": to_json(envelope.usage),
    }


def _risks(done: Round, made: Made) -> list[str]:
    risks = [*made.synthesis.unresolved_risks, *(risk for record in done.records for risk in record.output.unresolved_risks)]
    return list(dict.fromkeys(risks))
