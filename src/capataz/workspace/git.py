"""The one place that starts git: a named GIT_DIR, a clean environment, no configuration but ours, nothing executed.

A repository can make git run programs by hooks, filters, diff and merge drivers, monitors, credential helpers and lazy
fetches. None of them can start here: processes work in a GIT_DIR of our own, whose ``info/attributes`` overrules the
tree's attributes, or (refs only) in the source's with the command-line scope of configuration set over its own.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from capataz.contracts.errors import GitFailed, RepositoryUnusable

MINIMUM: tuple[int, int] = (2, 38)
TIMEOUT_S = 600.0

_CONFIG = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.attributesFile": os.devnull,
    "core.excludesFile": os.devnull,
    "core.untrackedCache": "false",
    "core.autocrlf": "false",
    "core.eol": "lf",
    "core.ignoreCase": "false",
    "core.precomposeUnicode": "false",
    "core.quotePath": "true",
    "core.commitGraph": "false",
    "core.pager": "cat",
    "core.askPass": "",
    "core.sshCommand": "false",
    "credential.helper": "",
    "diff.external": "",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "protocol.allow": "never",
    "fetch.recurseSubmodules": "false",
    "submodule.recurse": "false",
    "index.version": "2",
    "merge.renames": "true",
    "merge.renameLimit": "30000",
    "merge.renormalize": "false",
    "commit.gpgSign": "false",
    "log.showSignature": "false",
}

_IDENTITY = {
    "GIT_AUTHOR_NAME": "Capataz",
    "GIT_AUTHOR_EMAIL": "capataz@localhost",
    "GIT_COMMITTER_NAME": "Capataz",
    "GIT_COMMITTER_EMAIL": "capataz@localhost",
}

# Attributes of the tree (filters, drivers, line ends) are overruled: info/attributes has the last word, "!" is "unspecified".
NEUTRAL_ATTRIBUTES = b"* !text !eol !crlf !filter !ident !working-tree-encoding !merge !diff !conflict-marker-size !whitespace\n"


def _base_environment(extra_config: Mapping[str, str]) -> dict[str, str]:
    config = {**_CONFIG, **extra_config}
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "TZ": "UTC",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_ALLOW_PROTOCOL": "",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_PAGER": "cat",
        "GIT_EDITOR": "false",
        "GIT_ASKPASS": "false",
        "GIT_CONFIG_COUNT": str(len(config)),
        **_IDENTITY,
    }
    for number, (key, value) in enumerate(config.items()):
        env[f"GIT_CONFIG_KEY_{number}"] = key
        env[f"GIT_CONFIG_VALUE_{number}"] = value
    return env


@dataclass(frozen=True, slots=True)
class GitResult:
    code: int
    stdout: bytes
    stderr: bytes

    def words(self) -> str:
        """Git's own complaint on one line."""
        return " ".join(self.stderr.decode("utf-8", "replace").split())[:800] or f"exit code {self.code}"


@dataclass(frozen=True, slots=True)
class Git:
    """Git over one GIT_DIR. ``run`` gives the result whatever the exit code; ``out`` raises ``GitFailed`` unless it is 0."""

    git_dir: Path
    extra_env: Mapping[str, str] = field(default_factory=dict[str, str])
    extra_config: Mapping[str, str] = field(default_factory=dict[str, str])

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        return {**_base_environment(self.extra_config), "GIT_DIR": str(self.git_dir), **self.extra_env, **(extra or {})}

    def run(
        self,
        *args: str | bytes,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> GitResult:
        """Runs to the end, at most ``timeout_s`` seconds. Blocks: call it from a thread."""
        return self._run(args, {"input": stdin}, env, timeout_s)

    def run_from(self, stdin: IO[bytes], *args: str | bytes, timeout_s: float = TIMEOUT_S) -> GitResult:
        """As ``run``, with an open file as input."""
        return self._run(args, {"stdin": stdin}, None, timeout_s)

    def _run(self, args: Sequence[str | bytes], source: dict[str, Any], env: Mapping[str, str] | None, timeout_s: float) -> GitResult:
        try:
            done = subprocess.run(
                ["git", *args],
                capture_output=True,
                env=self.environment(env),
                cwd=self.git_dir,                  # never a folder of hostile files
                timeout=timeout_s,
                check=False,
                process_group=0,                   # a Ctrl-C at the terminal is ours to act on, not git's
                **source,
            )
        except FileNotFoundError:
            raise _missing(self.git_dir) from None
        except PermissionError:
            raise RepositoryUnusable(f"{self.git_dir}: this user may not enter the repository") from None
        except subprocess.TimeoutExpired:
            raise GitFailed(f"git {_verb(args)} did not end within {timeout_s:.0f} s", retryable=True) from None
        return GitResult(done.returncode, done.stdout, done.stderr)

    def out(self, *args: str | bytes, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> bytes:
        result = self.run(*args, stdin=stdin, env=env)
        if result.code != 0:
            raise GitFailed(f"git {_verb(args)} failed: {result.words()}")
        return result.stdout

    def popen(self, *args: str) -> subprocess.Popen[bytes]:
        """A long-lived process with both pipes; it ends when our end of its stdin closes, thus also with this process."""
        return subprocess.Popen(
            ["git", *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self.environment(),
            cwd=self.git_dir,
            process_group=0,
        )

    def stream(self, stdin: IO[bytes], *args: str) -> subprocess.Popen[bytes]:
        """A process that reads a file and whose output is read while it runs; the caller ends it."""
        return subprocess.Popen(
            ["git", *args],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self.environment(),
            cwd=self.git_dir,
            bufsize=1 << 20,
            process_group=0,
        )


def _verb(args: Sequence[str | bytes]) -> str:
    first = args[0] if args else ""
    return first.decode("ascii", "replace") if isinstance(first, bytes) else first


def _missing(folder: Path) -> RepositoryUnusable:
    if not folder.is_dir():
        return RepositoryUnusable(f"{folder}: the repository is gone")
    return RepositoryUnusable("git is not installed; Capataz needs git 2.38 or newer")


@lru_cache(maxsize=1)
def check_version() -> tuple[int, int]:
    """The version of git on PATH. Raises ``RepositoryUnusable`` when it is missing or too old."""
    text = Git(Path("/")).out("version").decode("ascii", "replace")
    match = re.search(r"(\d+)\.(\d+)", text)
    found: tuple[int, int] = (int(match[1]), int(match[2])) if match else (0, 0)
    if found < MINIMUM:
        raise RepositoryUnusable(f"git {found[0]}.{found[1]} is too old; Capataz needs git 2.38 or newer")
    return found
