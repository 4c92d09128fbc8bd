"""Keys: where they are read, and that nothing says them."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentq.provider.apikey import ApiKey, key_tag
from agentq.provider.errors import AuthError

KEY = ApiKey("TEST_API_KEY")
SECRET = "sk-secret-0123456789"


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_API_KEY", raising=False)
    monkeypatch.delenv("TEST_API_KEY_FILE", raising=False)


def test_without_a_variable_there_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    assert KEY.read() is None
    monkeypatch.setenv("TEST_API_KEY", "  ")
    assert KEY.read() is None


def test_the_file_goes_before_the_variable_and_that_before_the_file_it_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, last = tmp_path / "first", tmp_path / "last"
    first.write_text("one\n")
    last.write_text("three")
    monkeypatch.setenv("TEST_API_KEY_FILE", str(last))
    assert KEY.read() == "three"
    monkeypatch.setenv("TEST_API_KEY", " ")
    assert KEY.read() == "three"
    monkeypatch.setenv("TEST_API_KEY", " two\n")
    assert KEY.read() == "two"
    assert ApiKey("TEST_API_KEY", str(first)).read() == "one"


def test_a_new_key_in_the_file_counts_at_the_next_call(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("old")
    key = ApiKey("TEST_API_KEY", str(path))
    assert key.read() == "old"
    (tmp_path / "new").write_text("new")
    (tmp_path / "new").rename(path)
    assert key.read() == "new"


@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\xff\xfe", "it is no text"),
        (b"\xef\xbb\xbfsk-1", "no key has"),
        (b"sk-1\nsk-2", "no key has"),
        (b"Bearer sk-1", "no key has"),
        ("sk-é".encode(), "no key has"),
        (b"x" * 20_000, "longer than any key"),
    ],
)
def test_a_file_without_a_usable_key_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(AuthError, match=said) as caught:
        ApiKey("TEST_API_KEY", str(path)).read()
    assert str(path) in str(caught.value)


def test_a_file_that_never_ends_is_not_read_to_its_end() -> None:
    with pytest.raises(AuthError, match="longer than any key"):
        ApiKey("TEST_API_KEY", "/dev/zero").read()


@pytest.mark.parametrize("path", ["/nowhere/key", "/", "\0"])
def test_a_file_that_cannot_be_read_is_said_so(path: str) -> None:
    with pytest.raises(AuthError, match="cannot be read"):
        ApiKey("TEST_API_KEY", path).read()


@pytest.mark.parametrize("value", [f"Bearer {SECRET}", f"{SECRET}\n{SECRET}", f"{SECRET}é", f"{SECRET}\x7f"])
def test_a_key_with_wrong_characters_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("TEST_API_KEY", value)
    with pytest.raises(AuthError, match="the key in TEST_API_KEY") as caught:
        KEY.read()
    assert SECRET not in str(caught.value)


def test_a_key_in_the_variable_for_its_file_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_API_KEY_FILE", SECRET)
    with pytest.raises(AuthError, match="TEST_API_KEY_FILE names cannot be read") as caught:
        KEY.read()
    assert SECRET not in str(caught.value)


def test_an_account_s_tag_tells_keys_and_addresses_apart_and_says_neither() -> None:
    tags = {key_tag(url, key) for url in ("http://a", "http://b") for key in (SECRET, "other", None)}
    assert len(tags) == 6
    assert key_tag("http://a", SECRET) == key_tag("http://a", SECRET)
    assert all(len(tag) == 8 and tag not in SECRET for tag in tags)
    assert SECRET not in repr(KEY)
