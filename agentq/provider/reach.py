"""Whether a provider answers and takes the key, found out at no cost."""

from __future__ import annotations

from dataclasses import dataclass

from agentq.provider.errors import AuthError, LLMError, QuotaExceeded, RateLimited
from agentq.provider.httpmodel import HttpModel

SECONDS = 5.0
"""How long a provider may take to say which models it has."""
_NO_SUCH_PAGE = (404, 405, 501)


@dataclass(frozen=True, slots=True)
class Reach:
    """What came of asking: `found` is what to say of it, `fix` what to do where it is not `ok`.

    `refused` is set when no call of the account can go well: its key is missing or wrong, or it has no money.
    """

    ok: bool
    found: str
    fix: str = ""
    refused: bool = False


def reachable(client: HttpModel, *, seconds: float = SECONDS) -> Reach:
    """Ask the provider of a model for its list of models, with the key that a call would have."""
    source = client.key.source
    where = f"{f'key from {source}' if source else 'no key'}, {client.base_url}"
    try:
        client.ask_for_models(seconds=seconds)
    except LLMError as error:
        return _failed(error, client, where)
    return Reach(True, f"{where} answers")


def _failed(error: LLMError, client: HttpModel, where: str) -> Reach:
    status = "" if error.status_code is None else f" ({error.status_code})"
    match error:
        case AuthError() if error.status_code is None:
            return Reach(
                False, error.message, f"export {client.key.variable}=…, or mend the file", refused=True
            )
        case AuthError():
            return Reach(
                False,
                f"the key was refused{status}: {error.message}",
                f"{where}: put a valid key there",
                refused=True,
            )
        case QuotaExceeded():
            return Reach(
                False,
                f"the account has no quota{status}: {error.message}",
                f"{where}: add credit or raise the account's limit",
                refused=True,
            )
        case RateLimited():
            return Reach(True, f"{where} answers, and turns requests away for now{status}")
        case _ if error.status_code in _NO_SUCH_PAGE:
            return Reach(True, f"{where} answers; it has no list of models, so the key was not tried")
    return Reach(False, error.message, f"{where}: check the address, and that it can be reached from here")
