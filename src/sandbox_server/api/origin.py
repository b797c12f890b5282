"""Keeps web pages of other sites out of a server without API keys.

Every process that reaches such a server may use it, and so could every page in a browser on its
machine: by cross-site requests, or by DNS rebinding. The browser's Host, Origin and Sec-Fetch-Site
headers reveal both, and a page cannot change them.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from sandbox_sdk.protocol.errors import Forbidden
from sandbox_server.api.errors import error_response

ANY = "*"
_LOOKED_AT = (b"host", b"sec-fetch-site", b"origin")
_OWN_SITES = ("same-origin", "none")
"""`Sec-Fetch-Site` of our own pages, and of an address typed by the user."""
_PORTS = {"http": 80, "https": 443}
_REMEMBERED = 64
_LONGEST_NAME = 300
"""Bounds on the hosts whose verdict is remembered: callers choose them."""


class AllowedHosts:
    """The accepted Host headers: loopback, this machine's name, the address the server listens on,
    and those configured. `*` accepts any."""

    def __init__(self, listening_on: str = "127.0.0.1", more: Iterable[str] = ()) -> None:
        self._everywhere = listening_on in ("0.0.0.0", "::", "")
        own = () if self._everywhere else (listening_on,)
        self._names = {_normal(name) for name in ("localhost", socket.gethostname(), *own, *more)}
        # Most callers use one name for a server; parsing it takes longer than all else here.
        self._judged: dict[str, bool] = {}

    def __contains__(self, host: str) -> bool:
        """host: the header's value, with or without a port."""
        known = self._judged.get(host)
        if known is None:
            known = self._judge(host)
            if len(self._judged) < _REMEMBERED and len(host) <= _LONGEST_NAME:
                self._judged[host] = known
        return known

    def _judge(self, host: str) -> bool:
        name = _normal(_split(host)[0])
        if name in self._names or ANY in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        # Addresses are safe: DNS rebinding needs a name.
        return address.is_loopback or (self._everywhere and not address.is_unspecified)


class OriginGuard:
    """Answers 403 `forbidden` to requests from web pages of other sites."""

    def __init__(
        self, app: ASGIApp, *, hosts: AllowedHosts, off: Callable[[], bool] = lambda: False
    ) -> None:
        """off: once callers need keys, which pages of other sites do not have."""
        self._app = app
        self._hosts = hosts
        self._off = off

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        judged = scope["type"] == "http" and not self._off()
        refused = refusal(scope, self._hosts) if judged else ""
        if not refused:
            await self._app(scope, receive, send)
            return
        advice = "use http://localhost or 127.0.0.1, name it in SANDBOX_ALLOWED_HOSTS, or set"
        error = Forbidden(f"{refused}; {advice} SANDBOX_API_KEYS on the server")
        await error_response(error, scope["state"]["request_id"])(scope, receive, send)


def refusal(scope: Scope, hosts: AllowedHosts) -> str:
    """Why a request is refused; empty if it is not."""
    given: dict[bytes, list[str]] = {name: [] for name in _LOOKED_AT}
    for name, value in scope["headers"]:
        if name in given:
            given[name].append(value.decode("latin-1"))
    named, sites, origins = given.values()
    if len(named) > 1 or not all(name in hosts for name in named):
        return "a server without keys does not accept this Host"
    if any(site not in _OWN_SITES for site in sites):
        return "a server without keys does not serve pages of other sites"
    host = named[0] if named else ""
    if not all(_is_own(origin, host) for origin in origins):
        return "a server without keys does not serve pages of another Origin"
    return ""


def _is_own(origin: str, host: str) -> bool:
    """Whether the request's origin is this server."""
    try:
        parts = urlsplit(origin)
        port = _PORTS[parts.scheme]
    except (KeyError, ValueError):
        return False
    return _split(parts.netloc, port) == _split(host, port)


def _normal(name: str) -> str:
    name = name.lower().strip("[]").rstrip(".")
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name


def _split(host: str, default: int = 0) -> tuple[str, int]:
    """Host name and port; ("", 0) if invalid."""
    try:
        parts = urlsplit(f"//{host}")
        if parts.netloc != host or "@" in host:
            return "", 0
        return (parts.hostname or "").rstrip("."), parts.port or default
    except ValueError:
        return "", 0
