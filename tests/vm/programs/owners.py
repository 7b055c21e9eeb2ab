"""Agents that read, edit and own states, beside a program that edits the same one."""

from typing import ClassVar

from pydantic import BaseModel, field_validator

from capataz import Transitions, fan_out, program, run, state


class Plan(BaseModel):
    items: list[str] = []
    phase: str = "draft"
    transitions: ClassVar[Transitions] = {"phase": {"draft": ["ready"]}}

    @field_validator("items")
    @classmethod
    def short(cls, items: list[str]) -> list[str]:
        if any(len(item) > 20 for item in items):
            raise ValueError("items are at most 20 characters")
        return items

    def complete(self) -> bool | str:
        return self.phase == "ready" or "the phase is not ready"


plan = state("plan", Plan)
hidden = state("hidden", Plan)


@program
async def owners() -> dict[str, object]:
    """Two writers at once, then an owner that must come to the end."""
    await fan_out(["a", "b"], lambda name: run("writer", prompt=name, writes=[plan]))
    await plan.update(lambda p: p.model_copy(update={"items": [*p.items, "program"]}))
    owner = await run("owner", prompt="own", owns=[plan], output=dict[str, str])
    last = await plan.get()
    return {"items": sorted(last.items), "phase": last.phase, "owner": owner}
