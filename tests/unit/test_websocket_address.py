"""How a client reaches the WebSockets of a server."""

import ssl

import httpx
import pytest

from sandbox_sdk.backends.remote.server import Call, Server
from sandbox_sdk.backends.remote.websocket_opening import WebSockets, target
from sandbox_sdk.protocol.errors import InvalidRequest


def websockets(url: str, *, nearby: bool = False) -> WebSockets:
    return WebSockets(httpx.URL(url), nearby=nearby)


@pytest.mark.parametrize(
    ("url", "host", "below"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000", ""),
        ("http://[::1]:8000/", "[::1]:8000", ""),
        ("http://a.test", "a.test", ""),
        ("https://a.test/below", "a.test", "/below"),
        ("https://a.test:80/be%20low/", "a.test:80", "/be%20low"),
        ("unix:///run/s.sock", "sandbox", ""),
    ],
)
def test_addresses(url: str, host: str, below: str) -> None:
    found = websockets(url)
    assert (found._place.authority, found._below) == (host, below)


def test_the_query() -> None:
    params = {"thread_id": "a b&ü", "port": 80, "unpause": False, "path": None}
    assert target("/connect", params) == (
        "/connect?thread_id=a+b%26%C3%BC&port=80&unpause=false&path="
    )
    assert target("/x", None) == "/x?"


async def test_what_is_no_text_is_told() -> None:
    call = Call(method="GET", path="/connect", params={"thread_id": "\ud800"})
    with pytest.raises(InvalidRequest, match="not valid Unicode"):
        await Server("http://a.test")._open_websocket(call)


def test_proxies_and_authorities_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    assert not websockets("http://a.test").proxied
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.test:3128")
    monkeypatch.setenv("NO_PROXY", "b.test")
    assert websockets("http://a.test").proxied
    assert not websockets("http://b.test").proxied
    assert not websockets("http://a.test", nearby=True).proxied
    assert not websockets("unix:///run/s.sock").proxied
    secure = websockets("https://a.test")
    assert isinstance(secure._place.tls, ssl.SSLContext)
    assert secure._place is secure._place
