"""`agentq doctor`: what stands between you and a run, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import click

from agentq.cli.failure import UNAVAILABLE, is_unreachable
from agentq.cli.globals import verb
from agentq.cli.tally import PROVIDER
from agentq.core.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentq.app import AgentQ
    from agentq.cli.session import Session

OLDEST = (7, 0)
CLOCK_MS_MAX = 2_000
VIOLATED = 3
"""The exit code when something about the runs is not as it must be, and was not repaired."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line: what was looked at, how it is, and the fix where there is one to make."""

    name: str
    ok: bool
    found: str
    fix: str = ""


@verb("doctor")
@click.option("--runs", is_flag=True, help="Look at every run, batch and key instead.")
@click.option("--repair", is_flag=True, help="With --runs: put right what can be without a loss.")
def command(session: Session, runs: bool, repair: bool) -> int:
    """Check the state server, the broker, the workers and the models' providers, and say what to mend.

    Of each provider: whether it answers and takes the key, at no cost; with -A those of the agents, else
    those for which a variable is set. The exit code is 8 when a key was refused.

    With --runs: whether every run is in one state, watched and rightly counted, and holds no money that it
    must not hold, and whether every key has an end. Exact while workers run. The exit code is 3 when
    something is found and not repaired.
    """
    if repair and not runs:
        raise UsageError(
            "--repair needs --runs: the server is yours to mend", hint="agentq doctor --runs --repair"
        )
    if runs:
        return _examine(session, repair=repair)
    checks, code = diagnose(session)
    if session.console.json:
        session.console.document(
            [
                {"check": c.name, "ok": c.ok, "found": c.found, "fix": None if c.ok else c.fix or None}
                for c in checks
            ]
        )
        return code
    width = max(16, *(len(check.name) + 2 for check in checks))
    for check in checks:
        mark = click.style("ok ", fg="green") if check.ok else click.style("fix", fg="red")
        session.console.out(f"{mark}  {check.name:<{width}}{check.found}")
        if not check.ok and check.fix:
            session.console.out(f"     {'':<{width}}→ {check.fix}")
    return code


def _examine(session: Session, *, repair: bool) -> int:
    from agentq.cli.checkup import document, show
    from agentq.store.checkup import examine

    checkup = examine(session.server_app().store, repair=repair)
    if session.console.json:
        session.console.document(document(checkup))
    else:
        show(session.console, checkup)
    return VIOLATED if checkup.violations else 0


def diagnose(session: Session) -> tuple[list[Check], int]:
    """All checks, and the exit code.

    It is 7 when a server cannot be reached, 8 when a provider refuses a key, 1 when something else is to be
    mended.
    """
    app = session.any_app()
    servers, unreachable = _servers(session, app)
    providers, refused = _providers(app if session.app_path else None)
    checks = [*servers, _flower(), *providers]
    if unreachable:
        return checks, UNAVAILABLE
    if refused:
        return checks, PROVIDER
    return checks, 0 if all(check.ok for check in checks) else 1


def _servers(session: Session, app: AgentQ) -> tuple[list[Check], bool]:
    """What is about the servers and the workers, and whether one of these cannot be reached."""
    try:
        session.need_server(app)
        app.ping()
        facts = app.doctor_facts()
    except Exception as error:
        if not isinstance(error, UnavailableError) and not is_unreachable(error):
            raise
        hint = getattr(error, "hint", "") or "check the address and that the server runs"
        return [Check("state server", False, str(error), hint)], True
    checks = judge(facts)
    broker = _broker(app)
    checks.insert(-1, broker)
    return checks, not broker.ok


def _providers(app: AgentQ | None) -> tuple[list[Check], bool]:
    """What is about the models' providers, and whether one of these refuses its key."""
    from agentq.cli.providers import of_agents, of_variables
    from agentq.provider.reach import reachable

    checks, refused = [], False
    for client in of_agents(app.agents) if app is not None else of_variables():
        reach = reachable(client)
        checks.append(Check(f"provider {client.provider}", reach.ok, reach.found, reach.fix))
        refused = refused or reach.refused
    return checks, refused


def _flower() -> Check:
    """It is nobody's need, so it is never to be mended."""
    try:
        found = f"{version('flower')}: agentq up --flower shows it"
    except PackageNotFoundError:
        found = "not installed, and not needed: pip install 'agentq[flower]' brings Celery's monitor"
    return Check("flower", True, found)


def _broker(app: AgentQ) -> Check:
    try:
        return Check("broker", True, f"{app.ping_broker()} answers")
    except UnavailableError as error:
        return Check("broker", False, str(error), error.hint)


def judge(facts: Mapping[str, Any]) -> list[Check]:
    """What the facts about the server mean."""
    release = str(facts["version"])
    off = abs(int(facts["clock_ms_off"]))
    workers = list(facts["workers"])
    return [
        Check("state server", True, f"{facts['server']} answers"),
        Check("version", _release(release) >= OLDEST, release, "agentq needs Redis or Valkey 7.0 or newer"),
        Check(
            "persistence",
            bool(facts["aof"]),
            "append-only file on" if facts["aof"] else "append-only file off: a restart loses runs and money",
            "CONFIG SET appendonly yes, and the same in the server's configuration",
        ),
        Check(
            "eviction",
            facts["policy"] == "noeviction",
            f"maxmemory-policy {facts['policy']}",
            "CONFIG SET maxmemory-policy noeviction: any other may drop a run",
        ),
        Check("role", facts["role"] == "master", str(facts["role"]), "point AGENTQ_REDIS_URL at the primary"),
        Check("clock", off <= CLOCK_MS_MAX, f"{off} ms off this machine's", "synchronise the clocks (NTP)"),
        Check(
            "workers",
            bool(workers),
            f"{len(workers)} alive" if workers else "none: runs are queued, nobody does them",
            "agentq up, or agentq worker, starts one",
        ),
    ]


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
