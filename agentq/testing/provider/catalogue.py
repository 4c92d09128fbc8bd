"""Every fault that there is, by name."""

from __future__ import annotations

from agentq.testing.provider.known import Known

CATALOGUE: dict[str, Known] = {
    "closed": Known(says="the connection is closed before any byte of the answer", wire="closed"),
    "half_body": Known(says="the connection is closed after half of the body", wire="half"),
}
