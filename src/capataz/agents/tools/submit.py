"""``submit``: the fields of the output model, checked against its JSON schema."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from capataz.agents.tools.catalogue import function_schema
from capataz.contracts.canonical import JsonValue, canonical_text
from capataz.contracts.errors import ProgramError

MAX_REFUSALS = 5
_SHOWN = 5


class Output:
    """An output schema. One that is no object is asked for in a single field ``value``."""

    def __init__(self, text: str) -> None:
        self.schema: dict[str, Any] = _resolved(json.loads(text))
        self.wrapped = self.schema.get("type") != "object"
        parameters = self._wrap() if self.wrapped else self.schema
        self.tool = function_schema("submit", "Hand in the result. This ends the work.", parameters)
        self._validator: Any = None
        self._parameters = parameters

    def _wrap(self) -> dict[str, Any]:
        inner = dict(self.schema)
        wrapped: dict[str, Any] = {"type": "object", "properties": {"value": inner}, "required": ["value"], "additionalProperties": False}
        if "$defs" in inner:
            wrapped["$defs"] = inner.pop("$defs")
        return wrapped

    def problems(self, fields: dict[str, Any]) -> str | None:
        """Why the fields are refused, in one line; None: valid."""
        if self._validator is None:
            self._validator = _validator(self._parameters)
        errors = sorted(self._validator.iter_errors(fields), key=lambda e: [str(p) for p in e.absolute_path])
        if not errors:
            return None
        said = "; ".join(_describe(error) for error in errors[:_SHOWN])
        return said + (f"; and {len(errors) - _SHOWN} more" if len(errors) > _SHOWN else "")

    def value(self, fields: dict[str, Any]) -> JsonValue:
        return fields["value"] if self.wrapped else fields


@lru_cache(maxsize=512)
def _output(text: str) -> Output:
    return Output(text)


_recent: dict[int, tuple[dict[str, Any], Output]] = {}


def output_of(schema: dict[str, Any]) -> Output:
    """The (cached) output of a schema. Raises ``ProgramError`` for one that is no JSON schema."""
    known = _recent.get(id(schema))
    if known is not None and known[0] is schema:
        return known[1]
    output = _output(canonical_text(schema))
    if len(_recent) > 256:
        _recent.clear()
    _recent[id(schema)] = (schema, output)
    return output


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema that is one reference (a recursive model) as the object itself: providers want that at the top."""
    target = schema
    for _ in range(8):
        reference = target.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/$defs/"):
            break
        target = schema.get("$defs", {}).get(reference.removeprefix("#/$defs/"), {})
    return schema if target is schema else {**target, "$defs": schema["$defs"]}


def _validator(schema: dict[str, Any]) -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ProgramError(f"the output schema is no JSON schema: {error.message}") from None
    return Draft202012Validator(schema)


def _describe(error: Any) -> str:
    where = ".".join(str(part) for part in error.absolute_path) or "submit"
    if error.validator == "additionalProperties":
        return f"{where}: {error.message.replace('Additional properties are not allowed', 'unknown fields')}"
    if error.context:
        inner = min(error.context, key=lambda e: (-len(e.absolute_path), len(e.message)))
        if inner.absolute_path != error.absolute_path:
            return _describe(inner)
        return f"{where}: none of the allowed forms fits ({'; '.join(sorted({_short(e.message) for e in error.context})[:3])})"
    return f"{where}: {_short(error.message)}"


def _short(message: str) -> str:
    return message if len(message) <= 200 else f"{message[:120]} … {message[-70:]}"
