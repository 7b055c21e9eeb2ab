"""CPZ002 to CPZ005: a program touches no files, sockets, processes or threads, and does not block."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache

from capataz.vm.checker.context import Context
from capataz.vm.checker.finding import Finding, Rule, rules
from capataz.vm.checker.modules import Scope
from capataz.vm.checker.reach import is_main_guard
from capataz.vm.checker.types import PATHS

RULES = rules(
    Rule(
        "CPZ002",
        "file access in a program",
        "A program reads or writes a file. It would be done again at each resume, and with another outcome.",
        '''from pathlib import Path

from capataz import program

@program
async def count(input: str) -> int:
    """Counts lines."""
    return len(Path(input).read_text().splitlines())  # CPZ002
''',
        '''from pathlib import Path

from capataz import program, step

def lines(path: str) -> int:
    return len(Path(path).read_text().splitlines())

@program
async def count(input: str) -> int:
    """Counts lines."""
    return await step("lines", lines, input)
''',
    ),
    Rule(
        "CPZ003",
        "network access in a program",
        "A program opens a connection. Only a step may: its result is recorded.",
        '''from urllib.request import urlopen

from capataz import program

@program
async def fetch(input: str) -> str:
    """Fetches a page."""
    return urlopen(input).read().decode()  # CPZ003
''',
        '''from urllib.request import urlopen

from capataz import program, step

def page(url: str) -> str:
    return urlopen(url).read().decode()

@program
async def fetch(input: str) -> str:
    """Fetches a page."""
    return await step("page", page, input)
''',
    ),
    Rule(
        "CPZ004",
        "process in a program",
        "A program starts or ends a process. Only a step may.",
        '''import subprocess

from capataz import program

@program
async def deploy() -> None:
    """Deploys."""
    subprocess.run(["make", "deploy"], check=True)  # CPZ004
''',
        '''import subprocess

from capataz import program, step

def make(target: str) -> int:
    return subprocess.run(["make", target], check=True).returncode

@program
async def deploy() -> None:
    """Deploys."""
    await step("deploy", make, "deploy", idempotent=True)
''',
    ),
    Rule(
        "CPZ005",
        "thread, blocking call or second event loop in a program",
        "A program starts a thread, blocks, or runs an event loop of its own. It has one loop, whose order is recorded.",
        '''import time

from capataz import program

@program
async def wait() -> None:
    """Waits."""
    time.sleep(60)  # CPZ005
''',
        '''from capataz import program, sleep

@program
async def wait() -> None:
    """Waits."""
    await sleep("1m")
''',
    ),
)

_STEP = "Put it in a function and call it with `await step(name, fn, ...)`."
_WRITE = "Put it in a function and call it with `await step(name, fn, ...)`, or publish a file with `await artifact(name, data)`."
_SIDE = "Use `fan_out` or asyncio tasks to work side by side; blocking work goes into `await step(name, fn, ...)`."

_OS_FILES = ("open read write listdir scandir walk mkdir makedirs remove unlink rename replace rmdir removedirs stat lstat chmod chown "
             "link symlink truncate utime chdir getcwd access readlink mkfifo sendfile").split()  # fmt: skip
_OS_PROCESSES = ("system popen fork forkpty kill killpg execv execve execvp execvpe execl execle execlp execlpe spawnv spawnve spawnl "
                 "spawnle spawnlp spawnvp posix_spawn posix_spawnp wait waitpid abort _exit").split()  # fmt: skip
_EXACT: dict[str, tuple[str, str]] = {
    "builtins.open": ("CPZ002", _WRITE),
    "io.open": ("CPZ002", _WRITE),
    "builtins.input": ("CPZ005", "Use `await ask(question)`."),
    "builtins.breakpoint": ("CPZ005", "Use `await checkpoint(message)`."),
    "sys.stdin.read": ("CPZ005", "Use `await ask(question)`."),
    "sys.stdin.readline": ("CPZ005", "Use `await ask(question)`."),
    "sys.stdin.readlines": ("CPZ005", "Use `await ask(question)`."),
    "time.sleep": ("CPZ005", "Use `await sleep(seconds)`."),
    "asyncio.to_thread": ("CPZ005", _SIDE),
    "asyncio.run": ("CPZ005", "Await the coroutine: the program runs in an event loop already."),
    "asyncio.new_event_loop": ("CPZ005", "Await the coroutine: the program runs in an event loop already."),
    "asyncio.Runner": ("CPZ005", "Await the coroutine: the program runs in an event loop already."),
    "asyncio.create_subprocess_exec": ("CPZ004", _STEP),
    "asyncio.create_subprocess_shell": ("CPZ004", _STEP),
    "asyncio.open_connection": ("CPZ003", _STEP),
    "asyncio.open_unix_connection": ("CPZ003", _STEP),
    "asyncio.start_server": ("CPZ003", _STEP),
    "asyncio.start_unix_server": ("CPZ003", _STEP),
    "threading.Thread": ("CPZ005", _SIDE),
    "threading.Timer": ("CPZ005", _SIDE),
    "_thread.start_new_thread": ("CPZ005", _SIDE),
    "pty.spawn": ("CPZ004", _STEP),
    "webbrowser.open": ("CPZ004", _STEP),
    "os.path.exists": ("CPZ002", _STEP), "os.path.isfile": ("CPZ002", _STEP), "os.path.isdir": ("CPZ002", _STEP),
    "os.path.getsize": ("CPZ002", _STEP), "os.path.getmtime": ("CPZ002", _STEP),
    "glob.glob": ("CPZ002", _STEP), "glob.iglob": ("CPZ002", _STEP), "fileinput.input": ("CPZ002", _STEP),
    "gzip.open": ("CPZ002", _STEP), "bz2.open": ("CPZ002", _STEP), "lzma.open": ("CPZ002", _STEP), "tarfile.open": ("CPZ002", _STEP),
    "zipfile.ZipFile": ("CPZ002", _STEP), "sqlite3.connect": ("CPZ002", _STEP), "shelve.open": ("CPZ002", _STEP),
    "signal.signal": ("CPZ004", _STEP),
    **{f"os.{name}": ("CPZ002", _STEP) for name in _OS_FILES},
    **{f"os.{name}": ("CPZ004", _STEP) for name in _OS_PROCESSES},
}  # fmt: skip
_UNDER: Mapping[str, tuple[str, str]] = {
    "subprocess": ("CPZ004", _STEP), "multiprocessing": ("CPZ004", _SIDE), "concurrent.futures": ("CPZ005", _SIDE),
    "socket": ("CPZ003", _STEP), "socketserver": ("CPZ003", _STEP), "ssl": ("CPZ003", _STEP), "http.client": ("CPZ003", _STEP),
    "http.server": ("CPZ003", _STEP), "urllib.request": ("CPZ003", _STEP), "ftplib": ("CPZ003", _STEP), "smtplib": ("CPZ003", _STEP),
    "imaplib": ("CPZ003", _STEP), "poplib": ("CPZ003", _STEP), "requests": ("CPZ003", _STEP), "httpx": ("CPZ003", _STEP),
    "aiohttp": ("CPZ003", _STEP), "urllib3": ("CPZ003", _STEP), "websockets": ("CPZ003", _STEP), "paramiko": ("CPZ003", _STEP),
    "psycopg": ("CPZ003", _STEP), "psycopg2": ("CPZ003", _STEP), "asyncpg": ("CPZ003", _STEP), "boto3": ("CPZ003", _STEP),
    "redis": ("CPZ003", _STEP), "pymysql": ("CPZ003", _STEP), "pymongo": ("CPZ003", _STEP), "grpc": ("CPZ003", _STEP),
    "sqlalchemy.create_engine": ("CPZ003", _STEP), "telnetlib": ("CPZ003", _STEP), "xmlrpc": ("CPZ003", _STEP), "shutil": ("CPZ002", _STEP), "tempfile": ("CPZ002", _STEP),
}  # fmt: skip
_HARMLESS = ("subprocess.list2cmdline", "urllib.request.quote", "urllib.request.unquote", "shutil.get_terminal_size")
_EXCEPTIONS = ("Error", "Exception", "Timeout", "Warning", "Expired")
_PATH_METHODS = frozenset(
    "read_text read_bytes write_text write_bytes open mkdir rmdir unlink rename replace touch iterdir glob rglob walk exists is_file "
    "is_dir is_symlink stat lstat chmod symlink_to hardlink_to resolve readlink samefile owner group".split()
)
_LOOP_METHODS = {"run_in_executor": _SIDE, "run_until_complete": "Await the coroutine.", "create_connection": _STEP}
_NOUNS = {"CPZ002": "files", "CPZ003": "the network", "CPZ004": "processes"}


def check(context: Context) -> Iterator[Finding]:
    for call, scope in context.program_calls():
        found = _forbidden(call, scope, context)
        if found is None or any(is_main_guard(node) for node in context.project.around(call)):
            continue
        code, what, fix = found
        said = f"{what} blocks the program or works beside its recorded order." if code == "CPZ005" else f"{what} touches {_NOUNS[code]} in a program."
        yield context.finding(code, call, scope, said, fix)


def _forbidden(call: ast.Call, scope: Scope, context: Context) -> tuple[str, str, str] | None:
    dotted = context.dotted(call, scope)
    if dotted is not None:
        return _named(dotted) or _subclass(dotted, context)
    if not isinstance(call.func, ast.Attribute):
        return None
    name = call.func.attr
    if name in _LOOP_METHODS and _is_loop(call.func.value, scope, context):
        return "CPZ005", f".{name}()", _LOOP_METHODS[name]
    if name in _PATH_METHODS and context.types.of(call.func.value, scope).dotted in PATHS:
        return "CPZ002", f"Path.{name}()", _WRITE if name.startswith("write") else _STEP
    return None


def _subclass(dotted: str, context: Context) -> tuple[str, str, str] | None:
    """A class of the closure that is a thread, a process or the like."""
    cls = context.names.class_named(dotted)
    for base in sorted(context.names.base_names(cls)) if cls is not None else ():
        found = _named(base)
        if found is not None and cls is not None:
            return found[0], f"{cls.name}()", found[2]
    return None


@cache
def _named(dotted: str) -> tuple[str, str, str] | None:
    shown = dotted.removeprefix("builtins.")
    if dotted in _EXACT:
        return (_EXACT[dotted][0], f"{shown}()", _EXACT[dotted][1])
    for path in PATHS:
        if dotted.startswith(f"{path}.") and dotted.rpartition(".")[2] in (*_PATH_METHODS, "cwd", "home"):
            return "CPZ002", f"{shown}()", _STEP
    if dotted in _HARMLESS or dotted.endswith(_EXCEPTIONS):
        return None
    module = dotted
    while module:
        if module in _UNDER:
            return _UNDER[module][0], f"{shown}()", _UNDER[module][1]
        module = module.rpartition(".")[0]
    return None


def _is_loop(expr: ast.expr, scope: Scope, context: Context) -> bool:
    found, place = context.names.single(expr, scope)
    named = context.dotted(found, place) if isinstance(found, ast.Call) else None
    return named in ("asyncio.get_event_loop", "asyncio.get_running_loop", "asyncio.new_event_loop")
