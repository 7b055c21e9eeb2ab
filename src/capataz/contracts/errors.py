"""Every error of Capataz, by who must act.

An error has a stable snake-case ``code`` (the class name; the only name that the CLI, events and HTTP use), one line
of message that says what happened and how to mend it, and crosses process borders as JSON (``to_json``/``error_from_json``).
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

_BY_CODE: dict[str, type[CapatazError]] = {}


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


class CapatazError(Exception):
    """Root of all errors. ``details`` is JSON data; ``run_id``, ``effect``, ``transcript`` say where it happened."""

    code: ClassVar[str] = "capataz_error"
    retryable: bool = False

    def __init__(
        self,
        message: str = "",
        *,
        run_id: str | None = None,
        effect: str | None = None,
        transcript: str | None = None,
        attempts: int = 1,
        retryable: bool | None = None,
        **details: Any,
    ) -> None:
        self.message = " ".join(str(message).split()) or type(self).__name__
        super().__init__(self.message)
        self.run_id = run_id
        self.effect = effect
        self.transcript = transcript
        self.attempts = attempts
        self.details = details
        if retryable is not None:
            self.retryable = retryable

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.code = _snake(cls.__name__)
        _BY_CODE[cls.code] = cls

    def __str__(self) -> str:
        return self.message

    def to_json(self) -> dict[str, Any]:
        """The error as JSON data; ``error_from_json`` gives back an equal error of the same class."""
        return {
            "code": self.code,
            "message": self.message,
            "run_id": self.run_id,
            "effect": self.effect,
            "transcript": self.transcript,
            "attempts": self.attempts,
            "retryable": self.retryable,
            "details": self.details,
        }


def error_from_json(data: dict[str, Any]) -> CapatazError:
    """The error that ``to_json`` described; an unknown code gives an ``OrchestrationError`` that keeps the code."""
    cls = _BY_CODE.get(data["code"], OrchestrationError)
    error = cls(
        data.get("message", ""),
        run_id=data.get("run_id"),
        effect=data.get("effect"),
        transcript=data.get("transcript"),
        attempts=data.get("attempts", 1),
        retryable=data.get("retryable"),
        **data.get("details", {}),
    )
    if cls is OrchestrationError:
        error.code = data["code"]  # type: ignore[misc]
    return error


# ---- the caller is wrong: exit code 64 ---------------------------------------------------------


class UsageError(CapatazError):
    """A flag, file, value or id that cannot be used as given."""


class NotFound(UsageError):
    """An id or a name that does not exist."""


class RepositoryUnusable(UsageError):
    """The source is no git repository that a job can start from (not a repository, no commit yet, unknown revision)."""


class NoSuites(UsageError):
    """No required suite is declared and none was detected: a refusal, never a pass."""


class InvalidPolicy(UsageError):
    """A ``capataz.toml`` or ``--policy`` file that does not parse or names unknown keys."""


class AlreadyAnswered(UsageError):
    """The question has a decision already."""


class RunNotResumable(UsageError):
    """The run is over (or in another hand) and cannot be carried on as asked."""


class StoreUnavailable(CapatazError):
    """The database or the blob store cannot be reached."""

    retryable = True


class RunTakenOver(CapatazError):
    """Another worker carries the run on, since this one did not renew its lease in time. Nothing was written by this one."""


class IncompatibleStore(UsageError):
    """The database was written by a newer Capataz."""


# ---- the program is wrong ----------------------------------------------------------------------


class ProgramError(CapatazError):
    """A mistake in a program."""


class NondeterminismError(ProgramError):
    """Unchanged code asked for other effects than its journal holds; nothing was run."""


class ImpureProgram(ProgramError):
    """Program code touched files, sockets, processes or threads; the message names the verb to use instead."""


class ProgramLoadError(ProgramError):
    """The program cannot be found, imported or called with this input."""


class ValueNotSerializable(ProgramError):
    """A value that has no canonical JSON form."""


class ProgramFailed(ProgramError):
    """The program raised an exception of its own; ``details`` has ``type`` and ``traceback``."""


# ---- the world broke, or an agent did: a program may catch these --------------------------------


class OrchestrationError(CapatazError):
    """What a program may catch."""


class AgentBlocked(OrchestrationError):
    """The agent says that it cannot go on, and what it needs."""


class AgentFailed(OrchestrationError):
    """The agent ended with an error of its own."""


class OutputInvalid(OrchestrationError):
    """The agent did not give a valid output."""


class TurnsExhausted(OrchestrationError):
    """The agent used all its model turns."""


class BudgetExhausted(OrchestrationError):
    """An account has no rest; ``details["account"]`` names it."""


class UnknownPrice(OrchestrationError):
    """A money budget is set and the model has no price: refused before the call."""


class DeadlineExceeded(OrchestrationError):
    """The time given is over."""


class AgentStuck(OrchestrationError):
    """The same failing call was repeated."""


class ContextOverflow(OrchestrationError):
    """The conversation no longer fits the model's window."""


class StepFailed(OrchestrationError):
    """A step raised; ``details["type"]`` is the exception's name."""


class ChildFailed(OrchestrationError):
    """A child program failed; ``details["reason"]`` is its error."""


class ChildInvalid(OrchestrationError):
    """A child program was refused by the checker; ``details["findings"]``."""


class ForbiddenAccess(OrchestrationError):
    """Refused paths or hosts, three times."""


class ResourceLimit(OrchestrationError):
    """Killed by memory, process, disk or output limits, three times."""


class IllegalStateEdit(OrchestrationError):
    """A state write that its model or transitions do not allow; nothing was stored."""


class AskDeclined(OrchestrationError):
    """The person said no."""


class AskExpired(OrchestrationError):
    """Nobody answered in time."""


class EffectInDoubt(OrchestrationError):
    """It is not known whether a non-idempotent effect happened; a person decides whether it is done again."""


class EffectCancelled(OrchestrationError):
    """Awaited work was cancelled by somebody else (``Handle.cancel``, ``capataz cancel``)."""


class SandboxUnavailable(OrchestrationError):
    """A backend cannot enforce what the spec asks; the message says what to install or enable. Nothing ran."""


class SetupFailed(OrchestrationError):
    """A set-up command of the policy failed; the message ends with the end of its log. No layer was kept."""


class SandboxFailed(OrchestrationError):
    """The sandbox itself broke; never shown as a command's result."""


class GitFailed(OrchestrationError):
    """Git itself broke: a full disk, damaged or missing objects, a time limit; the message has git's own words."""


class ProviderRejected(OrchestrationError):
    """400, 401, 403, 404, unknown model or missing key: not retried."""


class ProviderUnavailable(OrchestrationError):
    """The provider did not answer after all retries."""

    retryable = True


class ScriptError(OrchestrationError):
    """A scripted model raised or answered something that is no answer."""


class Cancelled(OrchestrationError):
    """The reason of a cancelled run."""


# ---- evidence ----------------------------------------------------------------------------------


class EvidenceError(OrchestrationError):
    """A rule of the evidence was broken. ``details`` has ``paths``, ``task`` and the like."""


class PlanInvalid(EvidenceError):
    """A plan that breaks a counting, naming or writing rule."""


class OverlappingScopes(EvidenceError):
    """Two tasks may write the same file."""


class ScopeViolation(EvidenceError):
    """A write outside the task's scope or into a protected path."""


class UnknownSuite(EvidenceError):
    """A suite id that the policy does not declare."""


class LinkEscape(EvidenceError):
    """A new or changed symlink that leaves the tree."""


class EmbeddedRepository(EvidenceError):
    """An embedded repository or a gitlink change."""


class ReservedPath(EvidenceError):
    """A path named ``.git`` below the root, in any case or Unicode form."""


class SpecialFile(EvidenceError):
    """A device, socket or pipe."""


class FileTooLarge(EvidenceError):
    """A file over the size limit."""


class CandidateConflict(EvidenceError):
    """Workers' trees do not merge; ``details["paths"]`` and both sides."""


class NoChanges(EvidenceError):
    """Tasks that should write left nothing changed."""


class WorkerIncomplete(EvidenceError):
    """A worker said that it is blocked or did not complete."""


class RequiredSuiteFailed(EvidenceError):
    """A required suite failed on the candidate."""


class NewTestsMissing(EvidenceError):
    """New tests were required and the candidate adds none."""


class ReviewNotBound(EvidenceError):
    """A review or synthesis that names another candidate, SHA or digest."""


class ReviewInvalid(EvidenceError):
    """A review that says passed and lists blocking issues."""


class ReviewRejected(EvidenceError):
    """A reviewer found blocking issues."""


class TargetMoved(EvidenceError):
    """The target ref is no longer what the approval was for; nothing was written."""


class BindingBroken(EvidenceError):
    """A digest or id does not match at promotion; nothing was written."""


def exit_code(outcome: str | None, reason_code: str | None) -> int:
    """The exit code of a run: 0 promoted/report/completed, 1 failed, 2 declined, 3 environment, 130 cancelled."""
    if outcome == "failed":
        environment = (reason_code or "").startswith("provider_") or reason_code in {"script_error", "sandbox_unavailable"}
        return 3 if environment else 1
    return {"declined": 2, "cancelled": 130}.get(outcome or "", 0)
