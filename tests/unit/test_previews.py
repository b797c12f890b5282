"""Where previews are, and who may see them."""

import pytest

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.previews.opening import bind_previews
from sandbox_server.sessions.preview_address import Origin, PreviewAddress
from sandbox_server.sessions.previews import (
    TOKEN_FORM,
    PreviewTable,
    SessionPreviews,
    StoredPreview,
    decode,
    encode,
    new_token,
)
from sandbox_server.settings import load

SESSION = "0a1b2c3d-0000-4000-8000-00000000abcd"
ORIGIN = Origin(SESSION, 8080)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://localhost:8001", f"http://8080-{SESSION}.localhost:8001/"),
        ("https://previews.example.com", f"https://8080-{SESSION}.previews.example.com/"),
        ("https://Previews.Example.com:443/", f"https://8080-{SESSION}.previews.example.com/"),
        ("http://p.lan", f"http://8080-{SESSION}.p.lan/"),
        ("https://p.lan:8443", f"https://8080-{SESSION}.p.lan:8443/"),
    ],
)
def test_urls_lead_back(given: str, url: str) -> None:
    address = PreviewAddress.parse(given)
    assert address.url(ORIGIN) == url
    assert address.url(ORIGIN, "t") == f"{url}?token=t"
    host = url.split("/")[2]
    assert address.named(host) == ORIGIN
    assert address.named(host.upper()) == ORIGIN


@pytest.mark.parametrize(
    "wrong",
    ["", "previews.example.com", "ftp://x", "https://x/path", "https://x?y", "https://u@x",
     "https://127.0.0.1", "https://[::1]", "https://-x", "https://x..y", "https://*.x", "http://x:0x"],
)  # fmt: skip
def test_addresses_that_cannot_be(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - as of urlsplit, too
        PreviewAddress.parse(wrong)
    if wrong:
        monkeypatch.setenv("SANDBOX_PREVIEW_URL", wrong)
        with pytest.raises(InvalidRequest, match="SANDBOX_PREVIEW_URL"):
            load()


@pytest.mark.parametrize(
    ("settings", "api", "port"),
    [
        ({}, 8000, 8001),
        ({"port": 9000}, 9000, 9001),
        ({"port": 0}, 34567, 0),
        ({"port": 65535}, 65535, 0),
        ({"preview_port": 7000}, 8000, 7000),
        ({"preview_port": 0}, 8000, 0),
    ],
)
def test_the_port(settings: dict[str, int], api: int, port: int) -> None:
    assert load(**settings).previews_port(api) == port


def test_without_previews_no_port_is_taken() -> None:
    with bind_previews(load(previews=False), 8000) as port:
        assert port.listener is None
        assert str(port) == "none: SANDBOX_PREVIEWS is off"


def test_tokens() -> None:
    assert len({new_token() for _ in range(100)}) == 100
    assert TOKEN_FORM.fullmatch(new_token())
    tokens = [new_token() for _ in range(10)]
    stored = StoredPreview(public=False, created_at=1.0)
    for token in tokens:
        stored = stored.with_token(token)
    previews = SessionPreviews(tenant="t", session_id=SESSION, ports={8080: stored})
    assert [previews.is_token(8080, token) for token in tokens] == [False] * 2 + [True] * 8
    assert previews.allows(8080, tokens)
    assert not previews.allows(8080, [])
    assert not previews.allows(8081, tokens)
    assert previews.with_port(8081, StoredPreview(public=True, created_at=1.0)).allows(8081, [])
    assert not any(token in encode(previews) for token in tokens)
    assert decode(SESSION, encode(previews)) == previews


def test_what_is_stored() -> None:
    table = PreviewTable()
    stored = StoredPreview(public=True, created_at=1.0)
    previews = SessionPreviews(tenant="t", session_id=SESSION, ports={80: stored, 81: stored})
    assert table.of(SESSION) is None
    table.keep(previews)
    assert table.of(SESSION) == previews
    table.keep(previews.with_port(80, None))
    assert table.of(SESSION) == previews.with_port(80, None)
    table.keep(previews.with_port(80, None).with_port(81, None))
    assert table.of(SESSION) is None
