from __future__ import annotations

import pytest

from tests.support.leaks import assert_no_leaks, leaked_keys


@pytest.fixture
def prefix(namespace) -> str:
    return f"{{aq:{namespace}}}:"


def test_a_key_without_an_end_is_a_leak(redis_client, prefix):
    redis_client.set(f"{prefix}run:r1", 1)
    redis_client.set(f"{prefix}run:r2", 1, ex=60)
    assert leaked_keys(redis_client, prefix) == ["run:r1"]


def test_what_is_allowed_to_stay_is_no_leak(redis_client, prefix):
    redis_client.set(f"{prefix}meta", 1)
    redis_client.set(f"{prefix}scope:tenant:a", 1)
    assert leaked_keys(redis_client, prefix, allowed=["meta", "scope:*"]) == []


def test_keys_of_another_namespace_are_not_looked_at(redis_client, prefix):
    redis_client.set("{aq:other}:run:r1", 1, px=60_000)
    redis_client.persist("{aq:other}:run:r1")
    assert leaked_keys(redis_client, prefix) == []
    redis_client.delete("{aq:other}:run:r1")


def test_the_failure_names_the_key(redis_client, prefix):
    redis_client.rpush(f"{prefix}run:r1:thread", "x")
    with pytest.raises(AssertionError, match="run:r1:thread"):
        assert_no_leaks(redis_client, prefix)
