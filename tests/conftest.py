from __future__ import annotations

import os
import signal

import pytest

pytest_plugins = ["tests.support.processes", "tests.support.server"]

# Chosen by whoever runs the tests: which server they run against.
_KEPT = {"AGENTQ_REDIS_SERVER"}


def pytest_configure() -> None:
    # Whoever starts the suite in the background (`make test &`) has it ignore Ctrl-C, and all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Before anything is imported or started: the settings of the person at the keyboard are not the tests'.
    for name in [name for name in os.environ if name.startswith("AGENTQ_") and name not in _KEPT]:
        del os.environ[name]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tests of a group share what is slow to make: several processes would make one each."""
    if not session.config.getoption("loadgroup", default=False):
        return
    for item in session.items:
        if item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid}: this pytest-xdist does not keep its group together")


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that sets AGENTQ_… without monkeypatch does not set it for the next one."""
    for name in [name for name in os.environ if name.startswith("AGENTQ_") and name not in _KEPT]:
        monkeypatch.delenv(name)
