"""Keys: their form, their digests and what they allow."""

import pytest

from sandbox_server.access.keys import (
    SCOPES,
    Key,
    Scope,
    allowed,
    digest_of,
    id_of,
    new_key_text,
    parse_scopes,
    same,
)

SECRET = b"s" * 32


def key(text: str, *scopes: Scope, **more: float) -> Key:
    return Key(
        key_id=id_of(text) or "", tenant="acme", name="ci", scopes=scopes or ("use",),
        digest=digest_of(text, SECRET), created_at=1000.0, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def test_a_new_key_is_its_own_and_is_known_again() -> None:
    key_id, text = new_key_text()
    assert id_of(text) == key_id
    assert new_key_text()[1] != text
    assert same(key(text), text, SECRET)
    assert not same(key(text), text[:-1] + ("a" if text[-1] != "a" else "b"), SECRET)
    assert not same(key(text), text, b"o" * 32)
    assert text not in repr(key(text))


@pytest.mark.parametrize("text", ["", "sbx", "sbx_1_2", "sbx_" + "0" * 12 + "_" + "é" * 43, "key"])
def test_what_is_no_key_of_ours(text: str) -> None:
    assert id_of(text) is None


def test_times() -> None:
    _, text = new_key_text()
    assert key(text).is_valid(now=1e12)
    assert key(text, expires_at=2000.0).is_valid(now=1999.0)
    assert not key(text, expires_at=2000.0).is_valid(now=2000.0)
    assert not key(text, revoked_at=1500.0).is_valid(now=1400.0)


def test_scopes() -> None:
    assert {scope: allowed([scope]) for scope in SCOPES} == {
        "use": {"use", "read"},
        "read": {"read"},
        "admin": set(SCOPES),
        "metrics": {"metrics"},
    }
    assert "metrics" in allowed(["read", "metrics"])
    assert parse_scopes(["use", "metrics", "use"]) == ("use", "metrics")
    for wrong in ([], ["usage"]):
        with pytest.raises(ValueError, match="scope"):
            parse_scopes(wrong)
