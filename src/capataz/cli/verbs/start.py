"""do, run, resume: verbs that carry a run on in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from capataz.cli import bridge, options
from capataz.cli.app_port import App
from capataz.cli.foreground import carry_on, tell
from capataz.cli.output import stderr_line
from capataz.cli.verbs.common import Json, RunId, examples, find_run

Model = Annotated[str | None, typer.Option("--model", metavar="ID", help="provider/id, an alias, or scripted:FILE.py (capataz models lists them).")]
Budget = Annotated[str | None, typer.Option("--budget-usd", metavar="X", help="The most money the run may use; calls reserve before they start.")]
Timeout = Annotated[str | None, typer.Option("--timeout", metavar="30m", help="Running time; waits for people do not count.")]
Turns = Annotated[int, typer.Option("--max-turns", min=1, help="Model turns of one agent.")]
Detach = Annotated[bool, typer.Option("--detach", help="Leave the run to a process of its own and return its id.")]


def add(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            'capataz do "Add pagination to list_users, with tests"',
            'capataz do "Fix #12" --repo ~/src/shop --criterion "totals are rounded to cents" --budget-usd 2',
            'capataz do "Where is the session stored?"          a question ends in a report',
            'capataz do "Rename User to Account" --no-promote   plan, build, test and review only',
            'capataz do "Bump the parser" --yes --json | jq .outcome',
        )
    )(do)
    app.command(
        epilog=examples("capataz run audit.py:deep_audit --input '{\"path\": \"src\"}'", "capataz run pkg.flows:nightly --input @job.json --detach")
    )(run)
    app.command(epilog=examples("capataz resume RUN", "capataz resume RUN --with edited.py:program"))(resume)
    app.command(epilog=examples("capataz rebase RUN", "capataz rebase RUN --json | jq .outcome"))(rebase)


def do(
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="What you want, in your words.")],
    repo: Annotated[str, typer.Option("--repo", metavar="DIR", help="The git repository; the current folder by default.")] = ".",
    criterion: Annotated[
        list[str] | None, typer.Option("--criterion", metavar="TEXT", help="How the result is judged; may be repeated. Default: the request itself.")
    ] = None,
    model: Model = None,
    program: Annotated[str, typer.Option("--program", metavar="NAME", help="ultracode, single, or a program of yours that takes a CodingJob.")] = "ultracode",
    target: Annotated[
        str | None, typer.Option("--target", metavar="BRANCH", help="Where the commit goes; the checked-out branch by default.")
    ] = None,
    base: Annotated[str | None, typer.Option("--base", metavar="REV", help="The revision to start from; the target's commit by default.")] = None,
    max_rounds: Annotated[int, typer.Option("--max-rounds", min=1, max=3, help="Rounds in all, repairs included.")] = 3,
    max_workers: Annotated[int, typer.Option("--max-workers", min=1, max=4, help="Workers at the same time.")] = 4,
    budget_usd: Budget = None,
    timeout: Timeout = None,
    max_turns: Turns = 40,
    policy: Annotated[str | None, typer.Option("--policy", metavar="FILE", help="A policy from outside the repository; it wins over capataz.toml.")] = None,
    sandbox: Annotated[str, typer.Option("--sandbox", metavar="NAME", help="bubblewrap, or local (isolates nothing; needs --trust-repository).")] = "bubblewrap",
    trust_repository: Annotated[bool, typer.Option("--trust-repository", help="You vouch for the repository; --sandbox local needs it.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Promote a passed candidate without asking; recorded as policy.")] = False,
    no_promote: Annotated[bool, typer.Option("--no-promote", help="End in a report; write nothing to the repository.")] = False,
    detach: Detach = False,
    json: Json = False,
) -> int:
    """Carry out a request on a git repository: plan, implement in sandboxes, test, review, ask you, promote."""
    asked = options.do_request(
        request=request,
        repo=repo,
        criteria=criterion or [],
        model_id=model,
        program=program,
        target=target,
        base=base,
        max_rounds=max_rounds,
        max_workers=max_workers,
        budget_usd=budget_usd,
        timeout=timeout,
        max_turns=max_turns,
        policy=policy,
        sandbox_name=sandbox,
        trust_repository=trust_repository,
        yes=yes,
        no_promote=no_promote,
    )

    async def work(app: App) -> int:
        return await _begin(app, await app.start_do(asked), detach=detach, as_json=json)

    return bridge.with_app(work)


def run(
    program: Annotated[str, typer.Argument(metavar="PROGRAM", help="A name (capataz programs), pkg.mod:name, or file.py:name.")],
    input: Annotated[str | None, typer.Option("--input", metavar="JSON|@FILE", help="The program's input.")] = None,
    model: Model = None,
    budget_usd: Budget = None,
    timeout: Timeout = None,
    max_turns: Turns = 40,
    untrusted: Annotated[
        bool, typer.Option("--untrusted", help="Nobody vouches for the program: it and its steps run in a sandbox, without network, files or keys.")
    ] = False,
    detach: Detach = False,
    json: Json = False,
) -> int:
    """Run a program: durable, resumable, with a journal of every effect."""
    asked = options.program_request(
        program=program, input=input, model_id=model, budget_usd=budget_usd, timeout=timeout, max_turns=max_turns, untrusted=untrusted
    )

    async def work(app: App) -> int:
        return await _begin(app, await app.start_program(asked), detach=detach, as_json=json)

    return bridge.with_app(work)


async def _begin(app: App, run_id: str, *, detach: bool, as_json: bool) -> int:
    stderr_line(f"run {run_id}")
    if not detach:
        return await carry_on(app, run_id, as_json=as_json)
    await app.detach(run_id)
    stderr_line(f"follow it with: capataz events {run_id} -f")
    await tell(app, await app.journal.get_run(run_id), as_json=as_json)
    return 0


def resume(
    run: RunId,
    with_file: Annotated[str | None, typer.Option("--with", metavar="FILE", help="Continue with an edited program; unchanged calls keep their results.")] = None,
    accept_orphans: Annotated[
        bool, typer.Option("--accept-orphans", help="Effects outside that the edited program no longer asks for stay as they are, unasked.")
    ] = False,
    json: Json = False,
) -> int:
    """Carry a run on: after a crash, a Ctrl-C, a park, a failure or a cancel. What is done is not done again."""
    changed: Path | None = None if with_file is None else Path(with_file)

    async def work(app: App) -> int:
        found = await find_run(app.journal, run)
        if changed is None and (file := await app.differs(found.run_id)):
            stderr_line(f"{file} is not what this run began with; it goes on with that. To take the file: capataz resume {found.run_id} --with {file}")
        await app.prepare_resume(found.run_id, with_file=changed, accept_orphans=accept_orphans)
        return await carry_on(app, found.run_id, as_json=json)

    return bridge.with_app(work)


def rebase(run: RunId, detach: Detach = False, json: Json = False) -> int:
    """Move a run's candidate onto what its target has become: composed, tested, reviewed and asked for anew, as a run of its own."""

    async def work(app: App) -> int:
        found = await find_run(app.journal, run)
        return await _begin(app, await app.start_rebase(found.run_id), detach=detach, as_json=json)

    return bridge.with_app(work)
