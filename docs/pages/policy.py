"""``capataz.toml``: what each key means is written here, what keys there are and their defaults is read from the code.

A key that the parser takes and this page does not describe, or the other way round, is an error of the generator.
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from typing import Any

from docs.pages.markdown import code, document, duration, size, table


@dataclass(frozen=True)
class Key:
    """``shown``: how the default is written where the model's own value is no TOML."""

    kind: str
    meaning: str
    shown: str | None = None


@dataclass(frozen=True)
class Section:
    """``parser``: the function of ``evidence.policy`` that reads the table; ``model``: the record that has its defaults."""

    title: str
    parser: str
    model: str
    intro: str
    keys: dict[str, Key]


_SECTIONS = [
    Section("[environment]", "_environment", "Environment", "What the sandboxes of agents and suites contain.", {
        "stack": Key("text", "`python`, `node`, `go`, `rust`, `java`, `dotnet`, `ruby` or `custom`. A version, as in `node@22`, must "
                     "match what the sandbox has.", "detected"),
        "env": Key("table of texts", "Literal values of environment variables."),
        "setup": Key("list of commands", "Run once per lock files, stack and policy; the result is kept as a read-only layer under "
                     "the workspaces."),
        "setup_network": Key("text or list of hosts", "Network of the set-up commands alone: `none`, `registries`, or a list of hosts. "
                             "In this version anything but `none` gives these commands the host's network; the list of hosts is not "
                             "enforced. The evidence says so."),
        "read_only": Key("list of paths", "Further folders of the host, mounted read-only. Absolute paths; only in a file given with "
                         "`--policy`."),
    }),
    Section("[limits]", "_limits", "LimitsPolicy", "Limits of each sandbox and of the work.", {
        "memory": Key("size", "Resident memory of all processes of a sandbox together."),
        "pids": Key("number", "Processes and threads of a sandbox."),
        "disk": Key("size", "What a sandbox may write."),
        "command_timeout": Key("duration", "The longest that one command of an agent or of the set-up may take."),
        "max_file": Key("size", "The largest file that a worker may hand in; a larger one is refused as `file_too_large`."),
    }),
    Section("[suites.ID]", "_suite", "Suite", "A suite is a command that judges a candidate by its exit code. `ID` is up to 64 "
            "letters, digits, `.`, `_` and `-`. Without any `[suites]` table suites are detected.", {
        "command": Key("text", "Run by `sh` at the root of a fresh checkout of the candidate, in a fresh sandbox.", "required"),
        "required": Key("true or false", "Whether the candidate must pass it. At least one suite must be required."),
        "fast": Key("true or false", "Also run on a worker's own files when it says that it is done; failures go back to it, twice at most."),
        "timeout": Key("duration", "A suite that takes longer is killed and has failed."),
        "network": Key("text", "Only `none` is possible."),
        "test_edits": Key("text", "`add`: no test of the base may vanish or be skipped. `none`: files that match `protects` may not "
                          "change. `any`: no such check."),
        "protects": Key("list of globs", "The suite's test files. Used by `test_edits = \"none\"`, and where tests cannot be listed."),
    }),
    Section("[scopes]", "_scopes", "Scopes", "Files that agents may not touch.", {
        "protected": Key("list of globs", "No agent may write these."),
        "hidden": Key("list of globs", "Not even readable for agents."),
    }),
    Section("[publish]", "_publish", "Publish", "Where a promoted commit goes when the command line names no target.", {
        "branch": Key("text", "A branch of the run's own, for example `capataz/{run}`; `{run}` is the run's id.", "the checked-out branch"),
    }),
]

_ROOT = {
    "require_new_tests": Key("true or false", "A candidate that adds no test over the base fails with `new_tests_missing`."),
}

_MODELS = """## [models]

Names for models, as in [config.toml](config-toml.md#models). A file in the repository may only set aliases
(`review = "openai/gpt-5-mini"`) for models that the person has: an endpoint decides where a key is sent, and a price decides what a
budget is worth. A file given with `--policy` may set endpoints and prices too."""

_PROMPTS = """## [prompts]

Templates by the names that `capataz prompts` lists, in the place of the bundled ones. Only a file given with `--policy`, or
`config.toml`, may have them: a repository may say how it is built, not what agents are told."""

_ELSEWHERE = {"models", "prompts"}

_GLOBS = """## Globs

Paths are bytes, case-sensitive, anchored at the root of the repository. `*`, `?` and `[...]` do not cross `/`; `**` does. There
is no negation and there are no braces. `src/*.py` is the files directly in `src`; `src/**` is everything below it."""

_UNITS = """## Units

Durations: `90s`, `10m`, `1h30m`, or a number of seconds. Sizes: `512MiB`, `2GiB`, `500MB`, or a number of bytes."""


def page() -> str:
    """The whole page. Raises ``ValueError`` when the code knows other keys than this page."""
    from capataz.contracts.policy import Policy
    parts = [_section(section) for section in _SECTIONS]
    _same("the file's top level", {*_tables(), *_ROOT, *_ELSEWHERE}, set(_accepted("parse_policy")))
    return document(
        "capataz.toml",
        "The policy of a repository: a file at its root, read from the commit that a job starts from, or a file from outside "
        "given with `--policy`. It is resolved once when a run starts and pinned with it. Every key may be left out. A mistake "
        "is an `invalid_policy` error that names the file and the key. How to use it: [policy files](../how-to/policy-files.md).",
        "## Top level\n\n" + _keys(_ROOT, Policy()),
        _MODELS,
        _PROMPTS,
        *parts,
        _GLOBS,
        _UNITS,
    )


def _tables() -> set[str]:
    return {section.title.strip("[]").partition(".")[0] for section in _SECTIONS}


def _section(section: Section) -> str:
    from capataz.contracts import policy

    _same(section.title, set(section.keys), set(_accepted(section.parser)))
    model = getattr(policy, section.model)
    defaults = model(id="x", command="x") if section.model == "Suite" else model()
    return f"## {section.title}\n\n{section.intro}\n\n{_keys(section.keys, defaults)}"


def _keys(keys: dict[str, Key], defaults: Any) -> str:
    rows = [[code(name), key.kind, key.shown or code(_shown(key, getattr(defaults, name))), key.meaning] for name, key in keys.items()]
    return table(["key", "type", "default", "meaning"], rows)


def _shown(key: Key, value: Any) -> str:
    if key.kind == "duration":
        return f'"{duration(value)}"'
    if key.kind == "size":
        return f'"{size(value)}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{}"
    if isinstance(value, list):
        return "[" + ", ".join(f'"{item}"' for item in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _accepted(function: str) -> list[str]:
    """The keys of the ``only((...))`` call in a function of the parser: what it takes, by its own words."""
    from capataz.evidence import policy

    tree = ast.parse(inspect.getsource(getattr(policy, function)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "only":
            keys = node.args[0]
            assert isinstance(keys, ast.Tuple)
            return [e.value for e in keys.elts if isinstance(e, ast.Constant)]
    raise ValueError(f"docs/pages/policy.py: {function} of capataz.evidence.policy names no keys")


def _same(place: str, described: set[str], accepted: set[str]) -> None:
    if described != accepted:
        raise ValueError(
            f"docs/pages/policy.py: {place}: not described: {', '.join(sorted(accepted - described)) or 'none'}; "
            f"described but unknown to the parser: {', '.join(sorted(described - accepted)) or 'none'}"
        )
