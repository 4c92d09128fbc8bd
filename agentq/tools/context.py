"""What the server knows about a call and the model does not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class CallContext:
    """For whom a tool acts.

    `approved_calls` are the signatures that a person has approved. `idempotency_key` is what a tool hands
    to a service that acts once per key: the same for each repetition of one call in one run, empty when
    the run has no id. `extra` is the caller's own.
    """

    user_id: str = ""
    tenant_id: str = ""
    approved_calls: frozenset[str] = frozenset()
    extra: Mapping[str, Any] = field(default_factory=dict)
    run_id: str = ""
    idempotency_key: str = ""
