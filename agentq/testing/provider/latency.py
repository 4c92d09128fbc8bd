"""How long an answer takes: a number of seconds, or a distribution of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

Latency = float | Callable[[random.Random], float]
"""Seconds, or a function that draws them from a source of random numbers."""

LONGEST_S = 3_600.0


def lognormal(median_s: float, sigma: float) -> Callable[[random.Random], float]:
    """Half of the answers take less than `median_s` seconds; the larger `sigma`, the longer the longest."""
    return lambda source: source.lognormvariate(math.log(median_s), sigma)


def uniform(least_s: float, most_s: float) -> Callable[[random.Random], float]:
    """Each number of seconds between the two is as likely as any other."""
    return lambda source: source.uniform(least_s, most_s)


def seconds(latency: Latency, source: random.Random) -> float:
    """How long this answer takes; never negative, never more than an hour."""
    drawn = latency(source) if callable(latency) else latency
    return min(max(0.0, drawn), LONGEST_S)
