"""What a state's model allows: validation, transitions, completeness, values of other versions. Pure; runs in the program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from capataz.contracts.canonical import JsonValue
from capataz.contracts.errors import IllegalStateEdit, NotFound, ProgramError, ValueNotSerializable
from capataz.vm.migrations import migration_of
from capataz.vm.values import plain, problem, schema, type_name, typed

M = TypeVar("M")
Transitions = Mapping[str, Mapping[Any, Sequence[Any]]]
"""Field -> its value -> the values that may follow: ``transitions: ClassVar[Transitions] = {"status": {"open": ["done"]}}``."""


class Rules(Generic[M]):
    """``record`` below is a stored version as JSON: ``{"version", "model_version", "value"}``; version 0: never written."""

    def __init__(self, name: str, model: type[M], version: int) -> None:
        self.name = name
        self.model = model
        self.version = version

    # ---- reading -------------------------------------------------------------------------------

    def read(self, record: Mapping[str, JsonValue]) -> M:
        """The value. Raises ``NotFound`` before the first write of a model without defaults, ``ProgramError`` for a value of
        another version that the model has no ``@migrate`` for."""
        found: M | None = self.present(record)
        if found is None:
            raise NotFound(f"state {self.name} has no value yet, and {type_name(self.model)} cannot be made without one; set() it first")
        return found

    def present(self, record: Mapping[str, JsonValue]) -> M | None:
        """The value, before the first write the model's default; None when it has none."""
        if not record["version"]:
            return self._default()
        value, written = record["value"], record["model_version"]
        migration = migration_of(self.model)
        if written != self.version:
            if migration is None:
                raise ProgramError(
                    f"state {self.name} holds a value of version {written}, and {type_name(self.model)} is version {self.version}; "
                    "give the model an @migrate method"
                )
            value = plain(migration(value, written))
        try:
            return typed(self.model, value)
        except ValidationError as error:
            raise ProgramError(
                f"state {self.name}: its stored value (version {record['version']}) is no valid {type_name(self.model)}: {problem(error)}; "
                "raise version= and give the model an @migrate method"
            ) from error

    def _default(self) -> M | None:
        make: Any = self.model
        if not (_is_model(make) or hasattr(make, "__dataclass_fields__")):
            return None
        try:
            made: M = make()
        except (ValidationError, TypeError):
            return None
        return made

    # ---- writing -------------------------------------------------------------------------------

    def write(self, old: M | None, new: Any) -> JsonValue:
        """The JSON to store for ``new`` in place of ``old``. Raises ``IllegalStateEdit``."""
        try:
            value = typed(self.model, plain(new))
        except ValidationError as error:
            raise IllegalStateEdit(f"state {self.name}: no valid {type_name(self.model)}: {problem(error)}", state=self.name) from error
        except ValueNotSerializable as error:
            raise IllegalStateEdit(f"state {self.name}: {error.message}", state=self.name) from error
        if old is not None:
            self._check_transitions(old, value)
        return plain(value)

    def _check_transitions(self, old: M, new: M) -> None:
        for field, ways in self.transitions().items():
            before, after = plain(getattr(old, field)), plain(getattr(new, field))
            if before == after:
                continue
            allowed = next((plain(list(to)) for frm, to in ways.items() if plain(frm) == before), [])
            if after not in allowed:
                may = ", ".join(map(str, allowed)) or "nothing"
                raise IllegalStateEdit(
                    f"state {self.name}: {field} may not go from {before} to {after}; it may go to {may}",
                    state=self.name, field=field, frm=before, to=after,
                )  # fmt: skip

    def transitions(self) -> Transitions:
        declared: Any = getattr(self.model, "transitions", None)
        return declared if isinstance(declared, Mapping) else {}

    def move(self, old: M, field: str, frm: Any, to: Any) -> JsonValue:
        """``old`` with ``field`` moved on. Raises ``IllegalStateEdit`` unless it is at ``frm``."""
        value = plain(old)
        if not isinstance(value, dict) or field not in value:
            raise IllegalStateEdit(f"state {self.name} has no field {field}", state=self.name, field=field)
        if value[field] != plain(frm):
            raise IllegalStateEdit(
                f"state {self.name}: {field} is {value[field]}, not {plain(frm)}", state=self.name, field=field, frm=value[field], to=plain(to)
            )
        return self.write(old, {**value, field: plain(to)})

    def edit(self, old: M | None, patch: JsonValue) -> JsonValue:
        """``old`` with a JSON merge patch (RFC 7396) applied. Raises ``IllegalStateEdit``, also for fields that do not exist."""
        merged = merge_patch(plain(old), patch)
        unknown = self._unknown(merged)
        if unknown:
            raise IllegalStateEdit(f"state {self.name} has no field {', '.join(unknown)}", state=self.name)
        return self.write(old, merged)

    def _unknown(self, value: JsonValue) -> list[str]:
        model: Any = self.model
        if not isinstance(value, dict) or not _is_model(model):
            return []
        if model.model_config.get("extra") == "allow":
            return []
        fields: dict[str, Any] = model.model_fields
        aliases = [alias for info in fields.values() for alias in (info.alias, info.validation_alias) if alias is not None]
        if not all(isinstance(alias, str) for alias in aliases):
            return []  # paths and choices: the model itself decides
        return sorted(set(value) - set(fields) - set(aliases))

    # ---- completeness --------------------------------------------------------------------------

    def incomplete(self, record: Mapping[str, JsonValue]) -> str | None:
        """Why the state is not complete. None: it validates and its model's ``complete`` rule holds."""
        try:
            value = self.read(record)
        except (NotFound, ProgramError) as error:
            return error.message
        rule: Any = getattr(value, "complete", True)
        said = rule() if callable(rule) else rule
        if said is True or said is None:
            return None
        return f"state {self.name} is not complete" + (f": {said}" if isinstance(said, str) and said else "")

    def schema(self) -> dict[str, Any]:
        return schema(self.model)

    # ---- for the kernel ------------------------------------------------------------------------

    def answer(self, question: Mapping[str, JsonValue]) -> JsonValue:
        """What the kernel asks on behalf of agents, as JSON: ``read``, ``edit`` or ``complete`` of a record."""
        record = question["record"]
        match question["op"]:
            case "read":
                value = self.present(record)
                return {"value": plain(value)}
            case "edit":
                try:
                    return {"value": self.edit(self.present(record), question["patch"])}
                except IllegalStateEdit as error:
                    return {"refused": error.message}
            case _:
                return {"incomplete": self.incomplete(record)}


def _is_model(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, BaseModel)


def merge_patch(target: JsonValue, patch: JsonValue) -> JsonValue:
    """RFC 7396: null removes a field, an object merges, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged: dict[str, JsonValue] = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged
