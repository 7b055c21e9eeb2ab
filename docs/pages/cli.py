"""The command line's reference, from the Typer application itself and not from its help text, which wraps at the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from docs.pages.markdown import code, document, table


def commands() -> dict[str, Any]:
    """Every verb by its words (``do``, ``db start``), in the order of ``capataz --help``."""
    return dict(_walk(_root(), ""))


def flags(command: Any) -> set[str]:
    """All spellings of a verb's options, ``--help`` included."""
    return {"--help", "-h", *(o for p in command.params if _is_option(p) for o in (*p.opts, *p.secondary_opts))}


def root_flags() -> set[str]:
    return flags(_root()) | {"--debug"}        # taken out before Typer sees the arguments


def _root() -> Any:
    import typer

    from capataz.cli.verbs import app

    return typer.main.get_command(app)


def _walk(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _walk(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def page() -> str:
    """The whole page."""
    found = commands()
    rows = [[f"[{code('capataz ' + name)}](#capataz-{_anchor(name)})", _first(command.help)] for name, command in found.items()]
    return document(
        "Command line",
        "Every verb takes `--help`. With `--json` a verb prints one JSON object on stdout (streams: one a line) and nothing "
        "else; what people read goes to stderr. `--debug`, anywhere, shows the traceback of an error. Ids are printed by "
        "`capataz ps` and `capataz asks`.",
        f"{code('capataz --version')} prints the version. Exit codes are on the page of [errors and exit codes](errors.md); "
        "variables of the environment and `config.toml` on the page of [settings](config-toml.md).",
        table(["verb", "what it does"], rows),
        *(_verb(name, command) for name, command in found.items()),
    )


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def _verb(name: str, command: Any) -> str:
    arguments = [p for p in command.params if not _is_option(p)]
    options = [p for p in command.params if _is_option(p)]
    parts = [f"## capataz {name}", command.help.strip(), f"```sh\n{_usage(name, arguments, options)}\n```"]
    if arguments:
        parts.append(table(["argument", "meaning"], [[code(_plain(p)), p.help or ""] for p in arguments]))
    if options:
        parts.append(table(["option", "default", "meaning"], [_option(p) for p in options]))
    parts.append(_examples(command.epilog))
    return "\n\n".join(part for part in parts if part)


def _usage(name: str, arguments: list[Any], options: list[Any]) -> str:
    words = [_plain(p) if p.required else f"[{_plain(p)}]" for p in arguments]
    return " ".join(["capataz", name, *words, *(["[OPTIONS]"] if options else [])])


def _plain(parameter: Any) -> str:
    return (parameter.metavar or parameter.name.upper()).strip("[]")


def _option(parameter: Any) -> list[str]:
    spelled = ", ".join(code(o) for o in sorted(parameter.opts, key=len))
    value = "" if parameter.is_flag else f" {code(parameter.metavar or _number(parameter))}"
    again = ", may be repeated" if parameter.multiple else ""
    return [spelled + value + again, _default(parameter), parameter.help or ""]


def _number(parameter: Any) -> str:
    """The range of a number, as ``1..4``; open where there is no bound."""
    if parameter.min is None and parameter.max is None:
        return parameter.name.upper()
    return f"{'' if parameter.min is None else parameter.min}..{'' if parameter.max is None else parameter.max}"


def _default(parameter: Any) -> str:
    return "" if parameter.is_flag or parameter.default in (None, ()) else code(parameter.default)


def _examples(epilog: str | None) -> str:
    lines = [line.strip() for line in (epilog or "").replace("\b", "").splitlines()]
    shown = [line for line in lines if line and line != "Examples:"]
    return "```sh\n" + "\n".join(shown) + "\n```" if shown else ""


def _is_option(parameter: Any) -> bool:
    return bool(parameter.opts) and parameter.opts[0].startswith("-")


def _first(text: str) -> str:
    return text.strip().partition("\n")[0]
