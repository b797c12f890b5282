"""Which requests can be read in one way only: where they end, and what follows them on their
connection. Others are refused: a proxy may read them in another way. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

Headers = Iterable[tuple[bytes, bytes]]
VERSIONS = ("1.1", "1.0")


class Unreadable(Exception):
    """A request that could be read in several ways. The message is for who sent it."""


@dataclass(frozen=True)
class Framing:
    """What the headers of a request say about what follows them."""

    has_body: bool
    waits: bool
    """Whether the client sends the body only once it is asked for it."""
    to_websocket: bool


def framing(
    method: bytes, version: str, url: bytes, headers: Headers, *, switches: bool
) -> Framing:
    """switches: whether the parser takes the request for one to another protocol, and so has not
    looked for its body. Raises Unreadable."""
    if version not in VERSIONS:
        raise Unreadable(f"HTTP/{version} on a connection of HTTP/1.1; send HTTP/1.1")
    hosts, codings, lengths, upgrades = [], [], [], []
    expects = False
    for name, value in headers:
        match name:
            case b"host":
                hosts.append(value)
            case b"transfer-encoding":
                codings.append(value.lower())
            case b"content-length":
                lengths.append(value)
            case b"upgrade":
                upgrades.append(value.lower())
            case b"expect":
                expects = expects or value.lower() == b"100-continue"
    _check_host(version, url, hosts)
    if codings and (codings != [b"chunked"] or version != "1.1"):
        raise Unreadable("the one Transfer-Encoding of this server is `chunked`, of HTTP/1.1")
    has_body = bool(codings) or any(length.strip(b"0") for length in lengths)
    if switches:
        _check_switch(method, upgrades, has_body=has_body)
    waits = expects and has_body and version == "1.1"
    return Framing(has_body=has_body, waits=waits, to_websocket=switches)


def _check_host(version: str, url: bytes, hosts: list[bytes]) -> None:
    if len(hosts) > 1 or (not hosts and version == "1.1"):
        raise Unreadable("a request has one Host header")
    if url[:1] in b"/*" or not hosts:
        return
    # A URL with a host: a proxy may go by that, and what is behind it by the header.
    if urlsplit(url).netloc.lower() != hosts[0].lower():
        raise Unreadable("the URL names another host than the Host header")


def _check_switch(method: bytes, upgrades: list[bytes], *, has_body: bool) -> None:
    if method == b"CONNECT":
        raise Unreadable("this server is no proxy: it takes no CONNECT")
    if upgrades != [b"websocket"]:
        raise Unreadable("this server upgrades connections to `websocket` alone; send no Upgrade")
    if has_body:
        raise Unreadable("a request for a WebSocket has no body")
