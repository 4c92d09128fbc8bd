"""The fixture that users' own tests take."""

from __future__ import annotations

import os

import openai

from agentq.testing import FakeProvider
from agentq.testing.pytest_plugin import KEY, fake_provider

__all__ = ["fake_provider"]
WAS = {name: os.environ.get(name) for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "OPENAI_API_KEY")}


def test_the_environment_points_to_it(fake_provider: FakeProvider):
    assert os.environ["OPENAI_BASE_URL"] == os.environ["ANTHROPIC_BASE_URL"] == fake_provider.url
    assert os.environ["OPENAI_API_KEY"] == os.environ["ANTHROPIC_API_KEY"] == KEY
    fake_provider.script = ["It is on its way."]
    with openai.OpenAI(max_retries=0) as client:
        assert client.responses.create(model="any", input="hello").output_text == "It is on its way."
    assert fake_provider.requests[0].text == "hello"


def test_the_environment_is_as_it_was_afterwards():
    assert {name: os.environ.get(name) for name in WAS} == WAS
