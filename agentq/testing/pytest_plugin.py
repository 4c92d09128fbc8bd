"""A fixture for users' own tests: `pytest_plugins = ["agentq.testing.pytest_plugin"]` in a conftest.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentq.testing.provider import FakeProvider

KEY = "sk-fake-provider"
"""The key that the environment names during a test."""


@pytest.fixture
def fake_provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeProvider]:
    """A provider of the test's own, to which both base URLs and both keys of the environment point."""
    with FakeProvider() as provider:
        for service in ("OPENAI", "ANTHROPIC"):
            monkeypatch.setenv(f"{service}_BASE_URL", provider.url)
            monkeypatch.setenv(f"{service}_API_KEY", KEY)
        yield provider
