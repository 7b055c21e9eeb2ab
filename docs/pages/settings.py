"""``config.toml`` of an installation and the variables of the environment."""

from __future__ import annotations

import re
from pathlib import Path

import capataz
from docs.pages.markdown import code, document, duration, table

_ENDPOINT = {
    "base_url": ("text", "Where the endpoint is. Needed unless the name is a built-in one."),
    "api": ("text", "The language it speaks: {apis}. Default `openai-chat`."),
    "api_key_env": ("text or list", "The variable that holds the key; of several, the first that is set counts."),
    "api_key_command": ("text or list", "A command that prints the key: for vaults and for tokens that expire. Run in the worker, never in a sandbox."),
    "prices": ("table", "`{ input = 1.25, output = 10, cached = 0.125 }` in dollars for a million tokens, or such a table by model id."),
    "headers": ("table", "Further HTTP headers. Their values are treated as secrets."),
    "options": ("table", "Further fields of each request body."),
    "stall": ("duration", "Silence after which an answer counts as lost and is asked for again. Default `\"{stall}\"`."),
    "models": ("list", "Model ids for `capataz models` to list. With one, the endpoint's name alone means that model."),
    "window": ("number", "The context window in tokens, where it is not known by itself."),
}

_COMMAND = {
    "preset": ("text", "A known program: {presets}. Default: the table's name, if it is one of them."),
    "install": ("path", "A folder with the program in `bin` or `node_modules/.bin`, mounted read-only. Without it the program must be on the "
                "sandbox's own `PATH`."),
    "argv": ("list", "The command line. May hold placeholders: {placeholders}."),
    "prompt": ("text", "`stdin`, or `argument`: in `argv` by a placeholder. Default `\"stdin\"`."),
    "env": ("table", "Variables of the environment; placeholders as above."),
    "files": ("table", "Files to write before it starts: path below `{home}` to text, placeholders as above."),
    "mounts": ("list", "Further folders of the host, mounted read-only at the same path."),
    "timeout": ("duration", "The longest that it may run. Default `\"{timeout}\"`."),
    "last_message": ("text", "`stdout`, or `file`: it writes `{message_file}`. Default `\"stdout\"`."),
}

_VARIABLES = {
    "CAPATAZ_HOME": "Folder of the embedded database, blobs, workspaces and `config.toml`. Default: `capataz` in the user's data folder "
                    "(`$XDG_DATA_HOME`, else `~/.local/share`).",
    "CAPATAZ_DATABASE_URL": "A PostgreSQL of yours, version 15 or newer, instead of the embedded one.",
    "CAPATAZ_BLOB_URL": "Where large values are kept: a folder or an fsspec URL such as `s3://bucket/prefix`. Default: below `CAPATAZ_HOME`.",
    "CAPATAZ_DEBUG": "Any value: errors show their traceback, as with `--debug`.",
    "CAPATAZ_CALL_KEY": "Set for a function with `@tool`, not by you: the same for a call and its repetition after a crash.",
    "CAPATAZ_FAULT": "Kills the process at a [fault point](fault-points.md).",
    "CAPATAZ_FAULT_LOG": "A file to which each fault point that is reached appends its name.",
    "CAPATAZ_SCRIPT_LOG": "A file to which each call of a scripted model appends one line of JSON.",
}

_INTERNAL = {"CAPATAZ_MODEL_KEY", "CAPATAZ_TEST_REPORTS", "CAPATAZ_TEST_ROOT", "CAPATAZ_LOCAL_SESSION", "CAPATAZ_CONFORMANCE_SECRET"}
"""Set by the runtime for its own children; not for people."""

_EXAMPLE = """```toml
[models]
default = "openai/gpt-5-mini"          # what a job uses when no --model is given
fast = "openai/gpt-5-mini"             # aliases: capataz do "..." --model fast
strong = "anthropic/claude-sonnet-4-5"

[models.local]                         # an endpoint of your own: --model local/qwen3-coder
base_url = "http://127.0.0.1:8000/v1"
models = ["qwen3-coder"]
prices = { input = 0, output = 0 }
```"""


def page() -> str:
    """The whole page. Raises ``ValueError`` when the code knows other keys or variables than this page."""
    from capataz.agents import endpoint_tables
    from capataz.agents.endpoint_tables import BUILT_IN
    from capataz.agents.providers.endpoint import EXTRAS, STALL_S
    from capataz.vm.watchdog import BUSY_S

    _same("[models.NAME]", set(_ENDPOINT), set(endpoint_tables._KEYS))  # pyright: ignore[reportPrivateUsage]
    _same("variables", set(_VARIABLES) | _INTERNAL, _variables_in_code())
    fill = {"apis": ", ".join(code(api) for api in EXTRAS), "stall": duration(STALL_S)}
    keys = [[code(name), kind, _filled(meaning, fill)] for name, (kind, meaning) in _ENDPOINT.items()]
    known = [[code(name), " or ".join(map(code, t.endpoint.key_env)), _extra(t.endpoint.api)] for name, t in BUILT_IN.items() if t.endpoint.key_env]
    return document(
        "Settings: config.toml and the environment",
        "`config.toml` lies in `CAPATAZ_HOME` and belongs to the person who runs Capataz. It names models and coding-agent programs; a file in a "
        "repository can only give names to those models, since an endpoint decides where your key is sent. A mistake is one line and exit code 64.",
        _EXAMPLE,
        "## [models]",
        "A text is an alias: a name for `provider/id` or for another alias. `default` is used when nothing else names a model. "
        "`fast`, `strong` and `review` may be used by programs even when they are not set; they mean the run's model then. "
        "`scripted:FILE.py` names a [scripted model](../tutorial/first-job.md#see-it-work-first).",
        "These providers need no table, only the extra and the key:",
        table(["provider", "key", "extra"], known),
        "## [models.NAME]",
        "A table is an endpoint, or changes a built-in one. [How to use an OpenAI-compatible endpoint](../how-to/openai-compatible-endpoints.md).",
        table(["key", "type", "meaning"], keys),
        "Prices of known models come with the package `genai-prices`. With `--budget-usd`, a model without a price is refused "
        "(`unknown_price`) before its first call.",
        "## [commands.NAME]",
        "A coding-agent program for `run(..., harness=\"command:NAME\")`. "
        "[How to use one](../how-to/coding-agent-programs.md).",
        table(["key", "type", "meaning"], _commands()),
        "## [programs]",
        "`busy_s`: seconds of processor time that a program may take without an `await` that reaches the runtime, before its run fails with "
        f"the line. Default {BUSY_S:g}. "
        "[Why](../how-to/write-a-program.md#programs-that-you-did-not-write).",
        "## Variables of the environment",
        table(["variable", "meaning"], [[code(name), meaning] for name, meaning in _VARIABLES.items()]),
        "Keys of providers are read from the worker's environment when a call needs them. They never enter a sandbox, a "
        "program process, the journal or an event.",
    )


def _commands() -> list[list[str]]:
    from capataz.agents.command import programs

    _same("[commands.NAME]", set(_COMMAND), set(programs._KEYS))  # pyright: ignore[reportPrivateUsage]
    fill = {
        "presets": ", ".join(code(name) for name in programs.PRESETS),
        "placeholders": ", ".join(code(text) for text in programs.PLACEHOLDERS),
        "timeout": duration(programs.CommandSpec.__dataclass_fields__["timeout_s"].default),
    }
    return [[code(name), kind, _filled(meaning, fill)] for name, (kind, meaning) in _COMMAND.items()]


def _extra(api: str) -> str:
    from capataz.agents.providers.endpoint import EXTRAS

    return code(f"capataz[{EXTRAS[api][1]}]")  # type: ignore[index]


def _filled(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text


def _variables_in_code() -> set[str]:
    sources = sorted(Path(capataz.__file__).parent.rglob("*.py"))
    return {name for file in sources for name in re.findall(r"\bCAPATAZ_[A-Z_]+\b", file.read_text("utf-8"))}


def _same(place: str, described: set[str], known: set[str]) -> None:
    if described != known:
        raise ValueError(
            f"docs/pages/settings.py: {place}: not described: {', '.join(sorted(known - described)) or 'none'}; "
            f"described but unknown to the code: {', '.join(sorted(described - known)) or 'none'}"
        )
