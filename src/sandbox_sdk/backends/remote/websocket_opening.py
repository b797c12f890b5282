"""Opens the WebSockets of a server: straight, or through the proxy that the environment names."""

from __future__ import annotations

import asyncio
import functools
import ssl
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from urllib.request import getproxies, proxy_bypass

import httpx

from sandbox_sdk.backends.remote.diagnosis import NotHttp
from sandbox_sdk.backends.remote.direct_connection import Place

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from sandbox_sdk.backends.remote.direct_websocket import DirectWebSocket

_LONGEST_MESSAGE = 2 << 20


class Refused(Exception):
    """The server has answered something else than that the WebSocket is open."""

    def __init__(self, answer: httpx.Response) -> None:
        super().__init__(answer.status_code)
        self.answer = answer


class WebSockets:
    """Those of one server."""

    def __init__(
        self, address: httpx.URL, *, verify: bool | ssl.SSLContext = True, nearby: bool = False
    ) -> None:
        """nearby: reached without a proxy, whatever the environment says."""
        self._address = address
        self._verify = verify
        self._nearby = nearby

    async def open(
        self, target: str, headers: list[tuple[str, str]], *, within_s: float
    ) -> DirectWebSocket | ClientConnection:
        """target: the path and query. Raises Refused, httpx.TransportError."""
        # Not at the top: importing these takes longer than most programs use the rest.
        from websockets.exceptions import InvalidHandshake, InvalidStatus

        try:
            async with asyncio.timeout(within_s):
                if self.proxied:
                    return await self._open_proxied(target, headers)
                return await self._open_direct(target, headers)
        except InvalidStatus as exc:
            raise Refused(_answer(exc)) from None
        except TimeoutError as exc:
            raise httpx.ConnectTimeout(str(exc)) from exc
        except OSError as exc:
            raise httpx.ConnectError(str(exc)) from exc
        except InvalidHandshake as exc:
            raise NotHttp(str(exc)) from exc

    async def _open_direct(self, target: str, headers: list[tuple[str, str]]) -> DirectWebSocket:
        from sandbox_sdk.backends.remote.direct_websocket import open_websocket

        return await open_websocket(
            self._place, f"{self._below}{target}", headers, longest=_LONGEST_MESSAGE
        )

    async def _open_proxied(self, target: str, headers: list[tuple[str, str]]) -> ClientConnection:
        from websockets.asyncio.client import connect

        secure: dict[str, Any] = {} if self._place.tls is None else {"ssl": self._place.tls}
        return await connect(
            f"ws{str(self._address).rstrip('/')[4:]}{target}",
            additional_headers=headers,
            compression=None,
            open_timeout=None,
            # A server that waits for a box reads nothing, an answer to a ping included.
            ping_timeout=None,
            max_size=_LONGEST_MESSAGE,
            user_agent_header=None,
            **secure,
        )

    @functools.cached_property
    def proxied(self) -> bool:
        """Found out once: all of the environment is searched for a proxy."""
        if self._nearby or self._address.scheme == "unix":
            return False
        place = f"{self._address.host}:{self._address.port or 443}"
        return bool(getproxies()) and not proxy_bypass(place)

    @functools.cached_property
    def _place(self) -> Place:
        """Made once: authorities take long to load."""
        if self._address.scheme == "unix":
            return Place("sandbox", 80, unix_path=self._address.path)
        verify = self._verify
        if self._address.scheme == "https":
            verify = httpx.create_ssl_context(verify=verify)
        return Place.of(self._address, verify=verify)

    @functools.cached_property
    def _below(self) -> str:
        """The path of the server's own address, without the last `/`."""
        if self._address.scheme == "unix":
            return ""
        return self._address.raw_path.decode("ascii").rstrip("/")


def target(path: str, params: dict[str, Any] | None) -> str:
    """Raises UnicodeError."""
    told = {
        name: str(value).lower() if isinstance(value, bool) else "" if value is None else value
        for name, value in (params or {}).items()
    }
    return f"{path}?{urlencode(told)}"


def _answer(error: Any) -> httpx.Response:
    found = error.response
    headers = list(found.headers.raw_items())
    return httpx.Response(found.status_code, headers=headers, content=bytes(found.body or b""))
