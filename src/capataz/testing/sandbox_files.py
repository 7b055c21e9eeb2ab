"""Files of a sandbox: served by the helper, with hostile names, links and races. Part of the conformance suite of sandboxes."""

from __future__ import annotations

import asyncio
import os
import time

from capataz.contracts.errors import ForbiddenAccess, NotFound, UsageError
from capataz.contracts.sandbox import WorkspaceMount
from capataz.testing.sandbox_conformance import Bench, check, expect, raises


@check()
async def files_are_served(b: Bench) -> None:
    s = await b.session()
    f = s.files
    await f.write(b"a/b/c.txt", b"0123456789")
    expect(await f.read(b"a/b/c.txt", offset=2, limit=3) == b"234", "a part was read wrong")
    stat = await f.stat(b"a/b/c.txt")
    expect((stat.kind, stat.size, stat.mode) == ("file", 10, 0o644), f"{stat}")
    await f.write(b"run.sh", b"#!/bin/sh\necho ran\n", mode=0o755)
    await f.write(b"run.sh", b"#!/bin/sh\necho again\n")
    expect((await s.run(["./run.sh"])).stdout == b"again\n", "a write lost the mode")
    expect((await f.stat(b"nothing")).kind == "missing" and (await f.stat(b"a")).kind == "dir", "kinds are wrong")
    listed = [(e.path, e.kind) for e in await f.list(b"", depth=3)]
    expect(listed == [(b"a", "dir"), (b"a/b", "dir"), (b"a/b/c.txt", "file"), (b"run.sh", "file")], f"{listed}")
    expect([e.path for e in await f.list(b"a")] == [b"b"], "one level is one level")
    await f.remove(b"a")
    expect((await f.stat(b"a")).kind == "missing", "a folder was not removed")
    big = os.urandom(3 << 20)
    await f.write(b"big", big)
    expect(await f.read(b"big") == big, "a large file changed on its way")
    for call, error in ((f.read(b"none"), NotFound), (f.read(b"."), UsageError), (f.write(b".", b""), UsageError), (f.read(b"run.sh/x"), UsageError)):
        await raises(call, error)


@check()
async def hostile_names(b: Bench) -> None:
    s = await b.session()
    names = [b"-rf", b"new\nline", b"\xff\xfe", "ñandú 日本".encode(), b"a b", b"'\"$(x)", b"x" * 255, b"~", b"*", b"\x1b[31m"]
    for name in names:
        await s.files.write(name, name)
    expect(sorted(e.path for e in await s.files.list(b"")) == sorted(names), "a name came back changed")
    for name in names:
        expect(await s.files.read(name) == name, f"{name!r} was read wrong")
        await s.files.remove(name)
    await raises(s.files.write(b"y" * 256, b""), UsageError)
    await raises(s.files.read(b"nul\0"), UsageError)
    await raises(s.run(["echo", "nul\0"]), UsageError)
    await raises(s.run([]), UsageError)


@check()
async def links_do_not_lead_out(b: Bench) -> None:
    (b.folder / "secret.txt").write_text("host secret")
    s = await b.session()
    made = await b.sh(
        "mkdir -p in/deep; echo inside > in/file; ln -s in/file good; ln -s ../file in/deep/up; ln -s /etc/passwd absolute;"
        "ln -s ../secret.txt out; ln -s .. parent; ln -s loop loop; ln -s in/new dangling; ln -s / root; mkfifo pipe;"
        "ln -s /proc/self/fd/0 magic; ln -s ../../../../../../../../etc/passwd many", s,
    )
    expect(made.exit_code == 0, f"the links could not be made: {made.stderr!r}")
    f = s.files
    expect(await f.read(b"good") == b"inside\n" and await f.read(b"in/deep/up") == b"inside\n", "links inside must work")
    for path in (b"absolute", b"out", b"parent/secret.txt", b"root/etc/passwd", b"many", b"magic", b"loop", b"../secret.txt", b"/etc/passwd", b"in/../good"):
        await raises(f.read(path), ForbiddenAccess)
        await raises(f.write(path, b"x"), ForbiddenAccess)
    await raises(f.list(b"parent"), ForbiddenAccess)
    await raises(f.write(b"parent/new", b"x"), ForbiddenAccess)
    await raises(f.remove(b"parent/secret.txt"), ForbiddenAccess)
    await raises(f.remove(b""), ForbiddenAccess)
    await f.write(b"dangling", b"made")
    expect(await f.read(b"in/new") == b"made", "a link inside is written through")
    expect((await f.stat(b"out")).kind == "link" and (await f.stat(b"pipe")).kind == "other", "stat is of the name itself")
    await raises(f.read(b"pipe"), UsageError)
    await raises(f.write(b"pipe", b"x"), UsageError)
    await f.remove(b"out")
    expect((b.folder / "secret.txt").read_text() == "host secret", "removing a link removed its target")


@check()
async def swapped_links_gain_nothing(b: Bench) -> None:
    """A command swaps a folder for a link to the outside all the time while files are used below it."""
    outside = b.folder / "outside"
    outside.mkdir()
    (outside / "f").write_text("host secret")
    s = await b.session()
    swap = (
        "import os\nos.makedirs('a'); open('a/f', 'w').write('mine'); os.symlink('../outside', 'l'); print('up', flush=True)\n"
        "while True:\n    os.rename('a', 'b'); os.rename('l', 'a'); os.rename('a', 'l'); os.rename('b', 'a')"
    )
    up = asyncio.Event()
    swapping = asyncio.create_task(b.python(swap, s, timeout_s=30, on_output=lambda data: up.set()))
    await asyncio.wait_for(up.wait(), 10)
    until = time.monotonic() + (0.3 if b.quick else 1.0)
    while time.monotonic() < until:
        for call in (s.files.read(b"a/f"), s.files.write(b"a/g", b"written"), s.files.list(b"a"), s.files.remove(b"a/g")):
            try:
                value = await call
            except (ForbiddenAccess, NotFound, UsageError):
                continue
            expect(value != b"host secret", "a swapped link was followed out of the workspace")
    swapping.cancel()
    await asyncio.wait({swapping})
    expect(sorted(p.name for p in outside.iterdir()) == ["f"], "something was written outside the workspace")


@check("overlay")
async def overlays_leave_the_lower_layer_alone(b: Bench) -> None:
    mount = _overlay(b)
    assert mount.lower is not None
    s = await b.session(workspace=mount)
    await s.files.write(b"kept.txt", b"changed")
    result = await b.sh("rm gone.txt; echo new > new.txt; cat kept.txt; mkdir -p dir; ls", s)
    expect(result.stdout.startswith(b"changed"), f"{result}")
    await s.kill()
    expect((mount.lower / "kept.txt").read_text() == "lower" and (mount.lower / "gone.txt").exists(), "the lower layer was written")
    expect((mount.upper / "kept.txt").read_text() == "changed" and (mount.upper / "new.txt").exists(), "the upper layer lacks the change")
    reader = await b.session(workspace=WorkspaceMount(upper=mount.upper, lower=mount.lower, work=mount.work, writable=False))
    result = await b.sh("cat kept.txt new.txt; ls gone.txt; echo x > kept.txt; echo x > other", reader)
    expect(result.stdout == b"changednew\n" and b"Read-only" in result.stderr, f"the read-only view is wrong: {result}")
    await raises(reader.files.write(b"kept.txt", b"x"), ForbiddenAccess)


def _overlay(b: Bench) -> WorkspaceMount:
    base = b.folder / "with space, comma:colon ñ"
    for name in ("lower", "upper", "work"):
        (base / name).mkdir(parents=True)
    for name in ("kept.txt", "gone.txt"):
        (base / "lower" / name).write_text("lower")
    return WorkspaceMount(upper=base / "upper", lower=base / "lower", work=base / "work")


@check("overlay")
async def hidden_paths_cannot_be_read(b: Bench) -> None:
    mount = _overlay(b)
    assert mount.lower is not None
    (mount.lower / "keys").mkdir()
    (mount.lower / "keys" / "a").write_text("secret")
    hidden = WorkspaceMount(upper=mount.upper, lower=mount.lower, work=mount.work, hidden=(b"keys", b"kept.txt", b"missing/x"))
    s = await b.session(workspace=hidden)
    result = await b.sh("cat keys/a kept.txt; ls keys; chmod 777 keys kept.txt; cat keys/a kept.txt; mv keys k; rm kept.txt; cat k/a; umount keys", s)
    expect(b"secret" not in result.stdout and b"lower" not in result.stdout, f"a hidden path was read: {result.stdout!r}")
    for call in (s.files.read(b"kept.txt"), s.files.read(b"keys/a"), s.files.write(b"kept.txt", b"x")):
        await raises(call, ForbiddenAccess, UsageError, NotFound)
