"""The heads of requests and responses that pass through a preview. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

from sandbox_server.sessions.preview_address import TOKEN, Origin, PreviewAddress
from sandbox_server.sessions.previews import TOKEN_FORM

Headers = list[tuple[bytes, bytes]]

_COOKIE = "sandbox_preview"
_SECURE_COOKIE = f"__Host-{_COOKIE}"
"""Over https: with this prefix browsers hold other hosts of the domain off it."""
TRAFFIC_HEADER = b"e2b-traffic-access-token"
_MAX_TOKENS = 4
"""That are looked at in one request."""
_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"te", b"trailer",
     b"proxy-authorization", b"transfer-encoding", b"upgrade"}
)  # fmt: skip
_FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto",
                        b"x-forwarded-port", b"x-real-ip"})  # fmt: skip
_OWN_SITES = (b"same-origin", b"none")
_NO_HANDSHAKE = "a WebSocket is opened by GET of HTTP/1.1, without a body"
METHODS_PASSED = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"})


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request to a preview: what it is for, and what it shows to be let in."""

    origin: Origin
    host: str
    tokens: tuple[str, ...]
    """Of its cookies, and of its URL."""
    in_url: bool
    """Whether the URL has a token."""
    target: bytes
    """Without the token."""
    cookie: bytes
    """Without ours."""
    navigates: bool
    """Whether a person is to see the answer."""
    upgrades: bool
    """Whether it is to become a WebSocket."""
    traffic_token: str = ""
    """Of its header, as clients of e2b's SDK send it."""


def read_head(request: h11.Request, address: PreviewAddress) -> Asked | None:
    """None for a host that is no preview's, and for a target that is not a path."""
    host = _one(request, b"host").decode("latin-1")
    origin = address.named(host)
    path_alone = request.target.startswith(b"/")
    if origin is None or not path_alone or bytes(request.method) not in METHODS_PASSED:
        return None
    target, of_url = _without_token(request.target)
    cookie, of_cookies = _without_cookie(request)
    upgrades = _upgrades(request)
    if not _of_its_own_pages(request, host, upgrades=upgrades):
        of_cookies = []
    return Asked(
        origin=origin,
        host=host,
        tokens=tuple((of_url + of_cookies)[:_MAX_TOKENS]),
        in_url=bool(of_url),
        target=target,
        cookie=cookie,
        navigates=request.method in (b"GET", b"HEAD") and b"text/html" in _one(request, b"accept"),
        upgrades=upgrades,
        traffic_token=_one(request, TRAFFIC_HEADER).decode("latin-1"),
    )


def fault(request: h11.Request) -> str:
    """Why a request could be read in several ways; empty if it cannot."""
    names = [name for name, _ in request.headers]
    length = _one(request, b"content-length")
    chunked = b"transfer-encoding" in names
    if chunked and (length or request.http_version != b"1.1"):
        return "it says in two ways how long it is"
    if b"upgrade" not in _listed(_one(request, b"connection")) or not _one(request, b"upgrade"):
        return ""
    if not _upgrades(request):
        return "it asks for an upgrade that is no WebSocket"
    plain = request.method == b"GET" and request.http_version == b"1.1"
    return "" if plain and not chunked and length in (b"", b"0") else _NO_HANDSHAKE


def _one(request: h11.Request, name: bytes) -> bytes:
    return b",".join(value for key, value in request.headers if key == name)


def _without_token(target: bytes) -> tuple[bytes, list[str]]:
    """The target without tokens of ours, and those. A parameter of the same name that the
    application in the box has for itself stays."""
    path, mark, query = target.partition(b"?")
    tokens, kept = [], []
    for part in query.split(b"&"):
        name, _, value = part.decode("latin-1").partition("=")
        if name == TOKEN and TOKEN_FORM.fullmatch(value):
            tokens.append(value)
        else:
            kept.append(part)
    if not tokens:
        return target, []
    return path + (mark if any(kept) else b"") + b"&".join(kept), tokens


def _without_cookie(request: h11.Request) -> tuple[bytes, list[str]]:
    """The cookies without ours, and the tokens in ours. There may be several: pages of other hosts
    of the domain can set some, and must not keep anybody out by that."""
    tokens, kept = [], []
    for name, value in request.headers:
        for part in value.split(b";") if name == b"cookie" else ():
            key, _, token = part.strip().decode("latin-1").partition("=")
            if key in (_COOKIE, _SECURE_COOKIE):
                tokens.append(token)
            elif part.strip():
                kept.append(part.strip())
    return b"; ".join(kept), tokens


def _upgrades(request: h11.Request) -> bool:
    """To a WebSocket. Other protocols are not passed on: nobody would read their requests."""
    wanted = b"upgrade" in _listed(_one(request, b"connection"))
    return wanted and _listed(_one(request, b"upgrade")) == [b"websocket"]


def _listed(value: bytes) -> list[bytes]:
    return [part.strip().lower() for part in value.split(b",") if part.strip()]


def _of_its_own_pages(request: h11.Request, host: str, *, upgrades: bool) -> bool:
    """Whether the cookies of a request count. Those of a page of another origin do not: previews of
    other sessions are the same site to a browser, which sends cookies along then."""
    site, origin = _one(request, b"sec-fetch-site"), _one(request, b"origin").decode("latin-1")
    if upgrades and origin:
        return urlsplit(origin).netloc == host
    visits = request.method in (b"GET", b"HEAD") and _one(request, b"sec-fetch-mode") == b"navigate"
    return not site or site in _OWN_SITES or visits


def to_box(
    request: h11.Request, asked: Asked, *, peer: str, scheme: str, host: str | None = None
) -> h11.Request:
    """The request as the box gets it: without what is between the browser and us, and with where it
    came from. host: its Host header, if not the browser's."""
    dropped = {b"cookie", TRAFFIC_HEADER, *_hop_by_hop(request.headers), *_FORWARDED}
    if host is not None:
        dropped.add(b"host")
    headers = [(name, value) for name, value in request.headers if name not in dropped]
    if host is not None:
        headers.insert(0, (b"host", host.encode()))
    if any(name == b"transfer-encoding" for name, _ in request.headers):
        headers = [(name, value) for name, value in headers if name != b"content-length"]
        headers.append((b"transfer-encoding", b"chunked"))
    if asked.cookie:
        headers.append((b"cookie", asked.cookie))
    if asked.upgrades:
        headers += [(b"connection", b"upgrade"), (b"upgrade", b"websocket")]
    before = _one(request, b"x-forwarded-for")
    headers += [
        (b"x-forwarded-for", b", ".join(filter(None, [before, peer.encode()]))),
        (b"x-forwarded-proto", scheme.encode()),
        (b"x-forwarded-host", asked.host.encode()),
    ]
    return h11.Request(method=request.method, target=asked.target, headers=headers)


def to_browser(headers: Iterable[tuple[bytes, bytes]], *, switches: bool = False) -> Headers:
    """The headers of a response as the browser gets them. switches: of a 101."""
    given = list(headers)
    dropped = _hop_by_hop(given)
    if any(name == b"transfer-encoding" for name, _ in given):
        dropped = dropped | {b"content-length"}
    kept = [(name, value) for name, value in given if name not in dropped]
    return [*kept, (b"connection", b"upgrade"), (b"upgrade", b"websocket")] if switches else kept


def _hop_by_hop(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    named = [value for name, value in headers if name == b"connection"]
    # What a Connection header names goes, too, but not what says how long a body is.
    return _HOP_BY_HOP | ({*_listed(b",".join(named))} - {b"content-length", b"host", b"cookie"})


def entering(asked: Asked, address: PreviewAddress, tokens: Sequence[str]) -> Headers:
    """The headers of a redirect that turns the token of a URL into a cookie. tokens: those that are
    right; a public preview may have been asked with another."""
    # With the host: a target that begins with two slashes would lead elsewhere.
    place = f"{address.scheme}://{asked.host}".encode() + asked.target
    headers = [
        (b"location", place),
        (b"referrer-policy", b"no-referrer"),
        (b"cache-control", b"no-store"),
    ]
    name = _SECURE_COOKIE if address.secure else _COOKIE
    secure = "; Secure" if address.secure else ""
    for token in tokens[:1]:
        cookie = f"{name}={token}; Path=/; HttpOnly; SameSite=Lax{secure}"
        headers.append((b"set-cookie", cookie.encode()))
    return headers
