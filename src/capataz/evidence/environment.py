"""The environment of a job's sandboxes: tools, variables, and the layer that the policy's set-up commands made.

The same for agents and for suites. A layer is made once per lock files, stack, policy and tool versions, in a folder that
becomes visible by one rename; a crash leaves a ``.tmp`` folder that the next maker replaces.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from capataz.contracts.canonical import digest
from capataz.contracts.coding import CodingJob, JobOptions
from capataz.contracts.errors import SetupFailed
from capataz.contracts.ids import new_id
from capataz.contracts.policy import Policy
from capataz.contracts.sandbox import Limits, Mount, Sandbox, SandboxSpec, Session
from capataz.contracts.workspace import RunRepository, TreeEntry
from capataz.evidence.tools import Tools

LAYER = "/capataz/layer"
LAYER_VERSION = 1
_LOG_TAIL = 2000
_LOCKS = re.compile(
    rb"(?:.*/)?(?:requirements[^/]*\.(?:txt|in)|pyproject\.toml|setup\.(?:py|cfg)|[^/]*\.lock|Pipfile|constraints[^/]*\.txt"
    rb"|package(?:-lock)?\.json|npm-shrinkwrap\.json|pnpm-lock\.yaml|\.npmrc|go\.(?:mod|sum)|Cargo\.toml|Gemfile|[^/]*\.gemspec"
    rb"|pom\.xml|(?:build|settings)\.gradle(?:\.kts)?|[^/]*\.[cf]sproj|\.(?:python|node|ruby|java|go)-version|\.nvmrc|rust-toolchain[^/]*)"
)
# Where packages come from, as the host is set up. Passed to set-up steps that have the network, never with a credential in it.
_REGISTRY_ENV = (
    "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CERT", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "NPM_CONFIG_REGISTRY",
    "npm_config_registry", "GOPROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """What every sandbox of a job gets. ``notes``: what the evidence must say about how it was made."""

    read_only: tuple[Mount, ...] = ()
    env: dict[str, str] = field(default_factory=dict[str, str])
    path: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    command_timeout_s: float = 600
    tools: dict[str, str] = field(default_factory=dict[str, str])
    notes: tuple[str, ...] = ()
    key: str = ""


class Environments:
    """Makes and keeps layers under ``home/layers``."""

    def __init__(self, sandbox_for: Callable[[JobOptions], Awaitable[Sandbox]], home: Path) -> None:
        self._sandbox_for = sandbox_for
        self._layers = home / "layers"
        self._tools = Tools()

    async def of(self, run: RunRepository, job: CodingJob) -> EnvironmentSpec:
        """Raises ``SandboxUnavailable`` (a tool that the stack needs is missing) and ``SetupFailed``."""
        policy = job.policy
        sandbox = await self._sandbox_for(job.options)
        tools = await self._tools.of(sandbox, policy)
        plain = EnvironmentSpec(
            read_only=tuple(Mount(Path(p), p) for p in policy.environment.read_only),
            env=dict(policy.environment.env),
            limits=limits_of(policy),
            command_timeout_s=policy.limits.command_timeout,
            tools=tools,
            key=digest({"env": policy.environment, "tools": tools, "sandbox": sandbox.name}),
        )
        if not policy.environment.setup:
            return plain
        tree = await run.tree_of(job.request.base_sha)
        key = _key(policy, tools, await run.entries(tree), sandbox.name)
        layer = await self._layer(run, job, sandbox, tree, key, plain)
        return _with_layer(plain, policy, layer, key)

    async def _layer(
        self, run: RunRepository, job: CodingJob, sandbox: Sandbox, tree: str, key: str, plain: EnvironmentSpec
    ) -> Path:
        layer = self._layers / key
        if layer.is_dir():
            return layer
        self._layers.mkdir(parents=True, exist_ok=True)
        async with _locked(self._layers / f"{key}.lock"):
            if not layer.is_dir():
                await self._make(run, job, sandbox, tree, layer, plain)
        return layer

    async def _make(
        self, run: RunRepository, job: CodingJob, sandbox: Sandbox, tree: str, layer: Path, plain: EnvironmentSpec
    ) -> None:
        for old in self._layers.glob(f"{layer.name}.tmp*"):
            await asyncio.to_thread(shutil.rmtree, old, True)
        made = Path(tempfile.mkdtemp(prefix=f"{layer.name}.tmp", dir=self._layers))
        made.chmod(0o755)
        try:
            await _set_up(run, job, sandbox, tree, made, plain)
            made.rename(layer)
        finally:
            await asyncio.to_thread(shutil.rmtree, made, True)


def limits_of(policy: Policy) -> Limits:
    """The policy's limits as a sandbox takes them."""
    return Limits(memory_bytes=policy.limits.memory, pids=policy.limits.pids, disk_bytes=policy.limits.disk)


def _key(policy: Policy, tools: dict[str, str], entries: list[TreeEntry], backend: str) -> str:
    """Lock files, files that the commands name, stack, commands, variables, tool versions and machine."""
    words = {w.removeprefix("./").encode() for command in policy.environment.setup for w in re.split(r"[\s'\"=;&|]+", command) if w}
    files = sorted((repr(e.path), e.sha) for e in entries if _LOCKS.fullmatch(e.path) or e.path in words)
    return digest(
        {"version": LAYER_VERSION, "environment": policy.environment, "tools": tools, "files": files, "backend": backend,
         "machine": platform.machine()}
    )[:40]


@contextlib.asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    """A lock between processes, released by the system when its holder dies."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(0.05)
        yield
    finally:
        os.close(handle)


async def _set_up(run: RunRepository, job: CodingJob, sandbox: Sandbox, tree: str, made: Path, plain: EnvironmentSpec) -> None:
    policy = job.policy
    workspace = await run.workspace(new_id("setup-"), tree, base_sha=job.request.base_sha)
    open_network = policy.environment.setup_network != "none"
    env = {**plain.env, **_stack_env(policy), **(registry_env(os.environ) if open_network else {})}
    spec = SandboxSpec(
        workspace=workspace.mount, read_only=(*plain.read_only, *_certificates(env)), env=env, path=_stack_path(policy),
        network="host" if open_network else "none", limits=plain.limits, purpose="setup", layer=made,
    )
    try:
        session = await sandbox.start(spec)
        try:
            for command in _commands(policy):
                await _command(session, command, policy.limits.command_timeout)
        finally:
            await session.kill()
    finally:
        await workspace.remove()
    await asyncio.to_thread(_note_modules, made)


def _commands(policy: Policy) -> list[str]:
    before = [f"python3 -m venv {LAYER}/venv"] if _stack(policy) == "python" else []
    return [*before, *policy.environment.setup, _KEEP_MODULES]


# node_modules folders lie inside the tree, where only a mount can bring them back.
_KEEP_MODULES = (
    "find . -name node_modules -type d -prune | while IFS= read -r d; do "
    f'mkdir -p "{LAYER}/node_modules/${{d%/*}}" && cp -a "$d" "{LAYER}/node_modules/${{d%/*}}/"; done'
)


async def _command(session: Session, command: str, timeout_s: float) -> None:
    result = await session.run(("/bin/sh", "-c", f"exec 2>&1; {command}"), timeout_s=timeout_s, output_limit=256 << 10)
    if result.exit_code == 0 and result.reason == "exit":
        return
    how = f"exit code {result.exit_code}" if result.reason == "exit" else result.reason
    tail = result.stdout[-_LOG_TAIL:].decode("utf-8", "replace").strip()
    hint = "" if session_has_network(result.stdout) else '; if it needs packages, set environment.setup_network = "registries"'
    raise SetupFailed(f"the set-up command {command!r} failed ({how}){hint}: {tail}", command=command, exit_code=result.exit_code)


def session_has_network(log: bytes) -> bool:
    """Whether a log shows no sign of a missing network."""
    signs = (b"Temporary failure in name resolution", b"Name or service not known", b"EAI_AGAIN", b"Network is unreachable")
    return not any(sign in log for sign in signs)


def _note_modules(made: Path) -> None:
    """Lists the kept node_modules folders, found without following a link of theirs."""
    root = made / "node_modules"
    found: list[str] = []
    for folder, names, _ in os.walk(root):
        if "node_modules" in names:
            relative = os.path.relpath(os.path.join(folder, "node_modules"), root)  # noqa: PTH118
            if not (root / relative).is_symlink():
                found.append(relative)
            names.remove("node_modules")
    (made / "layer.json").write_text(json.dumps({"node_modules": sorted(found)}))


def _stack(policy: Policy) -> str:
    return (policy.environment.stack or "custom").partition("@")[0]


def _stack_path(policy: Policy) -> tuple[str, ...]:
    return {"python": (f"{LAYER}/venv/bin",), "go": (f"{LAYER}/go/bin",), "rust": (f"{LAYER}/cargo/bin",)}.get(_stack(policy), ())


def _stack_env(policy: Policy) -> dict[str, str]:
    return {
        "python": {"VIRTUAL_ENV": f"{LAYER}/venv", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        "go": {"GOPATH": f"{LAYER}/go", "GOMODCACHE": f"{LAYER}/go/pkg/mod"},
        "rust": {"CARGO_HOME": f"{LAYER}/cargo"},
        "ruby": {"BUNDLE_PATH": f"{LAYER}/bundle"},
    }.get(_stack(policy), {})


def registry_env(environ: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    """Where the host gets packages from; a value with a user or password in it is left out."""
    return {k: environ[k] for k in _REGISTRY_ENV if environ.get(k) and not any(_has_credential(w) for w in environ[k].split())}


def _has_credential(value: str) -> bool:
    try:
        return "@" in urlsplit(value).netloc
    except ValueError:
        return True


def _certificates(env: dict[str, str]) -> tuple[Mount, ...]:
    """Certificate files that the variables name and a sandbox may not see otherwise."""
    names = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS")
    system = ("/etc/", "/usr/")
    paths = {env[n] for n in names if n in env and not env[n].startswith(system) and Path(env[n]).exists()}
    return tuple(Mount(Path(p).resolve(), p) for p in sorted(paths))


def _with_layer(plain: EnvironmentSpec, policy: Policy, layer: Path, key: str) -> EnvironmentSpec:
    modules: list[str] = json.loads((layer / "layer.json").read_text())["node_modules"]
    mounts = [Mount(layer, LAYER)]
    mounts += [Mount(layer / "node_modules" / m, f"/workspace/{m.removeprefix('./')}") for m in modules]
    network = policy.environment.setup_network
    notes = [f"set-up ran once, from the base's lock files (layer {key[:12]})"]
    if network != "none":
        hosts = "" if network == "registries" else f"; the list {', '.join(network)} was not enforced"
        notes.append(f"the set-up step shared the host's network{hosts}; agents and suites have none")
    return EnvironmentSpec(
        read_only=(*plain.read_only, *mounts),
        env={**plain.env, **_stack_env(policy)},
        path=_stack_path(policy),
        limits=plain.limits,
        command_timeout_s=plain.command_timeout_s,
        tools=plain.tools,
        notes=tuple(notes),
        key=key,
    )
