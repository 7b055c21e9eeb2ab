"""The environment of a job's sandboxes: tools, variables, and the layer that the policy's set-up commands made.

The same for agents and for suites. A layer is made once per lock files, stack, policy and tool versions, in a folder that
counts once its ``layer.json`` is there; what a crash left half made is made anew by the next, under a lock.
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
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from capataz.contracts.canonical import digest
from capataz.contracts.coding import CodingJob, JobOptions
from capataz.contracts.errors import SetupFailed
from capataz.contracts.ids import new_id
from capataz.contracts.policy import Policy
from capataz.contracts.sandbox import Limits, Mount, Sandbox, SandboxSpec, Session, WorkspaceMount
from capataz.contracts.workspace import RunRepository, TreeEntry
from capataz.evidence.text import readable
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
    inner: tuple[Mount, ...] = ()              # inside the workspace: node_modules of the layer

    def sandbox_spec(
        self,
        workspace: WorkspaceMount | None,
        *,
        purpose: str,
        read_only: tuple[Mount, ...] = (),
        env: Mapping[str, str] | None = None,
        forwards: Mapping[int, Path] | None = None,
    ) -> SandboxSpec:
        """The spec of a session on ``workspace``. No network; ``env`` is added to the environment's own."""
        if workspace is not None and workspace.writable and self.inner:
            # A read-only workspace has no place where a mount point could be made.
            workspace = replace(workspace, read_only=(*workspace.read_only, *self.inner))
        return SandboxSpec(
            workspace=workspace,
            read_only=(*self.read_only, *read_only),
            env={**self.env, **(env or {})},
            path=self.path,
            forwards=dict(forwards or {}),
            limits=self.limits,
            purpose=purpose,
        )


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
        place = _Place(policy, self._layers / key, local=sandbox.name == "local")
        await self._ensure(run, job, sandbox, tree, place, plain)
        return _with_layer(plain, policy, place)

    async def _ensure(
        self, run: RunRepository, job: CodingJob, sandbox: Sandbox, tree: str, place: _Place, plain: EnvironmentSpec
    ) -> None:
        if place.done.exists():
            return
        await asyncio.to_thread(self._layers.mkdir, parents=True, exist_ok=True)
        async with _locked(self._layers / f"{place.folder.name}.lock"):
            if place.done.exists():
                return
            await asyncio.to_thread(place.clear)
            try:
                await _set_up(run, job, sandbox, tree, place, plain)
            except BaseException:
                await asyncio.to_thread(shutil.rmtree, place.folder, True)
                raise
            await asyncio.to_thread(place.finish)


class _Place:
    """A layer's folder, and its name as a sandbox sees it: mounted at ``LAYER``, or itself where nothing can be mounted."""

    def __init__(self, policy: Policy, folder: Path, *, local: bool) -> None:
        self.folder = folder
        self.done = folder / "layer.json"
        self.local = local
        self.inside = str(folder) if local else LAYER
        self.stack = (policy.environment.stack or "custom").partition("@")[0]

    @property
    def path(self) -> tuple[str, ...]:
        folders = {"python": "venv/bin", "go": "go/bin", "rust": "cargo/bin", "node": "node_modules/node_modules/.bin"}
        return (f"{self.inside}/{folders[self.stack]}",) if self.stack in folders else ()

    @property
    def env(self) -> dict[str, str]:
        inside = self.inside
        of = {
            "python": {"VIRTUAL_ENV": f"{inside}/venv", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            "node": {"NODE_PATH": f"{inside}/node_modules/node_modules"},
            "go": {"GOPATH": f"{inside}/go", "GOMODCACHE": f"{inside}/go/pkg/mod"},
            "rust": {"CARGO_HOME": f"{inside}/cargo"},
            "ruby": {"BUNDLE_PATH": f"{inside}/bundle"},
        }
        return of.get(self.stack, {})

    def commands(self, setup: list[str]) -> list[str]:
        """The policy's, after the stack's own and before what keeps node_modules: those lie inside the tree, where only a
        mount can bring them back."""
        kept = f"{self.inside}/node_modules"
        keep = (
            "find . -name node_modules -type d -prune | while IFS= read -r d; do "
            f'mkdir -p "{kept}/${{d%/*}}" && cp -a "$d" "{kept}/${{d%/*}}/" || exit 1; done'
        )
        before = [f"python3 -m venv {self.inside}/venv"] if self.stack == "python" else []
        return [*before, *setup, keep]

    def clear(self) -> None:
        shutil.rmtree(self.folder, True)
        self.folder.mkdir(mode=0o755)

    def finish(self) -> None:
        """Lists the kept node_modules folders, found without following a link of theirs, and marks the layer as whole."""
        root = self.folder / "node_modules"
        found: list[str] = []
        for folder, names, _ in os.walk(root):
            if "node_modules" in names:
                kept = Path(folder, "node_modules")
                if not kept.is_symlink():
                    found.append(str(kept.relative_to(root)))
                names.remove("node_modules")
        part = self.folder / "layer.json.part"
        part.write_text(json.dumps({"node_modules": sorted(found)}))
        part.replace(self.done)


def limits_of(policy: Policy) -> Limits:
    """The policy's limits as a sandbox takes them."""
    return Limits(memory_bytes=policy.limits.memory, pids=policy.limits.pids, disk_bytes=policy.limits.disk)


def _key(policy: Policy, tools: dict[str, str], entries: list[TreeEntry], backend: str) -> str:
    """Lock files, files that the commands name, stack, commands, variables, tool versions and machine."""
    commands = " ".join(policy.environment.setup)
    words = {w.removeprefix("./").encode() for w in re.split(r"[\s'\"=;&|]+", commands) if w}
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


async def _set_up(run: RunRepository, job: CodingJob, sandbox: Sandbox, tree: str, place: _Place, plain: EnvironmentSpec) -> None:
    policy = job.policy
    workspace = await run.workspace(new_id("setup-"), tree, base_sha=job.request.base_sha)
    open_network = policy.environment.setup_network != "none"
    env = {**plain.env, **place.env, **(registry_env(os.environ) if open_network else {})}
    try:
        spec = SandboxSpec(
            workspace=workspace.mount, read_only=(*plain.read_only, *_certificates(env)), env=env, path=place.path,
            network="host" if open_network else "none", limits=plain.limits, purpose="setup", layer=place.folder,
        )
        session = await sandbox.start(spec)
        try:
            for command in place.commands(policy.environment.setup):
                await _command(session, command, policy.limits.command_timeout)
        finally:
            await session.kill()
    finally:
        await workspace.remove()


async def _command(session: Session, command: str, timeout_s: float) -> None:
    result = await session.run(("/bin/sh", "-c", f"exec 2>&1; {command}"), timeout_s=timeout_s, output_limit=256 << 10)
    if result.exit_code == 0 and result.reason == "exit":
        return
    how = f"exit code {result.exit_code}" if result.reason == "exit" else result.reason
    tail = readable(result.stdout[-_LOG_TAIL:])[0].strip()
    hint = "" if _network_seen(result.stdout) else '; if it needs packages, set environment.setup_network = "registries"'
    raise SetupFailed(f"the set-up command {command!r} failed ({how}){hint}: {tail}", command=command, exit_code=result.exit_code)


def _network_seen(log: bytes) -> bool:
    """Whether a log shows no sign of a missing network."""
    signs = (b"Temporary failure in name resolution", b"Name or service not known", b"EAI_AGAIN", b"Network is unreachable")
    return not any(sign in log for sign in signs)


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


def _with_layer(plain: EnvironmentSpec, policy: Policy, place: _Place) -> EnvironmentSpec:
    modules: list[str] = json.loads(place.done.read_text())["node_modules"]
    kept = tuple(Mount(place.folder / "node_modules" / m, f"/workspace/{m.removeprefix('./')}") for m in modules)
    network = policy.environment.setup_network
    notes = [f"set-up ran once, from the base's lock files (layer {place.folder.name[:12]})"]
    if network != "none":
        hosts = "" if network == "registries" else f"; the list {', '.join(network)} was not enforced"
        notes.append(f"the set-up step shared the host's network{hosts}; agents and suites have none")
    return replace(
        plain,
        read_only=plain.read_only if place.local else (*plain.read_only, Mount(place.folder, LAYER)),
        inner=() if place.local else kept,
        env={**place.env, **plain.env},
        path=place.path,
        notes=tuple(notes),
        key=place.folder.name,
    )
