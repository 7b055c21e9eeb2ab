"""Typed values over the pipe: annotations to JSON schemas and JSON back to typed values, through pydantic."""

from __future__ import annotations

import json
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from capataz.contracts.canonical import JsonValue, to_json
from capataz.contracts.errors import ValueNotSerializable

T = TypeVar("T")

_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def adapter(type_: Any) -> TypeAdapter[Any]:
    """The validator of a type. Raises ``ValueNotSerializable`` for a type that pydantic does not know."""
    try:
        known = _ADAPTERS.get(type_)
    except TypeError:  # an annotation that cannot be hashed
        return _make(type_)
    if known is None:
        known = _ADAPTERS[type_] = _make(type_)
    return known


def _make(type_: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(type_)
    except (PydanticUserError, NameError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueNotSerializable(f"{type_name(type_)} cannot be used as a value's type: {reason}") from error


def type_name(type_: Any) -> str:
    return getattr(type_, "__name__", None) or str(type_)


def typed(type_: type[T], value: JsonValue) -> T:
    """JSON as a value of ``type_``. Raises pydantic's ``ValidationError``."""
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode("utf-8")
    except UnicodeEncodeError:  # lone surrogates have no UTF-8
        return cast("T", adapter(type_).validate_python(value))
    return cast("T", adapter(type_).validate_json(text))


def schema(type_: Any) -> dict[str, Any]:
    """The JSON schema of a type's input form."""
    try:
        return adapter(type_).json_schema()
    except PydanticUserError as error:
        raise ValueNotSerializable(f"{type_name(type_)} has no JSON schema: {str(error).splitlines()[0]}") from error


def is_object(schema: dict[str, Any]) -> bool:
    """Whether values of a schema are JSON objects with known fields."""
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return is_object(schema.get("$defs", {}).get(reference.rpartition("/")[2], {}))
    return schema.get("type") == "object" and "properties" in schema


def wrapped(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object that holds a plain value as ``value``: what an agent can submit."""
    inner = dict(schema)
    outer: dict[str, Any] = {"type": "object", "properties": {"value": inner}, "required": ["value"], "additionalProperties": False}
    definitions = inner.pop("$defs", None)
    return outer if definitions is None else {**outer, "$defs": definitions}


def plain(value: Any) -> JsonValue:
    """``to_json``; a loop in the value is a ``ValueNotSerializable`` too."""
    try:
        return to_json(value)
    except RecursionError as error:
        raise ValueNotSerializable("the value is nested too deeply or refers to itself") from error


def problem(error: ValidationError) -> str:
    """The first complaint of a validation in one line, and how many there are."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    first = errors[0]
    place = ".".join(str(part) for part in first["loc"])
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{place}: {first['msg']}{more}" if place else f"{first['msg']}{more}"
