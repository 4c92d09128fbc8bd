"""Webhooks as Standard Webhooks has them: whom to call, and how what is sent is signed.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from urllib.parse import urlsplit

SECRET_PREFIX = "whsec_"  # noqa: S105 - how every secret begins, not one
SECRET_BYTES = (24, 64)
URL_CHARS_MAX = 2_000
GIVEN_UP = "given up: "
"""So begins what went wrong with a notice that is not tried again."""
_HOST = re.compile(r"(?:\*\.)?[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?|\[?[0-9a-f:.]+\]?")
_MAKE = "echo whsec_$(openssl rand -base64 32)"


def secret_keys(text: str) -> list[bytes]:
    """The keys in a secret, or in several with commas between them.

    Raises:
        ValueError: when one is none, without saying it; with how to make one.
    """
    keys = []
    for secret in filter(None, (part.strip() for part in text.split(","))):
        try:
            key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if not secret.startswith(SECRET_PREFIX) or not SECRET_BYTES[0] <= len(key) <= SECRET_BYTES[1]:
            raise ValueError(f"a secret is 'whsec_' and base64 of 24 to 64 bytes; make one with {_MAKE}")
        keys.append(key)
    return keys


def signature(keys: list[bytes], message_id: str, timestamp: int, body: bytes) -> str:
    """The header `webhook-signature`: one of each key, so that a receiver may know the old or the new.

    Args:
        keys: see `secret_keys`.
        message_id: the header `webhook-id`.
        timestamp: the header `webhook-timestamp`, in seconds since 1970.
        body: what is sent.
    """
    signed = f"{message_id}.{timestamp}.".encode() + body
    digests = (hmac.digest(key, signed, "sha256") for key in keys)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


def check_hosts(text: str) -> list[str]:
    """The hosts in a list with commas: names, addresses, or `*.` and a name for all below it.

    Raises:
        ValueError: for one that is none of these.
    """
    hosts = [part.strip().lower() for part in text.split(",") if part.strip()]
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise ValueError(f"{host!r} is no host: write hooks.example.com, or *.example.com for all below")
    return [host.strip("[]") for host in hosts]


def check_url(url: str, hosts: str = "") -> str:
    """The URL itself, when it may be called.

    Args:
        url: http or https.
        hosts: to which hosts it may go, as the setting `webhook_hosts`; empty for any.

    Raises:
        ValueError: saying what is wrong with it.
    """
    if len(url) > URL_CHARS_MAX or not url.isascii() or any(char <= " " for char in url):
        raise ValueError(f"a URL is up to {URL_CHARS_MAX:,} ASCII characters without spaces")
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is no URL: {error}") from None
    if parts.scheme not in {"http", "https"} or not host:
        raise ValueError(f"{url!r} is no URL: write https://host/path")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a password does not belong into the URL: who receives it checks the signature")
    allowed = check_hosts(hosts)
    if allowed and not any(_matches(host, pattern) for pattern in allowed):
        raise ValueError(f"the setting webhook_hosts does not have {host!r}: it has {', '.join(allowed)}")
    return url


def _matches(host: str, pattern: str) -> bool:
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern
