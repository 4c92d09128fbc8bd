"""`agentq tenants`: whose runs are in flight, whose rows wait, and what each may have."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from agentq.cli.amount import KEEP, Keep
from agentq.cli.cap import IN_FLIGHT
from agentq.cli.console import plural
from agentq.cli.globals import Verb, VerbGroup
from agentq.core.errors import UsageError
from agentq.core.ids import check_name
from agentq.core.records import TenantRecord
from agentq.core.words import nearest

if TYPE_CHECKING:
    from agentq.cli.session import Session
    from agentq.store import Store

HEAD = ("tenant", "in flight", "of at most", "rows", "batches in turn", "weight")
WEIGHT_MAX = 1_000


@click.group("tenants", cls=VerbGroup, invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Who takes turns: what each tenant has in flight and waiting, its weight and its cap."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_tenants)


@command.command("list", cls=Verb)
@click.pass_obj
def list_tenants(session: Session) -> None:
    """List the tenants: runs in flight, rows that wait, batches that take turns, weight and cap.

    A batch that is paused, over its cap, without money or not yet started has rows and takes no turns.
    """
    store = session.server_app().store
    rows = store.feeder.waiting()
    tenants = _known(store, rows)
    window, in_flight = store.feeder.window(), store.feeder.in_flight()
    most, each = store.feeder.caps()
    if session.console.json:
        session.console.document(
            {
                "window": window,
                "in_flight": in_flight,
                "max_in_flight": most,
                "each_max_in_flight": each,
                "tenants": [_fields(tenant, rows) for tenant in tenants.values()],
            }
        )
        return
    console = session.console
    console.out(f"{plural(in_flight, 'run')} in flight, the window is {window}")
    if not tenants:
        console.say("no tenant has runs or rows; agentq submit FILE --tenant TENANT brings one")
        return
    console.table(HEAD, [_row(tenant, rows, each) for tenant in tenants.values()])
    if rows and not window:
        console.say("no worker is alive, so no row begins: agentq worker, or agentq up")


@command.command("set", cls=Verb)
@click.argument("tenant")
@click.option(
    "--weight",
    type=click.IntRange(1, WEIGHT_MAX),
    metavar="N",
    help="With twice the weight it has twice the tokens. [default: 1]",
)
@click.option(
    "--max-in-flight",
    type=IN_FLIGHT,
    default=KEEP,
    help="The most runs that it has queued or running at once.",
)
@click.option("--new", is_flag=True, help="Also a tenant of which there is nothing yet.")
@click.pass_obj
def set_tenant(
    session: Session, tenant: str, weight: int | None, max_in_flight: int | Keep | None, *, new: bool
) -> None:
    """Change what TENANT may have: it counts from its next row on, and stays."""
    store = session.server_app().store
    check_name("tenant", tenant)
    if weight is None and max_in_flight == KEEP:
        raise UsageError("there is nothing to change", hint="--weight N, --max-in-flight N, or both")
    rows = store.feeder.waiting()
    known = _known(store, rows)
    if tenant not in known and not new and not store.scopes.exists(f"tenant:{tenant}"):
        raise UsageError(
            f"there is no tenant {tenant!r}{nearest(tenant, known)}",
            hint="agentq tenants list shows those that there are; --new sets one before its first run",
        )
    knobs: dict[str, int | None] = {}
    if weight is not None:
        knobs["weight"] = None if weight == 1 else weight
    if max_in_flight != KEEP:
        knobs["max"] = max_in_flight
    store.feeder.tune(tenant, knobs)
    changed = _known(store, rows).get(tenant) or TenantRecord(tenant, in_flight=0, batches=0)
    if session.console.json:
        session.console.document(_fields(changed, rows))
        return
    most = (
        "no cap of its own" if changed.max_in_flight is None else f"at most {changed.max_in_flight} in flight"
    )
    session.console.out(f"tenant {tenant}: weight {changed.weight}, {most}")


@command.command("limit", cls=Verb)
@click.option("--max-in-flight", type=IN_FLIGHT, default=KEEP, help="The most runs in flight of all tenants.")
@click.option(
    "--each", type=IN_FLIGHT, default=KEEP, help="The most of each tenant that has no cap of its own."
)
@click.pass_obj
def limit(session: Session, max_in_flight: int | Keep | None, each: int | Keep | None) -> None:
    """Change what all tenants together may have in flight, and each; it stays until it is changed.

    A submission sets both again where the settings max_in_flight and tenant_max_in_flight say so.
    """
    feeder = session.server_app().store.feeder
    knobs: dict[str, int | None] = {}
    if max_in_flight != KEEP:
        knobs["max"] = max_in_flight
    if each != KEEP:
        knobs["tenant_max"] = each
    if not knobs:
        raise UsageError("there is nothing to change", hint="--max-in-flight N, --each N, or none for either")
    feeder.tune("", knobs)
    most, of_each = feeder.caps()
    if session.console.json:
        session.console.document(
            {"window": feeder.window(), "max_in_flight": most, "each_max_in_flight": of_each}
        )
        return
    words = ["no cap" if cap is None else f"at most {cap} in flight" for cap in (most, of_each)]
    session.console.out(f"all tenants: {words[0]}; each: {words[1]}; the window is {feeder.window()}")


def _known(store: Store, rows: Counter[str]) -> dict[str, TenantRecord]:
    """All tenants by name: those of the feeder, and those of batches whose rows take no turns now."""
    found = {tenant.name: tenant for tenant in store.feeder.tenants()}
    others = {name: TenantRecord(name, in_flight=0, batches=0) for name in rows.keys() - found.keys()}
    return dict(sorted((found | others).items()))


def _fields(tenant: TenantRecord, rows: Counter[str]) -> dict[str, Any]:
    return asdict(tenant) | {"rows": rows[tenant.name]}


def _row(tenant: TenantRecord, rows: Counter[str], each: int | None) -> tuple[object, ...]:
    most = tenant.max_in_flight or each or "-"
    return (tenant.name, tenant.in_flight, most, rows[tenant.name], tenant.batches, tenant.weight)
