"""A run told to a person: the same words before the question, at the end and in ``show``."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

from capataz.cli.output import clean


def path_text(value: Any) -> str:
    """A changed file of the JSON (a string, or base64 of bytes that are not UTF-8) as text for a line."""
    if isinstance(value, dict):
        from base64 import b64decode

        return "".join(chr(b) if 0x20 < b < 0x7F else f"\\x{b:02x}" for b in b64decode(value.get("b64", "")))
    return clean(value)


def run_lines(summary: dict[str, Any]) -> Iterator[str]:
    """The whole of ``show``."""
    yield f"run       {clean(summary['run_id'])}  {clean(summary['program'])}"
    yield f"state     {clean(summary['state'])}" + (f", {clean(summary['outcome'])}" if summary["outcome"] else "")
    yield from _reason(summary["reason"])
    for item in summary["rounds"]:
        yield from round_lines(item)
    yield from _candidate(summary)
    if approval := summary["approval"]:
        yield f"approval  {clean(approval['decision'])} by {clean(approval['by'])} ({clean(approval['channel'])})"
    if promotion := summary["promotion"]:
        yield f"promoted  {clean(promotion['ref'])} {_short(promotion['old'])} -> {_short(promotion['new'])}"
    yield from result_lines(summary["result"])
    yield from (f"orphan    {clean(key)}" for key in summary["orphans"])
    yield usage_line(summary["usage"])


def _reason(reason: dict[str, Any] | None) -> Iterator[str]:
    if reason:
        where = "" if reason["round"] is None else f" (round {reason['round']}" + (f", task {clean(reason['task'])})" if reason["task"] else ")")
        yield f"reason    {clean(reason['code'])}: {clean(reason['message'])}{where}"


def round_lines(item: dict[str, Any]) -> Iterator[str]:
    yield f"round {item['round']}   {'passed' if item['passed'] else 'did not pass' if item['failures'] else 'not finished'}"
    if plan := item["plan"]:
        yield from plan_lines(plan)
    for worker in item["workers"]:
        files = ", ".join(path_text(f) for f in worker["changed_files"]) or "no files"
        yield f"  worker {clean(worker['task_id'])}: {clean(worker['status'])}, {worker['turns']} turns, {files}"
        if worker["reason"]:
            yield f"    {clean(worker['reason']['code'])}: {clean(worker['reason']['message'])}"
    for suite in item["suites"]:
        yield f"  suite {clean(suite['id'])}: exit {suite['exit_code']} in {suite['duration_s']:.1f} s  ({clean(suite['command'])})"
    yield from review_lines(item["reviews"])
    for failure in item["failures"]:
        yield f"  failure {clean(failure['code'])}: {clean(failure['message'])}"


def plan_lines(plan: dict[str, Any]) -> Iterator[str]:
    yield f"  plan: {clean(plan.get('reason', ''))}"
    for task in plan.get("tasks", []):
        scope = "read only" if task.get("read_only") else " ".join(clean(glob) for glob in task.get("write_globs", []))
        yield f"    {clean(task['id'])} [{scope}] {clean(task['objective'])}"


def review_lines(reviews: dict[str, Any]) -> Iterator[str]:
    for role, review in reviews.items():
        if review:
            yield f"  {clean(role)}: {'passed' if review['candidate_passed'] else 'rejected'}"
            yield from (f"    {clean(issue)}" for issue in review["blocking_issues"])


def _candidate(summary: dict[str, Any]) -> Iterator[str]:
    if candidate := summary["candidate"]:
        yield f"candidate {clean(candidate['sha'])}"
        yield from (f"  {path_text(path)}" for path in candidate["changed_files"])
    for name, value in summary["digests"].items():
        if value:
            yield f"  {name.replace('_', ' ')}: sha256 {clean(value)}"


def result_lines(result: Any) -> Iterator[str]:
    """What the program gave back: a synthesis or report as text, anything else as JSON."""
    if result is None:
        return
    if isinstance(result, dict) and isinstance(result.get("summary"), str):
        yield "result"
        yield from (f"  {line}" for line in clean(result["summary"], lines=True).split("\n"))
        yield from (f"  - {clean(entry)}" for entry in result.get("acceptance_evidence") or [])
        yield from (f"  risk: {clean(risk)}" for risk in result.get("unresolved_risks") or [])
    elif isinstance(result, str):
        yield clean(result, lines=True)
    else:
        from json import dumps

        yield clean(dumps(result, ensure_ascii=False, indent=2), lines=True)


def usage_line(usage: dict[str, Any]) -> str:
    return (
        f"usage     ${usage['usd']}, {usage['model_calls']} model calls ({usage['repeated_model_calls']} repeated), {usage['tool_calls']} tool calls, "
        f"{usage['input_tokens']} + {usage['output_tokens']} tokens, sandbox {usage['sandbox_s']:.1f} s, wall {usage['wall_s']:.1f} s"
    )


def approval_lines(context: dict[str, Any], binding: str | None) -> Iterator[str]:
    """The case for a decision: plan, diff summary, suites, reviews, cost, risks, envelope."""
    target: dict[str, Any] = context.get("target") or {}
    yield f"request   {clean(context.get('request', ''))}"
    yield from (f"  criterion: {clean(text)}" for text in context.get("success_criteria") or [])
    yield from plan_lines(context.get("plan") or {})
    yield from diff_lines((context.get("diff") or {}).get("files") or [])
    yield from (f"  edits an existing test: {path_text(path)}" for path in context.get("test_edits") or [])
    for suite in context.get("suites") or []:
        outcome = "passed" if suite.get("passed") else f"failed, exit {suite.get('exit_code')}"
        yield f"suite     {clean(suite['id'])}: {outcome} in {suite['duration']:.1f} s  ({clean(suite['command'])})"
    yield from (f"  note: {clean(note)}" for note in context.get("notes") or [])
    yield from review_lines(context.get("reviews") or {})
    yield from result_lines(context.get("synthesis"))
    yield from (f"risk      {clean(risk)}" for risk in context.get("risks") or [])
    usage: dict[str, Any] = context.get("usage") or {}
    if "usd" in usage:
        yield f"cost      ${money(usage['usd'])}, {clean(usage.get('model_calls', 0))} model calls, {clean(context.get('rounds', 1))} round(s)"
    yield f"target    {clean(target.get('ref', ''))}" + (f" ({clean(target['note'])})" if target.get("note") else "")
    candidate: dict[str, Any] = context.get("candidate") or {}
    yield f"candidate {clean(candidate.get('sha', ''))}"
    if binding:
        yield f"envelope  sha256 {clean(binding)}"


def money(amount: Any) -> str:
    """Dollars with two decimals, four when there is less than a cent."""
    try:
        value = Decimal(str(amount))
    except InvalidOperation:
        return clean(amount)
    return f"{value:.2f}" if not value or value >= Decimal("0.01") else f"{value:.4f}"


def diff_lines(files: list[dict[str, Any]]) -> Iterator[str]:
    yield f"diff      {len(files)} file{'' if len(files) == 1 else 's'}"
    for entry in files:
        size = "binary" if entry["binary"] else f"+{entry['added']} -{entry['removed']}"
        yield f"  {clean(entry['file'])}  {size}"


def _short(sha: Any) -> str:
    return clean(sha)[:12] if sha else "(new)"
