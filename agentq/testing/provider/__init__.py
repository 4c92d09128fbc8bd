"""A model provider on this machine: real HTTP, three dialects, a script, faults, limits and a bill."""

from __future__ import annotations

from agentq.testing.provider.bill import Bill, Entry, Totals
from agentq.testing.provider.fault import Fault
from agentq.testing.provider.latency import lognormal, uniform
from agentq.testing.provider.limits import Limits
from agentq.testing.provider.request import Request
from agentq.testing.provider.script import Call, Turn, load_script
from agentq.testing.provider.server import FakeProvider

__all__ = [
    "Bill",
    "Call",
    "Entry",
    "FakeProvider",
    "Fault",
    "Limits",
    "Request",
    "Totals",
    "Turn",
    "load_script",
    "lognormal",
    "uniform",
]
