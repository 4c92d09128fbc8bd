"""Money: whole nano-USD (1e-9 USD), never a float.

Prices are whole pico-USD per token, because real prices are not whole nano: 0.0375 USD per million
tokens is 37.5 nano-USD per token. The cost of a call is rounded up, once.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import NewType

NanoUSD = NewType("NanoUSD", int)

NANO = 1_000_000_000
PICO_PER_NANO = 1_000
MAX_AMOUNT = 2**53 - 1
"""The largest amount that a Lua number holds exactly: 9,007,199.25 USD, or as many tokens."""


def to_nano(amount: Decimal | str | int) -> NanoUSD:
    """Dollars to whole nano-USD, rounded up.

    Raises:
        TypeError: for a float: binary fractions are not money.
        ValueError: for text that is no number, for NaN, a negative or a too large amount.
    """
    if isinstance(amount, (float, bool)):
        raise TypeError(
            f"money is never a {type(amount).__name__}: write {str(amount)!r} in quotes, or use Decimal"
        )
    try:
        value = Decimal(amount)
    except (InvalidOperation, TypeError, ValueError):
        raise ValueError(f"{amount!r} is not an amount of USD, write for example '0.10'") from None
    if not value.is_finite() or value < 0:
        raise ValueError(f"{amount} USD is not an amount to spend: it must be 0 or more")
    nano = int((value * NANO).to_integral_value(rounding=ROUND_CEILING))
    if nano > MAX_AMOUNT:
        raise ValueError(f"{amount} USD is more than the ledger can count exactly (9007199 USD)")
    return NanoUSD(nano)


def check_tokens(amount: int) -> int:
    """A number of tokens as it is, when the ledger can hold it.

    Raises:
        TypeError: for anything but a whole number.
        ValueError: for a negative or a too large one.
    """
    if isinstance(amount, bool) or not isinstance(amount, int):
        raise TypeError(f"max_tokens={amount!r} is not a whole number of tokens")
    if not 0 <= amount <= MAX_AMOUNT:
        raise ValueError(
            f"max_tokens={amount} cannot be counted: it is 0 to {MAX_AMOUNT}, or None for no limit"
        )
    return amount


def to_usd(nano: int) -> Decimal:
    """Whole nano-USD to exact dollars."""
    return Decimal(nano) / NANO


def format_usd(nano: int, places: int = 6) -> str:
    """Dollars as text with a fixed number of places, rounded up: `0.001500`."""
    return f"{to_usd(nano).quantize(Decimal(1).scaleb(-places), rounding=ROUND_CEILING):f}"


def ceil_nano(pico: int) -> NanoUSD:
    """A sum of tokens times pico-USD prices, rounded up once to whole nano-USD."""
    return NanoUSD(-(-pico // PICO_PER_NANO))
