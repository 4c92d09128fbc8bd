"""Settings: constructor, then `AGENTQ_*` in the environment, then `agentq.toml`, then the default.

`[tool.agentq]` in `pyproject.toml` is read when there is no `agentq.toml`. An unknown name is refused
with the nearest right one, so that a typo never means "the default".
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from pathlib import Path
from typing import Any

from agentq.core.errors import UsageError
from agentq.core.ids import check_name
from agentq.core.money import MAX_AMOUNT, to_nano, to_usd
from agentq.core.webhook import check_hosts, secret_keys
from agentq.core.words import nearest

ON_EXHAUSTED = ("park", "stop", "winddown")
"""What a run may do when money that it shares is used up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting, validated. Times are seconds, money is USD."""

    app: str | None = None
    """`module:app`, for the command line."""
    redis_url: str | None = None
    """The state server. None: the embedded server of `agentq up`."""
    broker_url: str | None = None
    """Any Celery broker. None: the state server, under `{aq:<namespace>}:mq:`."""
    namespace: str = "agentq"
    """All keys of one installation share it. The name given to `AgentQ` unless set."""
    home: str = ".agentq"
    """Where the embedded server keeps its data."""
    lease_seconds: float = 15.0
    """How long a worker may be silent before its steps are taken back."""
    tick_seconds: float = 1.0
    """How often each worker looks for runs that need a push."""
    drain_seconds: float = 20.0
    """How long a stopping worker may finish the steps at hand."""
    heartbeat_file: str | None = None
    """Touched by a worker each time it has signed on, for a health check without Python. None: no file."""
    call_timeout_seconds: float = 600.0
    """The longest that one model call may take before its step counts as dead."""
    patience_seconds: float = 3_600.0
    """How long failed model calls of one step are tried again, waits included, before the run ends."""
    approval_seconds: float = 604_800.0
    """How long a run waits for a decision before it ends as `approval_expired`."""
    retention_days: float = 7.0
    """How long an ended run is kept."""
    max_steps: int | None = None
    """What a run may spend whose agent, or submitter, does not name it; likewise `max_tokens`, `max_usd` and
    `max_seconds`. None: as `Budgets` has it."""
    max_tokens: int | None = None
    max_usd: Decimal | None = None
    max_seconds: float | None = None
    max_in_flight: int | None = None
    """How many runs may be in flight together at most; else half as many again as the workers have hands."""
    tenant_max_in_flight: int | None = None
    """The same for each tenant."""
    global_max_usd: Decimal | None = None
    """The limit of everything in this namespace together."""
    tenant_max_usd: Decimal | None = None
    """The limit of each tenant."""
    global_max_usd_day: Decimal | None = None
    """The same for each day (UTC); likewise `global_max_usd_month` and the two of each tenant."""
    global_max_usd_month: Decimal | None = None
    tenant_max_usd_day: Decimal | None = None
    tenant_max_usd_month: Decimal | None = None
    scopes: str = ""
    """Further scopes that every run is in: `agent`, `model` or both with a comma. Else those with a limit."""
    on_exhausted: str = "park"
    """What a run does when a scope around it is dry: `park` (wait for money), `stop` (make its closing turn)
    or `winddown` (wait, but make it when only the escrows of runs that wait are in the way)."""
    park_seconds: float = 604_800.0
    """How long a run may wait for money before its closing turn is made."""
    on_unpriced: str = "refuse"
    """A USD budget over a model without a price: `refuse` it, or `allow` it (its calls count as 0)."""
    prices_file: str | None = None
    """Prices that go over the built-in catalogue, in the same format."""
    webhook_secret: str | None = field(default=None, repr=False)
    """What notices are signed with: `whsec_` and base64 of 24 to 64 bytes; several with commas."""
    webhook_hosts: str = ""
    """To which hosts notices may go: `hooks.example.com,*.example.org`. Else to any."""
    token_bounds: str = "strict"  # noqa: S105 - of words, not of access
    """A call is reserved at the most it can use (`strict`), or at its client's count × 1.1 (`tight`)."""

    @property
    def optional_scopes(self) -> tuple[str, ...]:
        """The kinds in `scopes`, each once."""
        return tuple(dict.fromkeys(filter(None, (kind.strip() for kind in self.scopes.split(",")))))

    @property
    def default_limits(self) -> dict[tuple[str, str], Decimal]:
        """The limits that are set here: (`global` or `tenant`, ``, `day` or `month`) to USD."""
        limits = {}
        for kind in ("global", "tenant"):
            for window in ("", "day", "month"):
                usd = getattr(self, f"{kind}_max_usd{window and '_' + window}")
                if usd is not None:
                    limits[kind, window] = usd
        return limits

    @property
    def run_limits(self) -> dict[str, Any]:
        """What is set here of the budgets of a run, as `Budgets` names it."""
        names = ("max_steps", "max_tokens", "max_usd", "max_seconds")
        return {name: limit for name in names if (limit := getattr(self, name)) is not None}

    @property
    def feeder_limits(self) -> dict[str, int]:
        """What is set here of how much may be in flight, as the feeder names it."""
        limits = {"max": self.max_in_flight, "tenant_max": self.tenant_max_in_flight}
        return {name: limit for name, limit in limits.items() if limit is not None}

    @property
    def park_ms(self) -> int:
        """The longest park in whole milliseconds."""
        return round(self.park_seconds * 1000)

    @property
    def lease_ms(self) -> int:
        """The lease in whole milliseconds."""
        return round(self.lease_seconds * 1000)

    @property
    def retention_ms(self) -> int:
        """The retention in whole milliseconds."""
        return round(self.retention_days * 86_400_000)


NAMES = tuple(entry.name for entry in fields(Settings))
PREFIX = "AGENTQ_"
NOT_SETTINGS = (
    "AGENTQ_FAILPOINTS",
    "AGENTQ_REDIS_SERVER",
    "AGENTQ_LIFELINE_FD",
    "AGENTQ_SERVICE_",  # Kubernetes sets these two where there is a Service of the name agentq
    "AGENTQ_PORT",
)
"""Variables with the prefix that are for somebody else."""
_POSITIVE = {name for name in NAMES if name.endswith(("_seconds", "_days"))}
_MONEY = {name for name in NAMES if "max_usd" in name}
_COUNTS = {
    "max_in_flight": 1_000_000,
    "tenant_max_in_flight": 1_000_000,
    "max_steps": 1_000_000,
    "max_tokens": MAX_AMOUNT,
}
"""Whole numbers, and the most that each can be."""
_CHOICES = {
    "on_unpriced": ("refuse", "allow"),
    "token_bounds": ("strict", "tight"),
    "on_exhausted": ON_EXHAUSTED,
}
_OPTIONAL_SCOPES = ("agent", "model")


def load_settings(
    overrides: Mapping[str, Any], *, namespace: str | None = None, folder: Path | None = None
) -> Settings:
    """Settings from all four sources.

    Args:
        overrides: the constructor's keywords; a None counts as absent.
        namespace: the fallback for a namespace that no source sets.
        folder: where `agentq.toml` is looked for; the current directory when None.

    Raises:
        UsageError: for an unknown name, a value of the wrong kind, or a file that is not TOML.
    """
    merged: dict[str, Any] = {} if namespace is None else {"namespace": namespace}
    merged.update(_from_file(folder or Path()))
    for variable, text in os.environ.items():
        if variable.startswith(PREFIX) and not variable.startswith(NOT_SETTINGS) and text:
            name = variable.removeprefix(PREFIX).lower()
            merged[name] = _checked(name, text, variable)
    for name, value in overrides.items():
        if value is not None:
            merged[name] = _checked(name, value, name)
    return Settings(**merged)


def _from_file(folder: Path) -> dict[str, Any]:
    for filename, table in (("agentq.toml", ()), ("pyproject.toml", ("tool", "agentq"))):
        path = folder / filename
        if not path.is_file():
            continue
        try:
            content: Any = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            if table:
                continue
            raise UsageError(f"{path}: this is not TOML: {error}") from None
        for key in table:
            content = content.get(key, {})
            if not isinstance(content, dict):
                raise UsageError(f"{path}: {key} is not a table")
        return {name: _checked(name, value, f"{path}: {name}") for name, value in content.items()}
    return {}


def _checked(name: str, value: Any, where: str) -> Any:
    if name not in NAMES:
        raise UsageError(
            f"{where}: there is no setting {name!r}{nearest(name, NAMES)}",
            hint=f"settings are {', '.join(NAMES)}",
        )
    try:
        if name in _POSITIVE:
            return _positive(value)
        if name in _MONEY:
            return _money(value, least=1 if name == "max_usd" else 0)
        if name in _COUNTS:
            return _count(value, _COUNTS[name])
        if not isinstance(value, str):
            raise TypeError(f"{value!r} must be text")
        if name in _CHOICES and value not in _CHOICES[name]:
            raise ValueError(f"{value!r} must be {' or '.join(map(repr, _CHOICES[name]))}")
        if name == "scopes":
            return _checked_scopes(value)
        if name == "webhook_secret":
            secret_keys(value)
        if name == "webhook_hosts":
            check_hosts(value)
        return check_name("namespace", value) if name == "namespace" else value
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where}: {error}") from None


def check_on_exhausted(value: str) -> str:
    """The word itself, when it says what a run does about a dry scope.

    Raises:
        UsageError: when it is none of those.
    """
    if value not in ON_EXHAUSTED:
        raise UsageError(
            f"on_exhausted={value!r} must be one of {', '.join(ON_EXHAUSTED)}{nearest(value, ON_EXHAUSTED)}"
        )
    return value


def _checked_scopes(value: str) -> str:
    for kind in filter(None, (part.strip() for part in value.split(","))):
        if kind not in _OPTIONAL_SCOPES:
            raise ValueError(f"{kind!r} is no optional scope: write 'agent', 'model' or 'agent,model'")
    return value


def _positive(value: Any) -> float:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{value!r} is not a number") from None
    if not 0 < number < 1e9:
        raise ValueError(f"{value} must be more than 0" + (" and less than 1e9" if number > 0 else ""))
    return number


def _money(value: Any, least: int) -> Decimal:
    nano = to_nano(value)
    if nano < least:
        raise ValueError(f"{value} leaves no room for any work: it must be more than 0")
    return to_usd(nano)


def _count(value: Any, most: int) -> int:
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal() or not 0 < int(text) <= most:
        raise ValueError(f"{value!r} must be a whole number from 1 to {most}")
    return int(text)
