"""Which provider stands behind an address: the name under which its prices and its limits are kept."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from agentq.provider.errors import InvalidRequest

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


def address(url: str) -> tuple[str, tuple[str, str] | None]:
    """An address as it may be shown, without a slash at its end; and the user and password that were in it.

    Raises:
        InvalidRequest: when it is none.
    """
    url = url.strip()
    scheme, separator, rest = url.partition("://")
    before, slash, path = rest.partition("/")
    login, _, host = before.rpartition("@")
    shown = f"{scheme}{separator}{host}{slash}{path}".rstrip("/")
    try:
        parts = urlsplit(shown)
        known = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    # What would be a password with a slash in it is left over in the path.
    if not known or not shown.isprintable() or set(" @?#") & set(shown):
        raise InvalidRequest(
            "that is no address of a model: it begins with http:// or https://, then come a host and a path "
            f"without ? # @{_seen(shown)}"
        )
    user, _, password = login.partition(":")
    return shown, (unquote(user), unquote(password)) if login else None


def _seen(shown: str) -> str:
    return "" if set("@?#") & set(shown) else f": {shown!r}"


def provider_at(base_url: str, default: str) -> str:
    """The provider whose public address this is; `default` for any other, such as a proxy."""
    return _HOSTS.get((urlsplit(base_url).hostname or "").lower(), default)


def is_public(base_url: str) -> bool:
    """Whether this is the public address of a provider, where nothing is answered without a key."""
    return (urlsplit(base_url).hostname or "").lower() in _HOSTS
