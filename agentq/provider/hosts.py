"""Which provider stands behind an address: the name under which its prices and its limits are kept."""

from __future__ import annotations

from urllib.parse import urlsplit

_HOSTS = {
    "api.openai.com": "openai",
    "api.anthropic.com": "anthropic",
    "openrouter.ai": "openrouter",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral",
    "api.deepseek.com": "deepseek",
    "api.x.ai": "x-ai",
    "generativelanguage.googleapis.com": "google",
}


def provider_at(base_url: str, default: str) -> str:
    """The provider whose public address this is; `default` for any other, such as a proxy."""
    return _HOSTS.get((urlsplit(base_url).hostname or "").lower(), default)


def is_public(base_url: str) -> bool:
    """Whether this is the public address of a provider, where nothing is answered without a key."""
    return (urlsplit(base_url).hostname or "").lower() in _HOSTS
