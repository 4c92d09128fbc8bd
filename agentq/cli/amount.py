"""Money and tokens as an option's value."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

import click

from agentq.core.money import MAX_AMOUNT, NANO, to_nano

Keep = Literal["="]
KEEP: Keep = "="
"""As it is: what an option for a limit is that was not given."""


class Amount(click.ParamType[Decimal]):
    """Dollars, exact, 0 or more."""

    name = "USD"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Decimal:
        """Refuse what is not an amount, in the ledger's own words."""
        try:
            to_nano(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return Decimal(str(value))


class Nano(click.ParamType[int]):
    """Dollars as whole nano-USD, exact: 0 or more, or with a sign too."""

    name = "USD"

    def __init__(self, *, signed: bool = False) -> None:
        self.signed = signed

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Refuse what is not an amount, also one that is finer than the ledger counts."""
        text = str(value).strip()
        sign = -1 if self.signed and text.startswith("-") else 1
        size = text[1:] if self.signed and text[:1] in {"-", "+"} else text
        try:
            nano = to_nano(size)
            exact = Decimal(size) * NANO == nano
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not exact:
            self.fail(f"{text} is finer than a nano-USD (nine decimal places)", param, ctx)
        return sign * nano


class Tokens(click.ParamType[int]):
    """A whole number of tokens: 0 or more, or with a sign too."""

    name = "N"

    def __init__(self, *, signed: bool = False) -> None:
        self.signed = signed

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Refuse what is no number, or more than the ledger can count."""
        try:
            tokens = int(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a whole number of tokens", param, ctx)
        if abs(tokens) > MAX_AMOUNT or (tokens < 0 and not self.signed):
            least = -MAX_AMOUNT if self.signed else 0
            self.fail(f"{tokens} tokens cannot be counted: it is {least} to {MAX_AMOUNT}", param, ctx)
        return tokens


class Limit(click.ParamType["int | Keep | None"]):
    """A limit, or `none` for no limit. An option that is not given keeps what there is."""

    def __init__(self, of: Nano | Tokens) -> None:
        self.of = of
        self.name = of.name

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | Keep | None:
        """The limit, None, or KEEP."""
        if value == KEEP:
            return KEEP
        if str(value).strip().lower() == "none":
            return None
        return self.of.convert(value, param, ctx)


USD = Amount()
