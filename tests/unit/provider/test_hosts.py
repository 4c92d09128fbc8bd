"""Addresses of models, and who stands behind them."""

from __future__ import annotations

import pytest

from agentq.provider.errors import InvalidRequest
from agentq.provider.hosts import address, is_public, provider_at


@pytest.mark.parametrize(
    "url, shown, login",
    [
        ("https://api.openai.com/v1", "https://api.openai.com/v1", None),
        (" http://localhost:8000/ ", "http://localhost:8000", None),
        ("http://[::1]:8000/v1/", "http://[::1]:8000/v1", None),
        ("https://me:secret@proxy.example/v1", "https://proxy.example/v1", ("me", "secret")),
        ("https://me:s%40c%2F@proxy.example", "https://proxy.example", ("me", "s@c/")),
        ("https://me:a@b@proxy.example", "https://proxy.example", ("me", "a@b")),
        ("https://token@proxy.example", "https://proxy.example", ("token", "")),
    ],
)
def test_an_address_is_parted_from_its_login(url: str, shown: str, login: tuple[str, str] | None) -> None:
    assert address(url) == (shown, login)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8000",
        "api.openai.com/v1",
        "ftp://host/v1",
        "http://",
        "http:///v1",
        "http://[::1",
        "http://host:port/v1",
        "http://host:99999/v1",
        "http://host:0",
        "https://host/v1?key=secret",
        "https://host/v1#secret",
        "https://me:sec/ret@host/v1",
        "https://me:sec?ret/@host/v1",
        "me:secret@host",
        "ftp://me:secret@host",
        "https://ho st/v1",
        "https://host/v1\x00",
    ],
)
def test_what_is_no_address_is_refused_without_saying_a_secret(url: str) -> None:
    with pytest.raises(InvalidRequest, match="no address of a model") as caught:
        address(url)
    for secret in ("secret", "sec/ret", "sec?ret"):
        assert secret not in str(caught.value)


def test_an_address_that_is_refused_is_shown_where_it_holds_no_secret() -> None:
    with pytest.raises(InvalidRequest, match="'localhost:8000'"):
        address("localhost:8000")


@pytest.mark.parametrize(
    "url, provider",
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://API.OpenAI.com:443/v1", "openai"),
        ("https://openrouter.ai/api/v1", "openrouter"),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "google"),
        ("https://api.x.ai/v1", "x-ai"),
        ("https://api.openai.com.evil.example/v1", "own"),
        ("http://127.0.0.1:8000/v1", "own"),
    ],
)
def test_a_provider_is_known_by_its_public_host_alone(url: str, provider: str) -> None:
    assert provider_at(url, "own") == provider
    assert is_public(url) is (provider != "own")
