"""A client for many short calls, such as a coordinator's to its workers.

With httpx alone a call takes 1.3 ms of CPU, most of it in httpcore; aiohttp takes a quarter of
that. Streamed request bodies still go through httpx: there the difference does not matter, and it
passes on an exception of the body's source unchanged.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from typing import Any, Literal

import aiohttp
import httpx
import yarl

from sandbox_sdk.backends.remote.diagnosis import NotHttp

LONGEST_HEADER = 64 * 1024
"""Bytes: the path of a downloaded file comes as a header."""


class AiohttpClient:
    """The part of httpx.AsyncClient that Server uses, without proxies, cookies and redirects."""

    def __init__(
        self,
        *,
        base_url: httpx.URL,
        headers: dict[bytes, bytes],
        limits: httpx.Limits,
        verify: bool | ssl.SSLContext,
    ) -> None:
        self._base = str(base_url).rstrip("/")
        self._urls: dict[str, httpx.URL] = {}
        self._headers = headers
        self._streams = httpx.AsyncHTTPTransport(limits=limits, verify=verify)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=limits.keepalive_expiry, ssl=verify
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("Accept-Encoding",),
            max_line_size=LONGEST_HEADER,
            max_field_size=LONGEST_HEADER,
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
        with _translated():
            answer = await self._session.request(
                request.method,
                yarl.URL(str(request.url), encoded=True),
                headers=request.headers,
                data=request.content or None,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(
                    sock_connect=timeouts["connect"], sock_read=timeouts["read"]
                ),
            )
        return httpx.Response(
            answer.status, headers=answer.raw_headers, stream=_Body(answer), request=request
        )

    async def aclose(self) -> None:
        await self._session.close()
        await self._streams.aclose()


class _Body(httpx.AsyncByteStream):
    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _translated():
            async for chunk in self._answer.content.iter_any():
                yield chunk

    async def aclose(self) -> None:
        # A body that was read to its end has already released its connection.
        self._answer.close()


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Turns aiohttp's errors into httpx's. ConnectError only if nothing can have been sent."""
    try:
        yield
    except aiohttp.ConnectionTimeoutError as exc:
        raise httpx.ConnectTimeout(str(exc)) from exc
    except aiohttp.ClientConnectorError as exc:
        raise httpx.ConnectError(str(exc)) from exc
    except TimeoutError as exc:
        raise httpx.ReadTimeout(str(exc)) from exc
    except aiohttp.ClientResponseError as exc:
        raise NotHttp(exc.message) from exc
    except ValueError as exc:  # A line break in a header.
        raise httpx.LocalProtocolError(str(exc)) from exc
    except (aiohttp.ClientError, OSError) as exc:
        raise httpx.ReadError(str(exc)) from exc
