"""The policy file: ``capataz.toml`` of the base tree, or a file from outside, as a ``Policy``.

A file from outside wins as a whole: the repository's own file then gives nothing but its suites, and those only when the
outer file declares none. Every mistake is an ``InvalidPolicy`` that names the file, the key's path and the way to mend it.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from capataz.contracts.errors import InvalidPolicy, NoSuites, UsageError
from capataz.contracts.globs import compile_glob
from capataz.contracts.policy import Environment, LimitsPolicy, Policy, Publish, Scopes, Suite
from capataz.contracts.units import seconds, size_bytes
from capataz.contracts.workspace import RunRepository, TreeEntry
from capataz.evidence.detect import detect_stack, detect_suites
from capataz.evidence.refs import branch_problem

NAME = b"capataz.toml"
GUIDANCE = (b"AGENTS.md", b"CLAUDE.md")
MAX_GUIDANCE_BYTES = 32 << 10
MAX_POLICY_BYTES = 1 << 20
STACKS = ("python", "node", "go", "rust", "java", "dotnet", "ruby", "custom")
_SUITE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOST = re.compile(r"[a-z0-9*]([a-z0-9.-]*[a-z0-9])?(:\d+)?")



class _Table:
    """One TOML table with its place, for messages."""

    def __init__(self, source: str, path: str, value: Any) -> None:
        self.source = source
        self.path = path
        if not isinstance(value, dict):
            raise self.wrong(None, f"must be a table, not {_kind(value)}")
        self.values: dict[str, Any] = value

    def place(self, key: str | None) -> str:
        return ".".join(part for part in (self.path, key) if part) or "the file"

    def wrong(self, key: str | None, text: str) -> InvalidPolicy:
        place = self.place(key)
        return InvalidPolicy(f"{self.source}: {place}: {text}", key=place)

    def only(self, known: tuple[str, ...]) -> None:
        for key in self.values:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean `{near[0]}`?" if near else "known here: " + ", ".join(known)
                raise self.wrong(key, f"unknown key; {hint}")

    def table(self, key: str) -> _Table:
        return _Table(self.source, self.place(key), self.values.get(key, {}))

    def text(self, key: str, default: str | None = None) -> str | None:
        value = self.values.get(key, default)
        if value is not default and not isinstance(value, str):
            raise self.wrong(key, f"must be a string, not {_kind(value)}")
        if isinstance(value, str) and ("\0" in value or not value.strip()):
            raise self.wrong(key, "must not be empty or hold NUL")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, f"must be true or false, not {_kind(value)}")
        return value

    def texts(self, key: str, default: list[str]) -> list[str]:
        value = self.values.get(key, default)
        if not isinstance(value, list) or not all(isinstance(v, str) and v.strip() and "\0" not in v for v in value):
            raise self.wrong(key, 'must be a list of strings, for example ["a", "b"]')
        return list(value)

    def choice(self, key: str, default: str, known: tuple[str, ...]) -> str:
        value = self.values.get(key, default)
        if value not in known:
            raise self.wrong(key, f"{value!r} is not one of {', '.join(known)}")
        return value

    def unit(self, key: str, default: Any, parse: Callable[[Any], Any]) -> Any:
        if key not in self.values:
            return default
        value = self.values[key]
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise self.wrong(key, f"must be a string with a unit or a number, not {_kind(value)}")
        try:
            return parse(value)
        except UsageError as error:
            raise self.wrong(key, error.message) from None


def _kind(value: Any) -> str:
    names = {dict: "a table", list: "a list", str: "a string", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "a date")


def parse_policy(data: bytes, *, source: str, outside: bool) -> Policy:
    """The policy that these TOML bytes declare. ``outside``: they come from ``--policy``. Raises ``InvalidPolicy``."""
    root = _Table(source, "", _toml(data, source))
    root.only(("environment", "limits", "suites", "scopes", "publish", "require_new_tests", "models", "prompts"))
    return Policy(
        environment=_environment(root.table("environment"), outside),
        limits=_limits(root.table("limits")),
        suites=_suites(root.table("suites")),
        scopes=_scopes(root.table("scopes")),
        publish=_publish(root.table("publish")),
        require_new_tests=root.flag("require_new_tests", False),
        models=root.table("models").values,
        prompts=_prompts(root.table("prompts"), outside),
        source="file" if outside else "repository",
    )


def _prompts(table: _Table, outside: bool) -> dict[str, str]:
    """A repository may say how to build, not what agents are told: its prompts come from outside only."""
    if table.values and not outside:
        raise table.wrong(None, "only a policy from outside (--policy FILE) or config.toml may change prompts")
    return {name: table.text(name) or "" for name in table.values}


def _toml(data: bytes, source: str) -> dict[str, Any]:
    if len(data) > MAX_POLICY_BYTES:
        raise InvalidPolicy(f"{source}: larger than {MAX_POLICY_BYTES} bytes; a policy file is short")
    try:
        return tomllib.loads(data.decode("utf-8-sig").replace("\r\n", "\n"))
    except UnicodeDecodeError:
        raise InvalidPolicy(f"{source}: not UTF-8; save the file as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidPolicy(f"{source}: no valid TOML: {error}") from None
    except RecursionError:
        raise InvalidPolicy(f"{source}: nested too deeply") from None


def _environment(table: _Table, outside: bool) -> Environment:
    table.only(("stack", "env", "setup", "setup_network", "read_only"))
    return Environment(
        stack=_stack(table),
        env=_env(table.table("env")),
        setup=table.texts("setup", []),
        setup_network=_network(table),
        read_only=_read_only(table, outside),
    )


def _stack(table: _Table) -> str | None:
    stack = table.text("stack")
    if stack is None:
        return None
    name, at, version = stack.partition("@")
    if name not in STACKS:
        near = difflib.get_close_matches(name, STACKS, 1)
        hint = f"; did you mean `{near[0]}`?" if near else ""
        raise table.wrong("stack", f"{name!r} is not one of {', '.join(STACKS)}{hint}")
    if at and not re.fullmatch(r"\d+(\.\d+){0,3}", version):
        raise table.wrong("stack", f"{version!r} is no version; write for example node@22")
    return stack


def _env(table: _Table) -> dict[str, str]:
    for name, value in table.values.items():
        if not _ENV_NAME.fullmatch(name):
            raise table.wrong(name, "is no name of an environment variable")
        if not isinstance(value, str) or "\0" in value:
            raise table.wrong(name, f'must be a string, not {_kind(value)}; write for example CI = "1"')
    return dict(table.values)


def _network(table: _Table) -> Any:
    value = table.values.get("setup_network", "none")
    if isinstance(value, list):
        hosts = table.texts("setup_network", [])
        for host in hosts:
            if not _HOST.fullmatch(host):
                raise table.wrong("setup_network", f"{host!r} is no host name; write for example pypi.org")
        return hosts or "none"
    return table.choice("setup_network", "none", ("none", "registries"))


def _read_only(table: _Table, outside: bool) -> list[str]:
    paths = table.texts("read_only", [])
    if paths and not outside:
        raise table.wrong("read_only", "mounts of the host are allowed only in a policy from outside (--policy FILE)")
    for path in paths:
        if not Path(path).is_absolute() or not Path(path).exists():
            raise table.wrong("read_only", f"{path!r} must be an absolute path that exists")
    return paths


def _limits(table: _Table) -> LimitsPolicy:
    table.only(("memory", "pids", "disk", "command_timeout", "max_file"))
    default = LimitsPolicy()
    return LimitsPolicy(
        memory=table.unit("memory", default.memory, size_bytes),
        pids=table.unit("pids", default.pids, _count),
        disk=table.unit("disk", default.disk, size_bytes),
        command_timeout=table.unit("command_timeout", default.command_timeout, seconds),
        max_file=table.unit("max_file", default.max_file, size_bytes),
    )


def _count(value: Any) -> int:
    if not isinstance(value, int) or not 1 <= value <= 1 << 20:
        raise UsageError(f"{value!r} is no usable number of processes; write for example 256")
    return value


def _suites(table: _Table) -> list[Suite]:
    return [_suite(table.table(suite_id), suite_id) for suite_id in table.values]


def _suite(table: _Table, suite_id: str) -> Suite:
    if not _SUITE_ID.fullmatch(suite_id):
        raise table.wrong(None, "a suite's id is up to 64 letters, digits, '.', '_' and '-'")
    table.only(("command", "required", "fast", "timeout", "network", "test_edits", "protects"))
    command = table.text("command")
    if command is None:
        raise table.wrong("command", 'missing; write for example command = "python -m pytest -q"')
    table.choice("network", "none", ("none",))
    edits: Any = table.choice("test_edits", "add", ("add", "none", "any"))
    protects = _globs(table, "protects", [])
    if edits == "none" and not protects:
        raise table.wrong("test_edits", '"none" needs `protects`, the globs of the files that must not change')
    return Suite(
        id=suite_id,
        command=command,
        required=table.flag("required", True),
        fast=table.flag("fast", False),
        timeout=table.unit("timeout", 600.0, seconds),
        test_edits=edits,
        protects=protects,
    )


def _globs(table: _Table, key: str, default: list[str]) -> list[str]:
    globs = table.texts(key, default)
    for glob in globs:
        try:
            compile_glob(glob)
        except UsageError as error:
            raise table.wrong(key, error.message) from None
    return globs


def _scopes(table: _Table) -> Scopes:
    table.only(("protected", "hidden"))
    return Scopes(protected=_globs(table, "protected", Scopes().protected), hidden=_globs(table, "hidden", []))


def _publish(table: _Table) -> Publish:
    table.only(("branch",))
    branch = table.text("branch")
    if branch is not None:
        problem = branch_problem(branch.replace("{run}", "r0"))
        if problem or "{" in branch.replace("{run}", ""):
            said = problem or "may hold no placeholder but {run}"
            raise table.wrong("branch", f"{branch!r} {said}; write for example capataz/{{run}}")
    return Publish(branch=branch)


async def resolve_policy(run: RunRepository, tree: str, file: Path | None = None, *, suites: bool = True) -> Policy:
    """The policy for a job on ``tree``: the file's, else the tree's, else defaults; suites detected where none is declared.

    Raises ``InvalidPolicy``, and ``NoSuites`` when no required suite is declared or found (``suites`` False: that is no error).
    """
    entries = await run.entries(tree)
    policy = await _declared(run, tree, entries, file)
    if not policy.suites:
        policy = policy.model_copy(update={"suites": await detect_suites(run, tree, entries)})
    if policy.environment.stack is None:
        environment = policy.environment.model_copy(update={"stack": detect_stack(entries)})
        policy = policy.model_copy(update={"environment": environment})
    if suites:
        _require(policy)
    return policy.model_copy(update={"guidance": await _guidance(run, tree, entries)})


async def _declared(run: RunRepository, tree: str, entries: list[TreeEntry], file: Path | None) -> Policy:
    if file is None:
        return await _inner(run, tree, entries) or Policy(source="detected")
    outer = parse_policy(_read(file), source=str(file), outside=True)
    if outer.suites:
        return outer
    inner = await _inner(run, tree, entries)
    return outer.model_copy(update={"suites": inner.suites}) if inner else outer


async def _inner(run: RunRepository, tree: str, entries: list[TreeEntry]) -> Policy | None:
    entry = next((e for e in entries if e.path == NAME), None)
    if entry is None:
        return None
    if not entry.mode.startswith("100"):
        raise InvalidPolicy("capataz.toml: must be a regular file in the commit, not a link or submodule")
    return parse_policy(await run.read(tree, NAME) or b"", source="capataz.toml", outside=False)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidPolicy(f"{file}: cannot be read: {error.strerror}; give a file after --policy") from None


def _require(policy: Policy) -> None:
    if policy.required_suite_ids():
        return
    if policy.suites:
        ids = ", ".join(s.id for s in policy.suites)
        raise NoSuites(f"no suite is required ({ids}); set required = true on at least one in capataz.toml")
    raise NoSuites(
        "no suite is declared and none was detected; "
        'add capataz.toml with [suites.unit] and command = "...", or pass --policy FILE'
    )


async def _guidance(run: RunRepository, tree: str, entries: list[TreeEntry]) -> dict[str, str]:
    """Guidance files as text, capped and said so. They are data for prompts: nothing here reads them."""
    found: dict[str, str] = {}
    for entry in entries:
        if entry.path in GUIDANCE and entry.mode.startswith("100"):
            data = await run.read(tree, entry.path) or b""
            text = data[:MAX_GUIDANCE_BYTES].decode("utf-8", "replace").replace("\0", "\ufffd")
            cut = len(data) - MAX_GUIDANCE_BYTES
            found[entry.path.decode()] = text + (f"\n[{cut} more bytes left out]" if cut > 0 else "")
    return found


