from pydantic import BaseModel

from capataz import ask, fan_out, program, run


class Opinion(BaseModel):
    risk: int
    why: str


@program
async def second_opinion(question: str) -> str:
    """Asks two reviewers at the same time, then a person."""
    async def judge(role: str) -> Opinion:
        return await run(role, prompt=f"As a {role}, judge: {question}", type="reason", output=Opinion)

    worst = max(await fan_out(["developer", "operator"], judge), key=lambda opinion: opinion.risk)
    answer = await ask(f"Risk {worst.risk}: {worst.why} Go on?")
    return f"{answer.by} says {answer.value}"
