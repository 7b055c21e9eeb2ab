"""``@migrate``: a type's own way to read values that another version of it wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import ValidationError

from capataz.contracts.canonical import JsonValue
from capataz.vm.values import plain, typed

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__capataz_migrate__"
Migration = Callable[[JsonValue, int], JsonValue]


def migrate(method: F) -> F:
    """Marks a class method of a model that turns old JSON into new: ``(cls, value, version) -> value``.

    ``version`` is the one that the value was written with: ``state(..., version=N)``, or 0 for a recorded result that today's
    type refuses. What it returns is validated as any value is. It must be pure::

        class Findings(BaseModel):
            items: list[str] = []

            @migrate
            @classmethod
            def upgrade(cls, value: Any, version: int) -> Any:
                return {"items": value["list"]}
    """
    target: Any = getattr(method, "__func__", method)
    setattr(target, _MARK, True)
    return method


def recorded(type_: Any, value: JsonValue) -> Any:
    """A recorded result as a value of today's type, by its ``@migrate`` when it does not fit as it is. Raises pydantic's
    ``ValidationError``."""
    try:
        return typed(type_, value)
    except ValidationError:
        migration = migration_of(type_)
        if migration is None:
            raise
        try:
            new = plain(migration(value, 0))
        except (LookupError, TypeError, ValueError, AttributeError):
            new = value  # not of an older version, but wrong
        return typed(type_, new)


def migration_of(type_: Any) -> Migration | None:
    """The migration that a type declares, or inherits."""
    for name in dir(type_) if isinstance(type_, type) else ():
        if name.startswith("__"):
            continue
        for owner in type_.__mro__:
            found = vars(owner).get(name)
            if found is not None:
                break
        else:
            continue
        if getattr(getattr(found, "__func__", found), _MARK, False):
            bound: Migration = getattr(type_, name)
            return bound
    return None
