"""Prompts: Markdown files in ``prompts/``, rendered by Jinja2 in strict mode.

A job carries the templates that it started with (``CodingJob.prompts``), so an upgrade or an edited override never changes
what a resumed run asks. Text of a repository, a tool or another agent reaches a prompt only through ``block``.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from capataz.contracts.canonical import to_json
from capataz.contracts.errors import UsageError

LIBRARY = (
    "ralph", "research_planner", "research_reader", "research_writer", "goal", "goal_review", "experiment", "heartbeat", "release",
)  # fmt: skip
NAMES = ("planner", "repair_planner", "worker", "reducer", "verifier", "refuter", *LIBRARY)


def bundled() -> dict[str, str]:
    """Name to template text of every bundled prompt."""
    folder = files("capataz.programs") / "prompts"
    return {name: (folder / f"{name}.md").read_text(encoding="utf-8") for name in NAMES}


def resolve(overrides: dict[str, str]) -> dict[str, str]:
    """The bundled prompts with a project's own on top. Raises ``UsageError`` for an unknown name or a template that fails."""
    for name, text in overrides.items():
        if name not in NAMES:
            raise UsageError(f"no prompt is named {name!r}; `capataz prompts` lists them")
        _compile(name, text)
    return {**bundled(), **overrides}


def render(prompts: dict[str, str], name: str, **values: Any) -> str:
    """One prompt as text. Raises ``UsageError`` when the template names something that it is not given."""
    from jinja2 import TemplateError

    text = prompts.get(name) or bundled()[name]
    try:
        return _compile(name, text).render(**values).strip() + "\n"
    except TemplateError as error:
        raise UsageError(f"prompt {name!r} cannot be rendered: {error}") from error


def block(name: str, value: Any) -> str:
    """``value`` as a delimited block of JSON: data, never instructions. The value cannot close the block."""
    body = json.dumps(to_json(value), ensure_ascii=False, indent=1, sort_keys=True).replace("<", "\\u003c")
    return f"<data name={json.dumps(name)}>\n{body}\n</data>"


def _compile(name: str, text: str) -> Any:
    from jinja2 import StrictUndefined, TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True)
    environment.filters["block"] = lambda value, label: block(label, value)
    try:
        return environment.from_string(text)
    except TemplateError as error:
        raise UsageError(f"prompt {name!r} is no valid template: {error}") from error
