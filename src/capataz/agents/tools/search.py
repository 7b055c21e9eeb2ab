"""``search_code``: a regular expression over the workspace's files, evaluated inside the sandbox, where it may be killed."""

from __future__ import annotations

import base64
import json
from typing import Any

from capataz.agents.tools.bench import Bench
from capataz.agents.tools.errors import ToolError
from capataz.agents.tools.paths import relative, show_path
from capataz.contracts.harness import ToolReply
from capataz.contracts.sandbox import Session

TIMEOUT_S = 20.0
SHOWN_LINE = 300
MAX_HITS = 1_000

SCRIPT = r'''
import base64, json, os, re, subprocess, sys
ask = json.load(sys.stdin)
try:
    wanted = re.compile(ask["pattern"])
except (re.error, RecursionError, OverflowError) as error:
    print(json.dumps({"error": "pattern: " + str(error)})); sys.exit(0)
top = base64.b64decode(ask["path"])
SKIP = {b".git", b".hg", b".svn", b"__pycache__", b".pytest_cache", b".mypy_cache", b".ruff_cache", b"node_modules", b".venv", b"venv", b".tox", b"target", b"dist", b"build"}

def glob_re(glob):
    out, i = b"", 0
    while i < len(glob):
        if glob[i:i + 3] == b"**/":
            out += b"(?:.*/)?"; i += 3
        elif glob[i:i + 2] == b"**":
            out += b".*"; i += 2
        elif glob[i:i + 1] == b"*":
            out += b"[^/]*"; i += 1
        elif glob[i:i + 1] == b"?":
            out += b"[^/]"; i += 1
        elif glob[i:i + 1] == b"[" and b"]" in glob[i + 2:]:
            end = glob.index(b"]", i + 2)
            out += b"[" + glob[i + 1:end].replace(b"!", b"^", 1).replace(b"\\", b"\\\\") + b"]"; i = end + 1
        else:
            out += re.escape(glob[i:i + 1]); i += 1
    return re.compile(out, re.DOTALL)

only = None
if ask["glob"]:
    glob = ask["glob"].encode("utf-8", "surrogateescape").lstrip(b"/")
    only = glob_re(glob if b"/" in glob else b"**/" + glob)

def listed():
    git = ["git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-c", "core.quotepath=off", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", b":(top,literal)" + top if top != b"." else b"."]
    try:
        done = subprocess.run(git, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return None
    return None if done.returncode else sorted(set(done.stdout.split(b"\0")) - {b""})

def walked():
    if not os.path.isdir(top):
        return [top]
    found = []
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(d for d in folders if d not in SKIP)
        found += [os.path.normpath(os.path.join(folder, name)) for name in names]
    return sorted(found)

if not os.path.lexists(top):
    print(json.dumps({"error": "no such file or folder"})); sys.exit(0)
hits, files, more = [], 0, False
paths = listed()
if paths is None:
    paths = walked()
for path in paths:
    if only is not None and not only.fullmatch(path) or os.path.islink(path) or not os.path.isfile(path):
        continue
    try:
        with open(path, "rb") as stream:
            data = stream.read(ask["max_file"])
    except OSError:
        continue
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        text = data.decode("utf-16", "replace")
    elif b"\0" in data[:8192]:
        continue
    else:
        text = data.decode("utf-8", "replace")
    files += 1
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip("\r")
        if wanted.search(line):
            if len(hits) >= ask["limit"]:
                more = True; break
            hits.append([base64.b64encode(path).decode(), number, line[:ask["line"]].strip("\n")])
    if more:
        break
print(json.dumps({"hits": hits, "files": files, "more": more}))
'''


async def search_code(bench: Bench, *, pattern: str, path: object = ".", glob: str | None = None, limit: int = 200) -> ToolReply:
    name = relative(path)
    if not pattern:
        raise ToolError("pattern is empty")
    session = await bench.session()
    found = await _ask(session, {
        "pattern": pattern, "path": base64.b64encode(name).decode(), "glob": glob, "limit": min(limit, MAX_HITS), "line": SHOWN_LINE, "max_file": 4 << 20,
    })
    if "error" in found:
        raise ToolError(str(found["error"]))
    lines = [f"{show_path(base64.b64decode(where))}:{number}: {line}" for where, number, line in found["hits"]]
    if found["more"]:
        lines.append(f"[only the first {len(found['hits'])} matches; narrow the pattern, path or glob]")
    return ToolReply(content="\n".join(lines) or f"no match in {found['files']} files", summary=f"{len(found['hits'])} matches")


async def _ask(session: Session, question: dict[str, Any]) -> dict[str, Any]:
    result = await session.run(
        ("python3", "-I", "-S", "-c", SCRIPT), stdin=json.dumps(question).encode(), timeout_s=TIMEOUT_S, output_limit=4 << 20
    )
    if result.reason == "timeout":
        raise ToolError(f"the search took over {TIMEOUT_S:.0f} s; use a simpler pattern, a path or a glob")
    if result.reason != "exit":
        raise ToolError(f"the search was killed ({result.reason}); use a path or a glob", refused="resource")
    if result.exit_code != 0:
        said = result.stderr.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1]
        raise ToolError(f"search_code could not run here ({said or f'exit code {result.exit_code}'}); use grep with run_command")
    return json.loads(result.stdout)
