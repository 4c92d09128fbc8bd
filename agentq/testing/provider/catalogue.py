"""Every fault that there is, by name, and which quirk of real providers it stands for."""

from __future__ import annotations

from agentq.testing.provider.demands import DEMANDS
from agentq.testing.provider.known import Known
from agentq.testing.provider.refusals import REFUSALS
from agentq.testing.provider.twists import TWISTS, WIRES

CATALOGUE: dict[str, Known] = {**DEMANDS, **TWISTS, **REFUSALS, **WIRES}
