"""A server over HTTP: one pool of connections, and repeats where they can do no harm."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import httpx
from anyio.lowlevel import current_token

from sandbox_sdk.backends.remote.retry import FailedAttempt, Retry
from sandbox_sdk.protocol.errors import (
    Internal,
    InvalidRequest,
    RuntimeUnavailable,
    SandboxError,
    Unreachable,
)
from sandbox_sdk.protocol.models import COMMAND_TIMEOUT_S, TENANT_HEADER

if TYPE_CHECKING:  # Takes aiohttp, which not every program has.
    from sandbox_sdk.backends.remote.aiohttp_client import AiohttpClient

SILENCE_S = 45.0
"""A stream of events has a comment every 15 s: one that is silent for longer has been cut."""
KEPT_ALIVE_S = 4.0
"""Below the 5 s after which many servers close a connection: none is used that is being closed."""
_GATEWAY = (502, 503, 504)
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request as often as it is needed.

    repeatable: it does no harm twice. work_s: how long the server may work on it in silence.
    silence_s: how long there may be none at all; a longer one is a cut. accepts: statuses of errors
    that are answers here. tenant: on whose behalf it is sent on.
    """

    method: str
    path: str
    json: dict[str, Any] | None = None
    params: dict[str, Any] | None = None
    headers: dict[str, str] | None = None
    content: Callable[[], AsyncIterator[bytes]] | None = None
    repeatable: bool = False
    work_s: float = 0.0
    silence_s: float | None = None
    accepts: tuple[int, ...] = ()
    tenant: str | None = None


class Server:
    """Who opens it closes it."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float = 60.0,
        retry_for_s: float = 30.0,
        verify: bool | ssl.SSLContext = True,
        nearby: bool = False,
    ) -> None:
        """nearby: reached without a proxy, and often: takes aiohttp, which a server has."""
        self._address = _checked_url(url)
        self._headers = _key_header(api_key)
        self._auth: httpx.BasicAuth | None = None
        if self._address.userinfo:
            self._auth = httpx.BasicAuth(self._address.username, self._address.password)
            self._address = self._address.copy_with(userinfo=b"")
        self.url = str(self._address).rstrip("/")
        self._read_s = read_timeout_s
        self._connect_s = connect_timeout_s
        self._retry_for_s = retry_for_s
        self._verify = verify
        self._nearby = nearby
        self._known = False
        self.command_timeout_s = COMMAND_TIMEOUT_S
        """What a command gets there where nothing is said, as far as is known."""
        self._clients: dict[object, httpx.AsyncClient | AiohttpClient] = {}
        """By event loop: connections cannot leave the one they were made in."""

    async def close(self) -> None:
        """Close the connections of this event loop."""
        if client := self._clients.pop(current_token(), None):
            await client.aclose()

    @property
    def _client(self) -> httpx.AsyncClient | AiohttpClient:
        loop = current_token()
        if loop not in self._clients:
            self._clients[loop] = self._new_client()
        return self._clients[loop]

    def _new_client(self) -> httpx.AsyncClient | AiohttpClient:
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=100, keepalive_expiry=KEPT_ALIVE_S
        )
        # Reading the certificates of all authorities takes longer than most calls.
        verify = self._verify if self._address.scheme == "https" else False
        if self._address.scheme == "unix":
            transport = httpx.AsyncHTTPTransport(uds=self._address.path, limits=limits)
            return httpx.AsyncClient(
                base_url="http://sandbox", headers=self._headers, transport=transport
            )
        if self._nearby and self._auth is None:
            from sandbox_sdk.backends.remote.aiohttp_client import AiohttpClient

            return AiohttpClient(
                base_url=self._address, headers=self._headers, limits=limits, verify=verify
            )
        return httpx.AsyncClient(
            base_url=self._address,
            headers=self._headers,
            auth=self._auth,
            limits=limits,
            verify=verify,
        )

    def retry(self, *, at_most_s: float | None = None) -> Retry:
        """For one call."""
        for_s = self._retry_for_s
        return Retry(for_s if at_most_s is None else min(for_s, at_most_s), known=self._known)

    async def ask(self, call: Call, *, at_most_s: float | None = None) -> bytes:
        """The body of the answer, repeated for at most so long. Raises SandboxError."""
        retry = self.retry(at_most_s=at_most_s)
        began = time.monotonic()
        while True:
            attempt = time.monotonic()
            try:
                async with self._attempt(call) as answer:
                    with self._translated(call):
                        return await answer.aread()
            except FailedAttempt as failed:
                now = time.monotonic()
                if now < began + call.work_s + self._read_s:
                    retry.look_back(failed, lasted_s=now - attempt)
                await self.pause(retry, failed)

    @contextlib.asynccontextmanager
    async def open(self, call: Call) -> AsyncIterator[httpx.Response]:
        """The answer as it comes, repeated until it has begun. Raises SandboxError, and
        FailedAttempt where it is cut off after that."""
        retry = self.retry()
        async with contextlib.AsyncExitStack() as stack:
            while True:
                try:
                    answer = await stack.enter_async_context(self._attempt(call))
                    break
                except FailedAttempt as failed:
                    await self.pause(retry, failed)
            with self._translated(call):
                yield answer

    async def chunks(self, call: Call, answer: httpx.Response) -> AsyncIterator[bytes]:
        """The body of an answer as it comes. Raises SandboxError."""
        try:
            with self._translated(call):
                async for chunk in answer.aiter_raw():
                    yield chunk
        except FailedAttempt as failed:
            raise failed.error from failed.__cause__

    async def pause(self, retry: Retry, failed: FailedAttempt) -> None:
        """Wait for the next attempt. Raises the error where there is none."""
        pause_s = retry.pause_s(failed, time.monotonic())
        if pause_s is None:
            raise failed.error from failed.__cause__
        await asyncio.sleep(pause_s)

    @contextlib.asynccontextmanager
    async def _attempt(self, call: Call) -> AsyncIterator[httpx.Response]:
        """Raises FailedAttempt, or the error that the server tells."""
        request = self._request(call)
        with self._translated(call):
            answer = await self._client.send(request, stream=True)
        try:
            self._known = True
            if not answer.is_success and answer.status_code not in call.accepts:
                with self._translated(call):
                    await answer.aread()
                self._refused(call, answer)
            yield answer
        finally:
            await answer.aclose()

    def _request(self, call: Call) -> httpx.Request:
        read_s = self._read_s + call.work_s if call.silence_s is None else call.silence_s
        headers = call.headers
        if call.tenant is not None:
            headers = {**(headers or {}), TENANT_HEADER: call.tenant}
        try:
            return self._client.build_request(
                call.method,
                call.path,
                json=call.json,
                params=call.params,
                headers=headers,
                content=None if call.content is None else call.content(),
                timeout=httpx.Timeout(read_s, connect=self._connect_s, pool=None),
            )
        except UnicodeError:
            raise InvalidRequest("this is not text that can be sent; use valid Unicode") from None

    def _refused(self, call: Call, answer: httpx.Response) -> NoReturn:
        told = told_error(answer)
        after_s = _retry_after_s(answer)
        if told is not None and (after_s is None or isinstance(told, RuntimeUnavailable)):
            # Where a runtime has failed, the call may have begun: the caller decides.
            raise told
        error = told or self._untold(answer.status_code)
        # What the server itself has put off has not been done; what a proxy says may have been.
        put_off = after_s is not None and call.content is None
        passing = answer.status_code in _GATEWAY and call.repeatable
        raise FailedAttempt(error, repeatable=put_off or passing, after_s=after_s or 0.0)

    def _untold(self, status: int) -> SandboxError:
        if status in _GATEWAY:
            return RuntimeUnavailable(
                f"something before the server at {self.url} answers {status}; try again later"
            )
        return Internal(f"{self.url} answered {status} without saying why; is this the server?")

    @contextlib.contextmanager
    def _translated(self, call: Call) -> Iterator[None]:
        """httpx's errors end here."""
        try:
            yield
        except _UNSENT as exc:
            hopeless = _caused_by(exc, ssl.SSLError) or (
                not self._known and _caused_by(exc, socket.gaierror)
            )
            raise FailedAttempt(
                self._unreachable(exc), repeatable=not hopeless, unreached=True
            ) from exc
        except httpx.LocalProtocolError:
            error = InvalidRequest("this cannot be sent over HTTP; names are plain text")
            raise FailedAttempt(error, repeatable=False) from None
        except httpx.ReadTimeout as exc:
            again = call.repeatable and call.silence_s is not None
            raise FailedAttempt(self._silent(), repeatable=again) from exc
        except httpx.HTTPError as exc:
            raise FailedAttempt(self._cut(exc, call), repeatable=call.repeatable) from exc

    def _unreachable(self, exc: Exception) -> SandboxError:
        why = str(exc) or f"no connection within {self._connect_s:g} s"
        return Unreachable(
            f"no server answers at {self.url} ({why}): start one with `sandbox serve`, or point"
            " SANDBOX_URL at one that runs",
            may_have_arrived=False,
        )

    def _silent(self) -> SandboxError:
        error = Unreachable(
            f"the server at {self.url} took the call and did not answer in time; look at its log,"
            " or give it longer with read_timeout_s"
        )
        error.silent = True
        return error

    def _cut(self, exc: Exception, call: Call) -> SandboxError:
        why = f"{type(exc).__name__}: {exc}".rstrip(": ")
        then = "try again" if call.repeatable else "it may have been carried out, so look first"
        return Unreachable(f"the connection to {self.url} broke off ({why}); {then}")


def told_error(answer: httpx.Response) -> SandboxError | None:
    """The error in an answer, where it is one of ours."""
    try:
        body = answer.json()["error"]
        return SandboxError.from_wire(str(body["code"]), str(body["message"]), body.get("details"))
    except (ValueError, KeyError, TypeError):
        return None


def _retry_after_s(answer: httpx.Response) -> float | None:
    given = answer.headers.get("retry-after", "")
    return float(given) if given.isascii() and given.isdecimal() else None


def _caused_by(exc: BaseException | None, kind: type[BaseException]) -> bool:
    while exc is not None:
        if isinstance(exc, kind):
            return True
        exc = exc.__cause__ or exc.__context__
    return False


def _checked_url(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    if parsed.host if parsed.scheme in ("http", "https") else parsed.scheme == "unix":
        return parsed
    raise InvalidRequest(
        "a server's address is like http://127.0.0.1:8000, https://host or unix:///path"
    )


def _key_header(api_key: str | None) -> dict[bytes, bytes]:
    """Bytes: a key need not be ASCII. What no header can hold would be shown by whoever refuses it
    later."""
    key = (api_key or "").strip()
    if any(ord(character) < 32 for character in key):
        raise InvalidRequest("the API key has a line break or another control character in it")
    return {b"authorization": f"Bearer {key}".encode()} if key else {}
