"""The pages name all that there is."""

from __future__ import annotations

import re
from pathlib import Path

import capataz
from capataz import coding
from capataz.contracts import errors, events, faults
from docs.generate import ROOT
from docs.pages import policy
from docs.pages.cli import commands, flags

DOCS = ROOT / "docs"


def text(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def test_each_name_of_the_authoring_surface_is_explained() -> None:
    page = text("how-to/write-a-program.md")
    missing = [name for name in capataz.__all__ if not re.search(rf"`[^`]*\b{name}\b[^`]*`", page)]
    assert not missing
    verbs = {name for name in coding.__all__ if name not in {"Check", "binding", "fast_suites", "plan_rules"}}
    assert not [name for name in verbs if f"`{name}`" not in page]


def test_each_verb_and_flag_is_in_the_reference() -> None:
    page = text("reference/cli.md")
    for name, command in commands().items():
        section = page.partition(f"## capataz {name}\n")[2].partition("\n## ")[0]
        assert section, name
        for flag in flags(command) - {"--help", "-h"}:
            assert f"`{flag}`" in section, (name, flag)


def test_each_error_event_and_fault_point_is_in_the_reference() -> None:
    codes = re.findall(r"^\| .*?`\w+` \| `(\w+)` \| (\d+) \|", text("reference/errors.md"), re.MULTILINE)
    assert dict(codes).keys() == {*errors._BY_CODE, "capataz_error"} - _others()
    assert dict(codes)["ask_declined"] == "2" and dict(codes)["cancelled"] == "130" and dict(codes)["script_error"] == "3"
    assert re.findall(r"^## ([\w.]+)$", text("reference/events.md"), re.MULTILINE) == list(events.TYPES)
    assert re.findall(r"^\| `([\w.]+)` \|", text("reference/fault-points.md"), re.MULTILINE) == list(faults.POINTS)


def _others() -> set[str]:
    """Codes of classes that other modules (of tests) define."""
    return {code for code, cls in errors._BY_CODE.items() if cls.__module__ != errors.__name__}


def test_defaults_of_the_policy_are_what_an_empty_file_gives() -> None:
    from capataz.evidence.policy import parse_policy

    shown = dict(re.findall(r"^\| `(\w+)` \| [^|]* \| (?:`(.+?)`|[^|]+) \|", policy.page(), re.MULTILINE))
    lines = [f"{name} = {shown[name]}" for name in ("memory", "pids", "disk", "command_timeout", "max_file")]
    given = parse_policy(("[limits]\n" + "\n".join(lines)).encode(), source="x", outside=True)
    assert given.limits == parse_policy(b"", source="x", outside=True).limits


def test_every_page_is_reached_from_the_index() -> None:
    index = text("README.md")
    reached = {(DOCS / target.partition("#")[0]).resolve() for target in re.findall(r"\]\(([^)]+)\)", index)}
    assert {path.resolve() for path in DOCS.rglob("*.md")} - {Path(DOCS / "README.md").resolve()} <= reached


def test_what_the_readme_calls_absent_is_absent() -> None:
    """A feature that arrives must leave the list."""
    said = " ".join(text("../README.md").partition("## What is not there yet")[2].partition("\n## ")[0].split())
    verbs = {
        "no service": "serve", "no HTTP API": "api", "no MCP": "mcp", "no static checker": "check", "no preview of a resume": "plan",
        "no fork": "fork", "no top-up": "topup", "no rebase": "rebase",
    }  # fmt: skip
    claimed = {verb for phrase, verb in verbs.items() if phrase in said}
    assert claimed & set(commands()) == set(), "README.md says that these are not there yet"
    assert {"state", "loop"} & set(capataz.__all__) == set() or "no persistent `state` and no `loop`" not in said
    for backend in ("gvisor", "container"):
        assert not (ROOT / "src" / "capataz" / "sandbox" / f"{backend}.py").exists() or f"`{backend}`" not in said
