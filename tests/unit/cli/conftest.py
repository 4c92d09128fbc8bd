from __future__ import annotations

import pytest

from agentq.cli.session import Session
from tests.unit.cli.fakes import FakeApp


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> FakeApp:
    """The app that every verb gets."""
    fake = FakeApp()
    monkeypatch.setattr(Session, "any_app", lambda self: fake)
    monkeypatch.setenv("AGENTQ_APP", "fake:app")
    return fake
