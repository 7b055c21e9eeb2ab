"""A kernel in memory: drives a bundled program on the real loop and answers its requests from a script.

Agents are answered by ``agents[NAME]`` (scoped name without hidden parts): a value, an error, or a function of the request.
Coding effects act on trees that are dicts of path to text, so that compose, test and reviews mean something.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from capataz.contracts.canonical import digest, to_json
from capataz.contracts.coding import CodingJob, CodingOutcome, JobOptions, Target
from capataz.contracts.errors import CandidateConflict, CapatazError, OverlappingScopes
from capataz.contracts.policy import Policy, Suite
from capataz.contracts.records import CodingRequest
from capataz.vm import runtime as runtimes
from capataz.vm.keys import agent_name
from capataz.vm.loop import ProgramLoop
from capataz.vm.runtime import Runtime

Request = dict[str, Any]
Answer = Any


def job(**options: Any) -> CodingJob:
    suites = [Suite(id="unit", command="make test"), Suite(id="lint", command="make lint", required=False)]
    return CodingJob(
        request=CodingRequest(repository="/src", base_sha="base", request="Mend it", success_criteria=["it works"]),
        target=Target(ref="refs/heads/main", expected_old="base"),
        policy=Policy(suites=options.pop("suites", suites)),
        options=JobOptions(**options),
    )


def task(id: str, globs: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return {"id": id, "objective": f"do {id}", "read_only": not globs, "write_globs": globs or [], "additional_suite_ids": [], **more}


def plan(*tasks: dict[str, Any], criteria: list[str] | None = None) -> dict[str, Any]:
    return {"substantive": len(tasks) > 1, "reason": "so", "success_criteria": criteria or ["it works"], "tasks": list(tasks)}


def done(summary: str = "done", status: str = "completed") -> dict[str, Any]:
    return {"status": status, "summary": summary, "unresolved_risks": []}


class Deadlock(AssertionError):
    pass


class FakeKernel:
    """``files``: what each worker leaves, by scoped name. ``passes``: whether a tree passes the suites."""

    def __init__(self, agents: dict[str, Answer], *, passes: Callable[[dict[str, str]], bool] = lambda tree: True, seed: int | None = None) -> None:
        self.agents = {"reducer": self._reduce, "verifier": self._review, "refuter": self._review, **agents}
        self.passes = passes
        self.trees: dict[str, dict[str, str]] = {"base": {}}
        self.files: dict[str, dict[str, str]] = {}
        self.requests: list[Request] = []
        self.cancelled: set[int] = set()
        self.answer = {"value": "approve", "by": "ana", "at": 1_700_000_000.0, "channel": "cli", "note": None}
        self.errors: dict[str, CapatazError] = {}
        self._worked: dict[str, str] = {}
        self._random = random.Random(seed) if seed is not None else None

    # ---- driving -------------------------------------------------------------------------------

    def play(self, program: Any, given: CodingJob) -> CodingOutcome:
        runtime = Runtime(seed="s", now=1_700_000_000.0, scope="")
        runtimes.set_current(runtime)
        open_: list[Request] = []

        def idle() -> None:
            batch = runtime.take_batch()
            open_.extend(batch["requests"])
            self.requests.extend(batch["requests"])
            self.cancelled |= {no for no, *_ in batch["cancels"]}
            live = [request for request in open_ if request["no"] not in self.cancelled]
            if not live:
                raise Deadlock("the program waits for nothing")
            request = self._random.choice(live) if self._random else live[0]
            open_.remove(request)
            runtime.deliver({"no": request["no"], "now": runtime.now + 1, **self._perform(request)})

        loop = ProgramLoop(runtime, idle)
        try:
            return loop.run_until_complete(program(CodingJob.model_validate(to_json(given))))
        finally:
            runtimes.set_current(None)
            loop.close()

    def _perform(self, request: Request) -> dict[str, Any]:
        try:
            handler = getattr(self, "_" + request["kind"].replace(".", "_"))
            if request["kind"] in self.errors:
                raise self.errors[request["kind"]]
            return {"ok": to_json(handler(request))}
        except CapatazError as error:
            return {"error": error.to_json()}

    # ---- what happened -------------------------------------------------------------------------

    def names(self) -> list[str]:
        return [agent_name(r["scope"], r["name"]) for r in self.requests if r["kind"] == "agent"]

    def data(self, name: str) -> dict[str, Any]:
        return next(r["input"]["data"] for r in self.requests if r["kind"] == "agent" and agent_name(r["scope"], r["name"]) == name)

    def kinds(self, kind: str) -> list[Request]:
        return [r for r in self.requests if r["kind"] == kind]

    # ---- performing ----------------------------------------------------------------------------

    def _agent(self, request: Request) -> Answer:
        name = agent_name(request["scope"], request["name"])
        answer = self.agents.get(name, self.agents.get(name.rpartition("/")[2]))
        if answer is None:
            raise AssertionError(f"no answer for {name}")
        value = answer(request) if callable(answer) else answer
        if isinstance(value, CapatazError):
            raise value
        if workspace := request["input"].get("workspace"):
            self._worked[workspace["workspace_id"]] = name
        return {"output": value, "text": "", "turns": 1, "usage": {}, "transcript": None}

    def _bound(self, request: Request) -> dict[str, Any]:
        data = request["input"]["data"]
        return {
            "candidate_id": data["candidate"]["id"], "candidate_sha": data["candidate"]["sha"],
            "test_report_digest": data["test_report"]["digest"], "evidence_digest": data["evidence"]["digest"],
        }  # fmt: skip

    def _reduce(self, request: Request) -> Answer:
        return {**self._bound(request), "summary": "a summary", "acceptance_evidence": ["unit"], "unresolved_risks": ["slow"]}

    def _review(self, request: Request) -> Answer:
        passed = request["input"]["data"]["test_report"]["passed"]
        return {**self._bound(request), "candidate_passed": passed, "blocking_issues": [] if passed else ["suite fails"], "evidence": []}

    def _ask(self, request: Request) -> Answer:
        return self.answer

    def _now(self, request: Request) -> Answer:
        return 1_700_000_000.0

    def _checkpoint(self, request: Request) -> Answer:
        return None

    def _coding_plan_check(self, request: Request) -> Answer:
        given = request["input"]["plan"]
        globs = [glob for item in given["tasks"] for glob in item["write_globs"]]
        if len(set(globs)) < len(globs):
            raise OverlappingScopes("two tasks write the same file")
        criteria = request["input"]["job"]["request"]["success_criteria"]
        differences = [] if given["success_criteria"] == criteria else ["the planner changed the criteria"]
        plan_ = {**given, "success_criteria": criteria}
        return {"plan": plan_, "differences": differences, "globs": {item["id"]: item["write_globs"] for item in given["tasks"]}}

    def _coding_workspace(self, request: Request) -> Answer:
        given = request["input"]
        item = given["item"]
        name = f"{given['round']}-{item['id'] if item else 'read'}-{given['base_sha']}"
        return {"workspace_id": name, "repository": "/src", "base_sha": given["base_sha"], "tree": given["base_sha"], "write_globs": [], "read_only": not item}

    def _coding_freeze(self, request: Request) -> Answer:
        given = request["input"]
        base = self.trees[given["workspace"]["base_sha"]]
        wrote = self.files.get(self._worked[given["workspace"]["workspace_id"]], {})
        changed = sorted(path for path, text in wrote.items() if base.get(path) != text)
        tree = digest({**base, **wrote})
        self.trees[tree] = {**base, **wrote}
        return {
            "task_id": given["item"]["id"], "round": given["round"], "workspace_id": given["workspace"]["workspace_id"],
            "base_sha": given["workspace"]["base_sha"], "tree": tree, "changed_files": changed, "output": given["output"],
        }  # fmt: skip

    def _coding_compose(self, request: Request) -> Answer:
        given = request["input"]
        base = self.trees[given["base_sha"]]
        tree = dict(base)
        for record in sorted(given["records"], key=lambda r: r["task_id"]):
            for path in record["changed_files"]:
                if tree.get(path) != base.get(path):
                    raise CandidateConflict(f"{path} was changed by two tasks", paths=[path])
                tree[path] = self.trees[record["tree"]][path]
        name = digest(tree)
        self.trees[name] = tree
        return {
            "id": "c" + name[:8], "sha": name, "tree": name, "base_sha": given["base_sha"], "original_base_sha": "base",
            "round": given["round"], "changed_files": sorted(tree), "diff_uri": "blob:" + "d" * 64,
        }  # fmt: skip

    def _coding_test(self, request: Request) -> Answer:
        candidate = request["input"]["candidate"]
        passed = self.passes(self.trees[candidate["tree"]])
        suites = [
            {"id": id, "command": id, "exit_code": 0 if passed else 1, "duration": 0.1, "artifact_uri": "blob:x", "passed": passed}
            for id in request["input"]["suite_ids"]
        ]
        body = {"candidate_id": candidate["id"], "candidate_sha": candidate["sha"], "tree": candidate["tree"], "suites": suites, "passed": passed}
        return {**body, "digest": digest(body)}

    def _coding_manifest(self, request: Request) -> Answer:
        given = request["input"]
        body = {
            "candidate_id": given["candidate"]["id"], "candidate_sha": given["candidate"]["sha"], "diff_uri": given["candidate"]["diff_uri"],
            "test_artifact_uri": "blob:x", "test_report_digest": given["report"]["digest"], "diff_text": "", "test_log_text": "the log",
        }  # fmt: skip
        return {**body, "digest": digest(body)}

    def _coding_envelope(self, request: Request) -> Answer:
        given = request["input"]
        reviews = given["reviews"]
        return {
            "passed": given["report"]["passed"] and all(r["candidate_passed"] for r in reviews.values()),
            "candidate_id": given["candidate"]["id"], "candidate_sha": given["candidate"]["sha"], "original_base_sha": "base",
            "changed_files": given["candidate"]["changed_files"], "test_edits": [], "test_report_digest": given["report"]["digest"],
            "evidence_digest": given["manifest"]["digest"], "diff_uri": given["candidate"]["diff_uri"], "test_artifact_uri": "blob:x",
            "suites": given["report"]["suites"], "reviews": reviews, "synthesis": given["synthesis"], "usage": {"usd": "0"},
        }  # fmt: skip

    def _coding_promote(self, request: Request) -> Answer:
        given = request["input"]
        return {"ref": "refs/heads/main", "old": "base", "new": given["envelope"]["candidate_sha"]}
