"""Keys that cannot be guessed bit by bit."""

import hmac

import pytest
from starlette.datastructures import Headers

from sandbox_server.api.auth import ApiKeys


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only digests are compared, each of them, and whichever fits: by hmac, never by `==`."""
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def watch(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return real(left, right)

    monkeypatch.setattr(hmac, "compare_digest", watch)
    keys = ApiKeys.parse("acme:first-key,globex:second-key")
    assert keys.tenant(Headers({"x-api-key": "second-key"})) == "globex"
    assert all(len(each) == 32 for pair in compared for each in pair)
    assert not any(b"key" in each for pair in compared for each in pair)
