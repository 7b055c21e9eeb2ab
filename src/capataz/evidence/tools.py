"""Which tools a sandbox of this host has, and in which version: part of a layer's key and of the evidence."""

from __future__ import annotations

import re

from capataz.contracts.errors import SandboxUnavailable
from capataz.contracts.policy import Policy
from capataz.contracts.sandbox import Sandbox, SandboxSpec

_COMMANDS: dict[str, dict[str, str]] = {
    "python": {"python3": "python3 --version"},
    "node": {"node": "node --version", "npm": "npm --version"},
    "go": {"go": "go version"},
    "rust": {"cargo": "cargo --version", "rustc": "rustc --version"},
    "java": {"java": "java -version", "mvn": "mvn -v"},
    "dotnet": {"dotnet": "dotnet --version"},
    "ruby": {"ruby": "ruby --version", "bundle": "bundle --version"},
}
_JS = re.compile(r"\b(?:node|npm|npx|yarn|pnpm|jest|vitest)\b")
_PYTHON = re.compile(r"\b(?:python3?|pytest|pip|tox|nox)\b")


class Tools:
    """Asks each sandbox once in the life of this object."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], dict[str, str]] = {}

    async def of(self, sandbox: Sandbox, policy: Policy) -> dict[str, str]:
        """Tool name -> first line of its version. Raises ``SandboxUnavailable`` when the stack's own tool is missing."""
        stacks = _stacks(policy)
        tools: dict[str, str] = {}
        for stack in stacks:
            tools |= await self._stack(sandbox, policy, stack)
        _check(policy, tools)
        return tools

    async def _stack(self, sandbox: Sandbox, policy: Policy, stack: str) -> dict[str, str]:
        key = (sandbox.name, stack, policy.environment.env.get("PATH", ""))
        if key not in self._known:
            self._known[key] = await _ask(sandbox, policy, stack)
        return self._known[key]


def _stacks(policy: Policy) -> list[str]:
    text = " ".join(s.command for s in policy.suites)
    found = [(policy.environment.stack or "custom").partition("@")[0]]
    found += ["node"] if _JS.search(text) else []
    found += ["python"] if _PYTHON.search(text) else []
    return [s for s in dict.fromkeys(found) if s in _COMMANDS]


async def _ask(sandbox: Sandbox, policy: Policy, stack: str) -> dict[str, str]:
    names = _COMMANDS[stack]
    script = "; ".join(f"printf '%s\\t%s\\n' {name} \"$({command} 2>&1 | head -n 1)\"" for name, command in names.items())
    session = await sandbox.start(SandboxSpec(workspace=None, env=dict(policy.environment.env), purpose="suite"))
    try:
        result = await session.run(("/bin/sh", "-c", script), cwd="/", timeout_s=60)
    finally:
        await session.kill()
    lines = [line.partition("\t") for line in result.stdout.decode("utf-8", "replace").splitlines()]
    return {name: version.strip()[:200] for name, _, version in lines if name in names and _is_version(version)}


def _is_version(text: str) -> bool:
    """Not the shell's own answer for a command that is missing."""
    return bool(re.search(r"\d", text)) and "not found" not in text


def _check(policy: Policy, tools: dict[str, str]) -> None:
    """The stack's tool must be there when set-up, a pinned version or a detected suite relies on it."""
    stack, at, wanted = (policy.environment.stack or "custom").partition("@")
    if stack not in _COMMANDS:
        return
    tool = next(iter(_COMMANDS[stack]))
    relied = bool(policy.environment.setup or at or any(s.detected for s in policy.suites))
    if relied and tool not in tools:
        raise SandboxUnavailable(
            f"stack {stack}: the sandbox has no `{tool}`; install it on this host, or set another environment.stack"
        )
    numbers = re.search(r"\d+(?:\.\d+)*", tools.get(tool, ""))
    if at and not (numbers and (numbers[0] + ".").startswith(wanted + ".")):
        raise SandboxUnavailable(
            f"stack {policy.environment.stack}: this host has {tools[tool]}; install {tool} {wanted}, or change environment.stack"
        )
