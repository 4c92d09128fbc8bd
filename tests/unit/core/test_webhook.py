"""Webhooks: who may be called, and how what is sent is signed."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from agentq.core.errors import UsageError
from agentq.core.settings import load_settings
from agentq.core.webhook import check_url, secret_keys, signature

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_the_signature_is_that_of_the_specifications_example() -> None:
    """Its secret, id, time and body, and what its own libraries make of them."""
    signed = signature(
        secret_keys(SECRET), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
    )
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_of_two_secrets_there_are_two_signatures_so_that_one_can_be_changed_for_the_other() -> None:
    other = "whsec_" + base64.b64encode(b"x" * 32).decode()
    both = signature(secret_keys(f"{SECRET}, {other}"), "m", 1, b"{}").split()
    alone = [signature(secret_keys(one), "m", 1, b"{}") for one in (SECRET, other)]
    assert both == alone
    assert alone[0] != alone[1]


@pytest.mark.parametrize(
    "secret",
    ["secret", "whsec_", "whsec_!!", "whsec_" + "eA==", SECRET[6:], f"{SECRET},x", "whsec_" + "eHh4" * 30],
)
def test_what_is_no_secret_is_refused_without_being_said(secret: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="openssl rand -base64 32") as refused:
        load_settings({"webhook_secret": secret}, folder=tmp_path)
    assert len(secret) < 12 or secret[-8:] not in str(refused.value)


def test_a_secret_is_not_shown_with_the_settings(tmp_path: Path) -> None:
    settings = load_settings({"webhook_secret": SECRET}, folder=tmp_path)
    assert settings.webhook_secret == SECRET
    assert SECRET not in repr(settings)


@pytest.mark.parametrize(
    "url, hosts",
    [
        ("https://hooks.example.com/x?y=1", ""),
        ("http://127.0.0.1:8080/", ""),
        ("http://[::1]:8080/", "::1"),
        ("https://Hooks.Example.com/x", "hooks.example.com"),
        ("https://hooks.example.com./x", "other.org, hooks.example.com"),
        ("https://a.b.example.com/x", "*.example.com"),
    ],
)
def test_a_url_to_a_host_that_is_allowed_may_be_called(url: str, hosts: str) -> None:
    assert check_url(url, hosts) == url


@pytest.mark.parametrize(
    "url, hosts, why",
    [
        ("ftp://example.com/", "", "write https://host/path"),
        ("example.com/x", "", "write https://host/path"),
        ("https:///x", "", "write https://host/path"),
        ("https://exa mple.com/", "", "without spaces"),
        ("https://example.com/" + "x" * 2_000, "", "up to 2,000"),
        ("https://example.com:99999/", "", "is no URL"),
        ("https://me:pw@example.com/", "", "password does not belong"),
        ("https://example.com/", "*.example.com", r"does not have 'example.com': it has \*.example.com"),
        ("https://evilexample.com/", "*.example.com", "does not have"),
        ("https://example.com.evil.org/", "example.com", "does not have"),
        ("http://169.254.169.254/", "hooks.example.com", "does not have"),
    ],
)
def test_any_other_url_is_refused_in_words(url: str, hosts: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_url(url, hosts)


@pytest.mark.parametrize("hosts", ["https://example.com", "a b", "*", "*.", "exam*ple.com"])
def test_a_list_of_hosts_has_hosts_only(hosts: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no host"):
        load_settings({"webhook_hosts": hosts}, folder=tmp_path)


def test_what_the_page_shows_a_receiver_knows_ours_from_others() -> None:
    page = (Path(__file__).parents[3] / "docs/webhooks.md").read_text()
    code = next(block for block in page.split("```python\n")[1:] if "def is_ours" in block).partition("```")[
        0
    ]
    known: dict[str, Any] = {}
    exec(code, known)
    headers = {"webhook-id": "m", "webhook-timestamp": "5"}
    headers["webhook-signature"] = signature(secret_keys(SECRET), "m", 5, b"{}")
    assert known["is_ours"](SECRET, headers, b"{}")
    assert not known["is_ours"](SECRET, headers, b"[]")
    assert not known["is_ours"](SECRET, headers | {"webhook-timestamp": "6"}, b"{}")
