"""The guard: program code that touches files, sockets, processes or threads is refused, with the verb to use instead.

An audit hook, hence a help against mistakes, not a wall: what hostile code may do is the sandbox's business. It looks at what
is done while a program's code runs; imports, and reading what is installed beside the interpreter, are let through.
"""

from __future__ import annotations

import importlib
import mimetypes
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from capataz.contracts.errors import ImpureProgram
from capataz.vm.sites import call_site

_STEP = "put it in a function and call it with `await step(name, fn, ...)`"
_WRITE = f"{_STEP}, or publish a file with `await artifact(name, data)`"
_IMPORTERS = ("<frozen importlib", "<frozen zipimport")

Rule = Callable[[tuple[Any, ...]], "tuple[str, str, str] | None"]
"""Arguments of an event to (what, how to mend it, verb); None: let through."""


def _always(what: str, advice: str = _STEP, verb: str = "step") -> Rule:
    return lambda args: (what, advice, verb)


def _named(what: str) -> Rule:
    return lambda args: (f"{what}({_show(args[0])})" if args else what, _STEP, "step")


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _open(args: tuple[Any, ...]) -> tuple[str, str, str] | None:
    path, mode, flags = args
    writes = any(letter in (mode or "") for letter in "wax+") or bool((flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    if not writes and (_installed(path) or _importing()):
        return None
    what = f"open({_show(path)}, {mode!r})" if mode else f"open({_show(path)})"
    return (what, _WRITE, "step") if writes else (what, _STEP, "step")


def _look(what: str) -> Rule:
    def rule(args: tuple[Any, ...]) -> tuple[str, str, str] | None:
        path = args[0] if args else "."
        return None if _installed(path) or _importing() else (f"{what}({_show(path)})", _STEP, "step")

    return rule


def _roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found |= {str(Path(__file__).parents[1]), "/usr/share/zoneinfo", "/usr/lib/zoneinfo", "/etc/zoneinfo"}
    found.update(map(str, mimetypes.knownfiles))         # read when a library that knows media types is imported
    return tuple(sorted(f"{os.path.realpath(path)}{os.sep}" for path in found) + sorted(f"{path}{os.sep}" for path in found))


_ROOTS = _roots()


def _installed(path: Any) -> bool:
    """Whether a path lies beside the interpreter: reading it gives every worker the same."""
    try:
        text = os.path.abspath(os.fsdecode(path))  # noqa: PTH100  # links are not followed: no file is touched
    except TypeError:
        return False
    return f"{text}{os.sep}".startswith(_ROOTS)


def _importing() -> bool:
    """Whether the import system itself asks: the caller of the audited function is one of its frames."""
    return sys._getframe(3).f_code.co_filename.startswith(_IMPORTERS)  # pyright: ignore[reportPrivateUsage]


_RULES: dict[str, Rule] = {
    "open": _open,
    "os.listdir": _look("os.listdir"),
    "os.scandir": _look("os.scandir"),
    "os.kill": _named("os.kill"),
    "os.killpg": _named("os.killpg"),
    "os.fork": _always("os.fork()"),
    "os.forkpty": _always("os.forkpty()"),
    "os.system": _named("os.system"),
    "os.exec": _named("os.exec"),
    "os.posix_spawn": _named("os.posix_spawn"),
    "os.spawn": _always("os.spawn()"),
    "pty.spawn": _always("pty.spawn()"),
    "subprocess.Popen": _named("a subprocess"),
    "_posixsubprocess.fork_exec": _named("a subprocess"),
    "builtins.input": _always("input()", "use `await ask(question)`", "ask"),
    "sqlite3.connect": _named("sqlite3.connect"),
    "webbrowser.open": _named("webbrowser.open"),
}
for _event in ("chdir", "chflags", "chmod", "chown", "link", "lockf", "mkdir", "remove", "removexattr", "rename", "rmdir",
               "setxattr", "symlink", "truncate", "utime", "unlink"):  # fmt: skip
    _RULES[f"os.{_event}"] = _named(f"os.{_event}")
for _event in ("__new__", "bind", "connect", "getaddrinfo", "gethostbyaddr", "gethostbyname", "gethostname", "getnameinfo",
               "getservbyname", "getservbyport", "sendmsg", "sendto", "sethostname"):  # fmt: skip
    _RULES[f"socket.{_event}"] = _always("a socket")
for _event in ("shutil.chown", "shutil.copyfile", "shutil.make_archive", "shutil.move", "shutil.rmtree", "shutil.unpack_archive",
               "tempfile.mkdtemp", "tempfile.mkstemp"):  # fmt: skip
    _RULES[_event] = _named(_event)

_active = False
_installed_hook = False


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _active:
        return
    rule = _RULES.get(event)
    if rule is None:
        return
    found = rule(args)
    if found is not None:
        _refuse(*found)


def _refuse(what: str, advice: str, verb: str) -> NoReturn:
    site = call_site(2)
    raise ImpureProgram(f"{site}: {what} in a program; {advice}", site=site, verb=verb)


def _refusing(real: Callable[..., Any], what: str, advice: str, verb: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if _active:
            _refuse(what, advice, verb)
        return real(*args, **kwargs)

    return call


_SIDE_BY_SIDE = "tasks of asyncio and fan_out run side by side; blocking work goes into step()"
_UNAUDITED: tuple[tuple[str, str, tuple[str, str, str]], ...] = (
    ("time", "sleep", ("time.sleep()", "use `await sleep(seconds)`", "sleep")),
    ("_thread", "start_new_thread", ("a thread", _SIDE_BY_SIDE, "step")),
    ("_thread", "start_joinable_thread", ("a thread", _SIDE_BY_SIDE, "step")),
    ("threading", "_start_new_thread", ("a thread", _SIDE_BY_SIDE, "step")),
    ("threading", "_start_joinable_thread", ("a thread", _SIDE_BY_SIDE, "step")),
)
"""Functions that Python 3.11 to 3.14 do not all audit: replaced in their modules."""


def install() -> None:
    """Adds the hook to this process, once and for ever; ``switch`` turns it on and off."""
    global _installed_hook
    if _installed_hook:
        return
    for module_name, name, rule in _UNAUDITED:
        module = importlib.import_module(module_name)
        if hasattr(module, name):
            setattr(module, name, _refusing(getattr(module, name), *rule))
    sys.addaudithook(_hook)
    _installed_hook = True


def on() -> bool:
    """Whether program code is under guard now: also what decides if clocks and random numbers are the recorded ones."""
    return _active


def switch(active: bool) -> None:
    global _active
    _active = active


@contextmanager
def lifted() -> Iterator[None]:
    """The runtime's own doings."""
    global _active
    before, _active = _active, False
    try:
        yield
    finally:
        _active = before
