"""Scopes with their money, as a table that is indented like the tree, and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentq.core.money import format_usd, to_usd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentq.cli.console import Console
    from agentq.core.records import Account
    from agentq.store.scopes import Node

HEAD = (
    "scope",
    "limit",
    "spent",
    "reserved",
    "held",
    "left",
    "forfeited",
    "overage",
    "tokens",
    "of",
    "parked",
    "",
)
POLICIES = ("park", "stop", "winddown")


def show_tree(console: Console, node: Node) -> None:
    """The node and all below it: USD, and tokens that are spent, reserved or held, of how many."""
    from agentq.cli.console import columns

    for line in columns(HEAD, _rows(node, 0), left=(0, len(HEAD) - 1)):
        console.out(line)


def node_fields(node: Node) -> dict[str, Any]:
    """The node and all below it for JSON: money as exact decimal text."""
    account = node.account
    fields: dict[str, Any] = {
        "scope": account.scope,
        **({"period": node.period} if node.period else {}),
        "usd": {
            "limit": _exact(account.limit_nano),
            "spent": _exact(account.spent_nano),
            "reserved": _exact(account.reserved_nano),
            "held": _exact(account.escrowed_nano),
            "left": _exact(account.left_nano),
            "forfeited": _exact(account.forfeited_nano),
            "overage": _exact(account.overage_nano),
        },
        "tokens": {
            "limit": account.tokens_limit,
            "spent": account.tokens_spent,
            "reserved": account.tokens_reserved,
            "held": account.tokens_escrowed,
            "left": account.tokens_left,
        },
        "parked": node.parked,
        "frozen": "frozen" in account.words,
        "on_exhausted": on_exhausted(account),
    }
    if not node.period:
        fields["windows"] = [node_fields(window) for window in node.windows]
        fields["children"] = [node_fields(child) for child in node.children]
        if node.left_out:
            fields["left_out"] = node.left_out
    return fields


def on_exhausted(account: Account) -> str | None:
    """What a scope says itself about what its being dry means; None leaves it to each run."""
    return next((word for word in POLICIES if word in account.words), None)


def usd(nano: int | None) -> str:
    """Dollars to the nano-dollar where that is needed, else with six places; nothing for None."""
    return "" if nano is None else format_usd(nano, 9 if nano % 1000 else 6)


def _rows(node: Node, depth: int) -> Iterator[tuple[object, ...]]:
    account = node.account
    name = f"@{account.scope.rpartition('@')[2]} {node.period}" if node.period and depth else account.scope
    if node.period and not depth:
        name = f"{account.scope} {node.period}"
    taken = account.tokens_spent + account.tokens_reserved + account.tokens_escrowed
    words = ["frozen"] if "frozen" in account.words else []
    words += [f"on_exhausted={word}" for word in POLICIES if word in account.words]
    yield (
        "  " * depth + name,
        usd(account.limit_nano),
        usd(account.spent_nano),
        usd(account.reserved_nano),
        usd(account.escrowed_nano),
        usd(account.left_nano),
        usd(account.forfeited_nano),
        usd(account.overage_nano),
        taken,
        "" if account.tokens_limit is None else account.tokens_limit,
        node.parked or "",
        " ".join(words),
    )
    for below in (*node.windows, *node.children):
        yield from _rows(below, depth + 1)
    if node.left_out:
        yield ("  " * (depth + 1) + f"… and {node.left_out} more", *([""] * (len(HEAD) - 1)))


def _exact(nano: int | None) -> str | None:
    return None if nano is None else f"{to_usd(nano):f}"
