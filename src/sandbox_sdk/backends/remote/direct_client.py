"""A client for short calls to a server that is reached without a proxy.

httpx alone takes 1.4 ms of CPU for a call, most of it in its pool of connections, in anyio and in
what it offers and nobody here uses. Streamed request bodies still go through it: there the
difference does not matter.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterable, Iterator
from typing import Any, Literal

import h11
import httpx

from sandbox_sdk.backends.remote.direct_connection import Connection, Connections, Place

_AGENT = b"agent-sandbox"


class DirectClient:
    """The part of httpx.AsyncClient that Server uses, without proxies, cookies and redirects."""

    def __init__(
        self,
        *,
        base_url: httpx.URL,
        headers: dict[bytes, bytes],
        limits: httpx.Limits,
        verify: bool | ssl.SSLContext,
        unix_path: str | None = None,
    ) -> None:
        self._base = str(base_url).rstrip("/")
        self._urls: dict[str, httpx.URL] = {}
        self._headers = {b"user-agent": _AGENT, **headers}
        self._streams = httpx.AsyncHTTPTransport(limits=limits, verify=verify, uds=unix_path)
        self._connections = Connections(
            Place.of(base_url, verify=verify, unix_path=unix_path), limits
        )

    def build_request(
        self,
        method: str,
        path: str,
        *,
        json: dict[str, Any] | None,
        params: dict[str, Any] | None,
        headers: dict[str, str] | None,
        content: AsyncIterable[bytes] | None,
        timeout: httpx.Timeout,
    ) -> httpx.Request:
        return httpx.Request(
            method,
            self._url(path),
            params=params,
            headers=httpx.Headers([*self._headers.items(), *httpx.Headers(headers).raw]),
            json=json,
            content=content,
            extensions={"timeout": timeout.as_dict()},
        )

    def _url(self, path: str) -> httpx.URL:
        """Parsed once for each path: there are few."""
        if path not in self._urls:
            self._urls[path] = httpx.URL(f"{self._base}{path}")
        return self._urls[path]

    async def send(self, request: httpx.Request, *, stream: Literal[True]) -> httpx.Response:  # noqa: ARG002
        """The answer as it comes. Raises httpx.TransportError."""
        if not isinstance(request.stream, httpx.ByteStream):
            return await self._streams.handle_async_request(request)
        timeouts = request.extensions["timeout"]
        with _local_errors():
            head = h11.Request(
                method=request.method, target=request.url.raw_path, headers=request.headers.raw
            )
        connection = await self._connections.take(connect_s=timeouts["connect"])
        try:
            await connection.send(head, request.content, write_s=timeouts["write"])
            answer = await connection.head(read_s=timeouts["read"])
        except BaseException:
            self._connections.give_back(connection)
            raise
        body = _Body(connection, self._connections, read_s=timeouts["read"])
        return httpx.Response(
            answer.status_code, headers=answer.headers.raw_items(), stream=body, request=request
        )

    async def aclose(self) -> None:
        self._connections.close()
        await self._streams.aclose()


class _Body(httpx.AsyncByteStream):
    def __init__(self, connection: Connection, pool: Connections, *, read_s: float | None) -> None:
        self._connection = connection
        self._pool = pool
        self._read_s = read_s

    async def __aiter__(self) -> Any:
        while data := await self._connection.body(read_s=self._read_s):
            yield data

    async def aclose(self) -> None:
        self._pool.give_back(self._connection)


@contextlib.contextmanager
def _local_errors() -> Iterator[None]:
    try:
        yield
    except h11.LocalProtocolError as exc:  # A line break in a header.
        raise httpx.LocalProtocolError(str(exc)) from exc
