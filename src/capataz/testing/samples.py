"""The smallest value that fits a JSON schema: what a fake agent or person answers when nobody says what."""

from __future__ import annotations

from typing import Any

from capataz.contracts.canonical import JsonValue

_PLAIN: dict[str, JsonValue] = {"string": "x", "integer": 0, "number": 0, "boolean": False, "null": None, "array": []}


def sample(schema: Any, root: Any = None) -> JsonValue:
    """A value of a schema as pydantic writes them; bounds and patterns are not looked at, minimum lengths and values are."""
    root = schema if root is None else root
    if "$ref" in schema:
        return sample(root.get("$defs", {})[schema["$ref"].rpartition("/")[2]], root)
    for name in ("const", "default"):
        if name in schema:
            return schema[name]
    if schema.get("enum"):
        return schema["enum"][0]
    for name in ("anyOf", "oneOf", "allOf"):
        if schema.get(name):
            return sample(schema[name][0], root)
    kind = schema.get("type", "string")
    if kind == "object":
        required = schema.get("required", [])
        return {name: sample(part, root) for name, part in schema.get("properties", {}).items() if name in required}
    if kind == "array":
        return [sample(schema.get("items", {}), root) for _ in range(schema.get("minItems", 0))]
    if kind == "string":
        return "x" * max(1, schema.get("minLength", 1))
    low = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1 if "exclusiveMinimum" in schema else 0)
    return low if kind in ("integer", "number") else _PLAIN.get(kind)
