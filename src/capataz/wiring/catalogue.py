"""What this installation offers: programs, models, prompts. Nothing of a program is run to list it."""

from __future__ import annotations

import ast
from importlib import metadata, resources
from typing import Any

from capataz.wiring.config import load_config

GROUP = "capataz.programs"


async def programs() -> list[dict[str, Any]]:
    """``[{"name", "source", "summary"}]``: the bundled ones, then those of installed packages."""
    bundled = [{"name": name, "source": "bundled", "summary": summary} for name, summary in _bundled()]
    names = {row["name"] for row in bundled}
    found = [e for e in metadata.entry_points(group=GROUP) if e.name not in names]
    return bundled + [{"name": e.name, "source": "entry point", "summary": e.value} for e in sorted(found, key=lambda e: e.name)]


def _bundled() -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for file in sorted(resources.files("capataz.programs").iterdir(), key=lambda f: f.name):
        if file.name.endswith(".py"):
            rows += _programs_in(file.read_text("utf-8"))
    return rows


def _programs_in(source: str) -> list[tuple[str, str]]:
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.AsyncFunctionDef)]
    return [(f.name, (ast.get_docstring(f) or "").partition("\n")[0]) for f in functions if any(_is_program(d) for d in f.decorator_list)]


def _is_program(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (isinstance(target, ast.Name) and target.id == "program") or (isinstance(target, ast.Attribute) and target.attr == "program")


async def models() -> list[dict[str, Any]]:
    from capataz.agents.models import ModelsConfig

    return [_model_row(row) for row in ModelsConfig(load_config().settings.get("models")).list_models()]


def _model_row(row: Any) -> dict[str, Any]:
    price = row.price
    return {
        "model": row.model or f"{row.provider}/*", "aliases": list(row.aliases), "usable": row.usable, "why": row.reason,
        "input_usd_per_mtok": str(price.input) if price is not None else None,
        "output_usd_per_mtok": str(price.output) if price is not None else None,
        "window": row.window_tokens or None,
    }


async def prompts() -> list[dict[str, Any]]:
    folder = resources.files("capataz.programs") / "prompts"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".md")), key=lambda f: f.name)
    return [{"name": f.name.removesuffix(".md"), "source": "bundled", "text": f.read_text("utf-8")} for f in files]
