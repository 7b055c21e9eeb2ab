"""Coding-agent programs: how each is started, where it finds the proxy, where its last message is.

``[commands.NAME]`` of ``config.toml`` describes a program, or names a preset and says where it is installed:

    [commands.pi]
    preset = "pi"
    install = "/opt/pi"            # npm install --prefix /opt/pi @mariozechner/pi-coding-agent
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, cast

from capataz.contracts.canonical import JsonValue, digest
from capataz.contracts.errors import UsageError
from capataz.contracts.sandbox import Mount
from capataz.contracts.units import seconds

PLACEHOLDERS = ("{model}", "{base_url}", "{prompt}", "{prompt_file}", "{message_file}", "{home}", "{key}")
DUMMY_KEY = "capataz-inside-the-sandbox"
_KEYS = ("preset", "install", "argv", "prompt", "env", "files", "mounts", "timeout", "last_message")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec:
    """Texts may hold placeholders: ``{model}`` the model's name, ``{base_url}`` the proxy's root (OpenAI programs add
    ``/v1``), ``{key}`` a dummy key, ``{prompt}``, ``{prompt_file}``, ``{home}`` a private folder, ``{message_file}`` where
    the program is to write its last message (``last_message = "file"``)."""

    name: str
    argv: tuple[str, ...]
    prompt: Literal["stdin", "argument"] = "stdin"       # argument: in argv by a placeholder
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, str] = field(default_factory=dict[str, str])   # path below {home} -> text
    mounts: tuple[Mount, ...] = ()                       # the installation, read-only
    last_message: Literal["stdout", "file"] = "stdout"
    timeout_s: float = 3600.0

    def identity(self) -> JsonValue:
        """What of the program is part of an agent's key."""
        return {"command": self.name, "argv": digest([list(self.argv), dict(self.env), dict(self.files)])}


def _config(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1)


_PI_MODELS = _config({"providers": {"capataz": {
    "baseUrl": "{base_url}/v1", "api": "openai-completions", "apiKey": "{key}",
    "compat": {"supportsDeveloperRole": False, "supportsReasoningEffort": False},
    "models": [{"id": "{model}", "name": "{model}", "contextWindow": 128000, "maxTokens": 8192}],
}}})  # fmt: skip
_OPENCODE = _config({
    "autoupdate": False, "share": "disabled", "permission": {"*": "allow"}, "model": "capataz/{model}", "small_model": "capataz/{model}",
    "enabled_providers": ["capataz"],
    "provider": {"capataz": {
        "npm": "@ai-sdk/openai-compatible", "options": {"baseURL": "{base_url}/v1", "apiKey": "{key}"},
        "models": {"{model}": {"name": "{model}", "limit": {"context": 128000, "output": 8192}}},
    }},
})  # fmt: skip
_CODEX = """model = "{model}"
model_provider = "capataz"
check_for_update_on_startup = false
[model_providers.capataz]
name = "capataz"
base_url = "{base_url}/v1"
env_key = "CAPATAZ_MODEL_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 2
[analytics]
enabled = false
"""

PRESETS: dict[str, CommandSpec] = {
    "pi": CommandSpec(
        name="pi",
        argv=("pi", "--offline", "--no-session", "--no-extensions", "--no-skills", "--no-prompt-templates", "--no-themes", "--no-context-files",
              "--provider", "capataz", "--model", "{model}", "-p", "@{prompt_file}"),
        prompt="argument",
        env={"PI_OFFLINE": "1", "PI_TELEMETRY": "0", "PI_CODING_AGENT_DIR": "{home}/.pi/agent"},
        files={".pi/agent/models.json": _PI_MODELS},
    ),
    "opencode": CommandSpec(
        name="opencode",
        argv=("opencode", "run", "--model", "capataz/{model}", "--title", "task"),
        env={"OPENCODE_CONFIG": "{home}/opencode.json", "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1",
             "OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1"},
        files={"opencode.json": _OPENCODE},
    ),
    "codex": CommandSpec(
        name="codex",
        # The sandbox around it is ours: its own would need namespaces that ours refuses.
        argv=("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--color", "never",
              "--output-last-message", "{message_file}", "-"),
        env={"CODEX_HOME": "{home}/.codex", "CAPATAZ_MODEL_KEY": "{key}"},
        files={".codex/config.toml": _CODEX},
        last_message="file",
    ),
    "claude": CommandSpec(
        name="claude",
        argv=("claude", "-p", "--model", "{model}", "--output-format", "text", "--dangerously-skip-permissions"),
        env={"ANTHROPIC_BASE_URL": "{base_url}", "ANTHROPIC_API_KEY": "{key}", "CLAUDE_CONFIG_DIR": "{home}/.claude", "IS_SANDBOX": "1",
             "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1", "ANTHROPIC_SMALL_FAST_MODEL": "{model}"},
    ),
}  # fmt: skip


def read_command(name: str, value: Any) -> CommandSpec:
    """``[commands.NAME]``. Raises ``UsageError`` in one line."""
    place = f"[commands.{name}]"
    if not isinstance(value, Mapping):
        raise UsageError(f"{place} must be a table")
    table = cast("Mapping[str, Any]", value)
    for key in table:
        if key not in _KEYS:
            close = get_close_matches(key, _KEYS, n=1)
            raise UsageError(f"{place}: unknown key {key!r}" + (f"; did you mean {close[0]}?" if close else ""))
    spec = replace(_base(name, table, place), name=name)
    if "timeout" in table:
        spec = replace(spec, timeout_s=seconds(table["timeout"]))
    mounts = tuple(Mount(_folder(path, place), str(path)) for path in _list(table, "mounts", place))
    return _installed(replace(spec, mounts=mounts), table, place)


def _base(name: str, table: Mapping[str, Any], place: str) -> CommandSpec:
    preset = table.get("preset", name if name in PRESETS and "argv" not in table else None)
    if preset is not None and preset not in PRESETS:
        raise UsageError(f"{place}: unknown preset {preset!r}; known are {', '.join(PRESETS)}")
    spec = PRESETS[preset] if preset is not None else CommandSpec(name=name, argv=())
    argv = _list(table, "argv", place) or spec.argv
    if not argv:
        raise UsageError(f"{place} needs argv, or a preset: {', '.join(PRESETS)}")
    prompt, message = table.get("prompt", spec.prompt), table.get("last_message", spec.last_message)
    if prompt not in ("stdin", "argument") or message not in ("stdout", "file"):
        raise UsageError(f'{place}: prompt is "stdin" or "argument", last_message "stdout" or "file"')
    if prompt == "argument" and not any("{prompt" in part for part in argv):
        raise UsageError(f'{place}: with prompt = "argument" argv must hold {{prompt}} or {{prompt_file}}')
    env, files = {**spec.env, **_table(table, "env", place)}, {**spec.files, **_table(table, "files", place)}
    return replace(spec, argv=argv, prompt=prompt, last_message=message, env=env, files=files)


def _installed(spec: CommandSpec, table: Mapping[str, Any], place: str) -> CommandSpec:
    """``install``: an npm prefix (or any folder with ``bin`` or ``node_modules/.bin``) that holds argv's first word."""
    if "install" not in table:
        return spec
    folder = _folder(table["install"], place)
    for bin in ("node_modules/.bin", "bin", "."):
        if (folder / bin / spec.argv[0]).exists():
            program = f"/opt/{spec.name}/{bin}/{spec.argv[0]}"
            return replace(spec, argv=(program, *spec.argv[1:]), mounts=(*spec.mounts, Mount(folder, f"/opt/{spec.name}")))
    raise UsageError(f"{place}: {folder} holds no {spec.argv[0]}")


def _folder(path: Any, place: str) -> Path:
    folder = Path(str(path)).expanduser()
    if not folder.is_absolute() or not folder.exists():
        raise UsageError(f"{place}: {path} must be an absolute path that exists")
    return folder.resolve()


def _list(table: Mapping[str, Any], key: str, place: str) -> tuple[str, ...]:
    value = table.get(key, ())
    if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in cast("list[Any]", value)):
        raise UsageError(f"{place}: {key} must be a list of texts")
    return tuple(cast("list[str]", value))


def _table(table: Mapping[str, Any], key: str, place: str) -> dict[str, str]:
    value = table.get(key, {})
    if not isinstance(value, Mapping) or not all(isinstance(v, str) for v in cast("Mapping[str, Any]", value).values()):
        raise UsageError(f"{place}: {key} must be a table of texts")
    return dict(cast("Mapping[str, str]", value))


def command_spec(name: str, tables: Mapping[str, Any]) -> CommandSpec:
    """The program of ``harness = "command:NAME"``; ``tables``: ``[commands]`` of the configuration. A preset that is on the
    sandbox's own PATH needs no table. Raises ``UsageError``."""
    if name in tables:
        return read_command(name, tables[name])
    if name in PRESETS:
        return PRESETS[name]
    known = sorted({*tables, *PRESETS})
    raise UsageError(f"unknown command {name!r}; known are {', '.join(known)}, others need [commands.{name}] in config.toml")
