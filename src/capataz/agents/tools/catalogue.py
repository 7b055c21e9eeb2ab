"""The table of tools: names and arguments are the contract."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema, create_model

from capataz.agents.tools import command, files, search, states, talk
from capataz.agents.tools.bench import Bench
from capataz.agents.tools.errors import ToolError
from capataz.contracts.errors import UsageError
from capataz.contracts.harness import AgentType, ToolReply

GRANTED_BY_NAME = ("ask_human",)              # of no type: an agent has it when its program names it
Path = Annotated[Any, WithJsonSchema({"type": "string"})]


@dataclass(frozen=True)
class Tool:
    """``writes``: may change files, so it runs alone and in call order. ``needs_workspace_write``: not for type ``read``."""

    name: str
    description: str
    arguments: type[BaseModel]
    run: Callable[..., Awaitable[ToolReply]]
    writes: bool = False
    alone: bool = False
    types: tuple[AgentType, ...] = ("read", "general")

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The tool as OpenAI's chat form says it."""
        return function_schema(self.name, self.description, _without_titles(self.arguments.model_json_schema()))

    async def call(self, bench: Bench, arguments: dict[str, Any]) -> ToolReply:
        """Raises ``ToolError`` for arguments that do not fit, and what the tool raises."""
        try:
            checked = self.arguments.model_validate(arguments)
        except ValidationError as error:
            raise ToolError(f"{self.name}: {describe(error)}") from None
        return await self.run(bench, **{name: getattr(checked, name) for name in type(checked).model_fields})


def function_schema(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _without_titles(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {k: _without_titles(v) for k, v in schema.items() if k != "title" or not isinstance(v, str)}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]  # pyright: ignore[reportUnknownVariableType]
    return schema


def describe(error: ValidationError) -> str:
    """All problems of the arguments in one line."""
    parts: list[str] = []
    for problem in error.errors(include_url=False, include_context=False, include_input=False)[:5]:
        where = ".".join(map(str, problem["loc"]))
        what = {"missing": "is missing", "extra_forbidden": "is not an argument of this tool"}.get(problem["type"], problem["msg"])
        parts.append(f"{where} {what}" if problem["type"] in ("missing", "extra_forbidden") else f"{where}: {what}")
    return "; ".join(parts)


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


def _arguments(title: str, /, **fields: Any) -> type[BaseModel]:
    return create_model(title, __base__=_Arguments, **fields)


def _tools() -> list[Tool]:
    path = Annotated[Path, Field(description="relative to the workspace; names shown in double quotes are given in that form")]
    return [
        Tool("read_file", "Read a text file as numbered lines.", _arguments(
            "ReadFile", path=(path, ...), offset=(Annotated[int, Field(ge=1, description="first line, from 1")], 1), limit=(Annotated[int, Field(ge=1, description="number of lines")], 2_000),
        ), files.read_file),
        Tool("write_file", "Create or replace a file; folders are made as needed.", _arguments(
            "WriteFile", path=(path, ...), content=(str, ...),
        ), files.write_file, writes=True, types=("general",)),
        Tool("edit_file", "Replace an exact text of a file. `old` must occur exactly `count` times.", _arguments(
            "EditFile", path=(path, ...), old=(str, ...), new=(str, ...), count=(Annotated[int, Field(ge=0, description="expected occurrences; 0: all")], 1),
        ), files.edit_file, writes=True, types=("general",)),
        Tool("apply_patch", "Apply a unified diff to one or more files: all hunks or none.", _arguments(
            "ApplyPatch", patch=(Annotated[str, Field(description="unified diff with --- a/PATH and +++ b/PATH")], ...),
        ), files.apply_patch, writes=True, types=("general",)),
        Tool("list_directory", "List a folder.", _arguments(
            "ListDirectory", path=(path, "."), depth=(Annotated[int, Field(ge=1, le=20)], 1),
        ), files.list_directory),
        Tool("search_code", "Search the files for a regular expression (Python syntax), line by line; ignored files are left out.", _arguments(
            "SearchCode", pattern=(str, ...), path=(path, "."), glob=(Annotated[str | None, Field(description="only files that match, e.g. *.py or src/**/*.ts")], None), limit=(Annotated[int, Field(ge=1, le=search.MAX_HITS)], 200),
        ), search.search_code),
        Tool("run_command", "Run a shell command in the sandbox (no network). Nothing it starts outlives it.", _arguments(
            "RunCommand", command=(str, ...), timeout_s=(Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)], 120), cwd=(path, "."),
        ), command.run_command, writes=True),
        Tool("report_progress", "Tell whoever watches what you are doing, in one sentence.", _arguments(
            "ReportProgress", message=(str, ...),
        ), talk.report_progress),
        Tool("ask_human", "Ask the person in charge a question and wait for the answer.", _arguments(
            "AskHuman", question=(Annotated[str, Field(min_length=1)], ...), options=(list[str] | None, None),
        ), talk.ask_human, alone=True, types=()),
        Tool("state_read", "Read a state that is shared with others: its version and its value, as JSON.", _arguments(
            "StateRead", name=(str, ...),
        ), states.state_read, types=()),
        Tool("state_edit", "Change a state by a JSON merge patch (null removes a field, lists are replaced whole). Its rules may refuse it.", _arguments(
            "StateEdit", name=(str, ...), patch=(dict[str, Any], ...), version=(Annotated[int, Field(ge=0, description="the version that you read")], ...),
        ), states.state_edit, alone=True, types=()),
    ]


@lru_cache(maxsize=1)
def catalogue() -> dict[str, Tool]:
    return {tool.name: tool for tool in _tools()}


@lru_cache(maxsize=256)
def choose(type: AgentType, names: tuple[str, ...] | None, granted: tuple[str, ...]) -> dict[str, Tool]:
    """The tools of an agent: its type's, narrowed by ``names``, and what was granted (``ask_human`` by naming it). Raises ``UsageError`` for unknown names."""
    known = catalogue()
    unknown = sorted({*(names or ()), *granted} - set(known) - {"submit"})
    if unknown:
        raise UsageError(f"unknown tool {', '.join(unknown)}; there are {', '.join(known)} and submit")
    granted = granted + tuple(name for name in names or () if name in GRANTED_BY_NAME)
    allowed = {name: tool for name, tool in known.items() if type in tool.types or name in granted}
    if names is None:
        return allowed
    return {name: tool for name, tool in allowed.items() if name in names or name in granted}
