from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
from evidence_rig import git, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capataz.contracts.errors import CandidateConflict, EvidenceError
from capataz.contracts.records import WorkerOutput, WorkerRecord, WorkItem

LONG = "".join(f"def f{i}():\n    return {i}\n\n" for i in range(60))
TOML = '[suites.unit]\ncommand = "true"\n'


async def record(rig, job, task: str, files: dict[str, str | bytes | None]) -> WorkerRecord:
    """A record made by hand, from a tree that holds these changes."""
    item = WorkItem(id=task, objective="o", write_globs=["**"])
    ref, tree = await rig.work(job, item, lambda folder: write(folder, files))
    run = await rig.run()
    changed = sorted(c.path for c in await run.changes(ref.tree, tree))
    return WorkerRecord(
        task_id=task, round=0, workspace_id=ref.workspace_id, base_sha=job.request.base_sha, tree=tree, changed_files=changed,
        output=WorkerOutput(status="completed", summary="s"),
    )


async def compose(rig, job, records):
    return await rig.service.compose(rig.context(), job, list(records), base_sha=job.request.base_sha, round=0)


async def test_every_order_of_four_workers_gives_the_same_sha(build):
    rig = build({"capataz.toml": TOML, "calc.py": LONG, "selfcheck.py": "x\n"})
    job = await rig.job()
    records = [
        await record(rig, job, "rename", {"calc.py": None, "renamed.py": LONG}),
        await record(rig, job, "edit", {"calc.py": LONG.replace("return 30\n", "return 31\n")}),
        await record(rig, job, "new", {"new.py": "n\n"}),
        await record(rig, job, "same", {"new.py": "n\n", "other.py": "o\n"}),
    ]
    made = [await compose(rig, job, order) for order in permutations(records)]
    assert len(made) == 24 and len({c.sha for c in made}) == 1 and len({c.id for c in made}) == 1
    run = await rig.run()
    text = await run.read(made[0].tree, b"renamed.py")
    assert text is not None and b"return 31\n" in text and await run.read(made[0].tree, b"calc.py") is None
    assert made[0].changed_files == [b"calc.py", b"new.py", b"other.py", b"renamed.py"]
    assert await rig.blobs.get(made[0].diff_uri)


async def test_a_conflict_is_typed_and_names_both_sides(rig):
    job = await rig.job()
    one = await record(rig, job, "one", {"calc.py": "def add(a, b):\n    return b + a\n"})
    two = await record(rig, job, "two", {"calc.py": "def add(a, b):\n    return sum((a, b))\n"})
    three = await record(rig, job, "three", {"x": "x"})
    with pytest.raises(CandidateConflict) as error:
        await compose(rig, job, [three, two, one])
    assert error.value.details["paths"] == ["calc.py"] and error.value.details["tasks"] == ["one", "two"]


async def test_a_file_against_a_folder_of_the_same_name_is_a_conflict(rig):
    job = await rig.job()
    file = await record(rig, job, "file", {"pkg": "a file\n"})
    folder = await record(rig, job, "folder", {"pkg/mod.py": "x = 1\n"})
    with pytest.raises(CandidateConflict) as error:
        await compose(rig, job, [folder, file])
    assert error.value.details["tasks"] == ["file", "folder"]


async def test_nothing_changed_is_no_candidate(rig):
    job = await rig.job()
    with pytest.raises(EvidenceError) as error:
        await compose(rig, job, [await record(rig, job, "one", {})])
    assert error.value.code == "no_changes"


async def test_a_later_round_builds_on_the_candidate_and_counts_from_the_base(rig):
    job = await rig.job()
    first = await rig.candidate(job, {"mul.py": "wrong\n"})
    second = await rig.candidate(job, {"div.py": "d\n"}, base_sha=first.sha, round=1)
    assert second.base_sha == first.sha and second.original_base_sha == job.request.base_sha
    assert second.changed_files == [b"div.py", b"mul.py"]
    assert b"mul.py" in await rig.blobs.get(second.diff_uri)


async def test_records_for_another_base_or_twice_the_same_task_are_refused(rig):
    job = await rig.job()
    one = await record(rig, job, "one", {"x": "x"})
    for bad in ([one, one], [], [one.model_copy(update={"base_sha": "1" * 40})]):
        with pytest.raises(EvidenceError):
            await compose(rig, job, bad)


async def test_what_two_harmless_links_do_together_is_refused(build):
    rig = build({"capataz.toml": TOML, "calc.py": "x\n", "d/e/f": "f\n"})
    job = await rig.job()

    def links(changes: dict[str, str | None]):
        def change(folder: Path) -> None:
            for name, target in changes.items():
                if target is None:
                    (folder / "d/e/f").unlink()
                    (folder / "d/e").rmdir()
                else:
                    (folder / name).symlink_to(target)
        return change

    run = await rig.run()
    records = []
    for task, changes in (("one", {"gone": None, "d/e": ".."}), ("two", {"l": "d/e/.."})):
        item = WorkItem(id=task, objective="o", write_globs=["**"])
        records.append(await rig.freeze(job, item, links(changes)))
    assert len(records) == 2 and run
    with pytest.raises(EvidenceError) as error:
        await compose(rig, job, records)
    assert error.value.code == "link_escape"


async def test_the_message_is_the_request_and_dates_are_the_runs_start(rig):
    job = await rig.job(request="Add mul\n\nwith\x00 care " + "x" * 100)
    candidate = await rig.candidate(job, {"mul.py": "m\n"})
    run = await rig.run()
    text = git(run.git_dir, "cat-file", "-p", candidate.sha)
    assert "\n\nAdd mul\n\nAdd mul" in text and "Capataz-Run: r0000000000000001" in text and " 1700000000 +0000" in text


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_any_edits_of_any_workers_compose_alike_in_any_order(rig, data):
    """Law: the outcome, a SHA or a typed conflict, does not depend on the order of the records."""
    job = await rig.job()
    run = await rig.run()
    base = await run.tree_of(job.request.base_sha)
    names = st.sampled_from(["calc.py", "a", "a/b", "b", "c"])
    edits = data.draw(st.lists(st.dictionaries(names, st.sampled_from(["1\n", "2\n"]), min_size=1, max_size=2), min_size=2, max_size=3))
    records = []
    for number, edit in enumerate(edits):
        if "a" in edit and "a/b" in edit:
            edit.pop("a")
        records.append(await record(rig, job, f"t{number}-{abs(hash(str(edit)))}", dict(edit)))
    outcomes = set()
    for order in permutations(records):
        try:
            outcomes.add((await compose(rig, job, order)).sha)
        except CandidateConflict as error:
            outcomes.add(str(error))
    assert len(outcomes) == 1 and base
