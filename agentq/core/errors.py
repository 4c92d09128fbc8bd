"""Every error that agentq raises on purpose.

    AgentQError
    ├── UsageError            the caller asked for something that cannot be        exit 2
    │   ├── InputError        a row of an input file is wrong: `file:line: …`      exit 2
    │   ├── NoSuchRunError    there is no run of this id, or no longer             exit 2
    │   └── ConflictError     the same name or id exists with other content        exit 2
    ├── UnavailableError      Redis, the broker or a server of tools is not there  exit 7
    ├── SchemaError           the state is of a newer release than this            exit 1
    └── StoreError            a script answered what it must not: a bug            exit 1

Each carries one sentence for a person and, where there is one, the next thing to type. Errors of
model providers are a family of their own, in `agentq.provider.errors`.
"""

from __future__ import annotations

from typing import ClassVar


class AgentQError(Exception):
    """The root. `str(error)` is one sentence; `hint` is what to type or check next."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(hint)  # a traceback shows it too


class UsageError(AgentQError):
    """The request cannot be carried out as it was made; nothing was changed."""

    exit_code = 2


class InputError(UsageError):
    """Rows of an input are wrong. `problems` holds `file:line: message` of them; nothing was submitted.

    Args:
        problems: those that are known.
        total: how many there are, where only the first are known.
        shown: how many the text has.
    """

    def __init__(self, problems: list[str], total: int | None = None, *, shown: int = 20) -> None:
        self.problems = problems
        text = "\n".join(problems[:shown])
        more = (len(problems) if total is None else total) - min(shown, len(problems))
        if more > 0:
            text += f"\n… and {more} more"
        super().__init__(text, hint="nothing was submitted")


class NoSuchRunError(UsageError):
    """There is no run of this id, or no longer.

    Args:
        run_id: the id.
        also: what else there is not, to be said behind it.
    """

    def __init__(self, run_id: str, *, also: str = "") -> None:
        super().__init__(
            f"there is no run {run_id!r}{also}",
            hint="it may be older than the retention; agentq runs lists those that there are",
        )


class ConflictError(UsageError):
    """The name or id is taken by something with other content."""


class UnavailableError(AgentQError):
    """Redis, the broker, or a server that an agent's tools are on, cannot be reached."""

    exit_code = 7


class SchemaError(AgentQError):
    """The state is newer than this release understands: it is left alone."""

    def __init__(self, version: int) -> None:
        super().__init__(
            f"the state has the form {version} of a newer agentq: this one leaves it alone",
            hint="update agentq here; workers of the newer release go on meanwhile",
        )


class StoreError(AgentQError):
    """A script gave an answer that its contract does not have: a bug, or keys of another version."""
