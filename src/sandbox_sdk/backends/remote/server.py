"""A server over HTTP: its connections, and retries of calls that may be repeated."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.request import getproxies

import httpx
from anyio.lowlevel import current_token

from sandbox_sdk.backends.remote.diagnosis import (
    NotHttp,
    is_not_http,
    unanswered,
    unreached,
)
from sandbox_sdk.backends.remote.direct_client import DirectClient
from sandbox_sdk.backends.remote.retry import FailedAttempt, Retry
from sandbox_sdk.backends.remote.websocket_opening import Refused, WebSockets, target
from sandbox_sdk.protocol import calling_key
from sandbox_sdk.protocol.calling_key import KEY_HEADER, KEY_SIGNATURE_HEADER, to_header
from sandbox_sdk.protocol.errors import (
    Internal,
    InvalidRequest,
    RuntimeUnavailable,
    SandboxError,
    Unreachable,
)
from sandbox_sdk.protocol.models import COMMAND_TIMEOUT_S, TENANT_HEADER
from sandbox_sdk.protocol.tenant_signature import (
    SIGNATURE_HEADER,
    key_signature,
    tenant_signature,
)
from sandbox_sdk.tracing import NO_SPAN, Span

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from sandbox_sdk.backends.remote.direct_websocket import DirectWebSocket

log = logging.getLogger("sandbox.remote")

SILENCE_S = 45.0
"""A stream of events has a comment every 15 s: a longer silence means it was cut."""
KEPT_ALIVE_S = 4.0
"""Below the 5 s after which many servers close a connection, so that no call meets that."""
_GATEWAY = (502, 503, 504)
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
_FIRST_CONNECT_S = 4.0
"""Most of the time for a connection to a server that has never answered: its address may be wrong,
and the caller is told within 5 s."""


@dataclass(kw_only=True)
class Call:
    """A request that can be sent again.

    repeatable: it may be carried out twice. work_s: how long the server may work before it answers.
    silence_s: replaces the read timeout; after so long without a byte the connection counts as cut.
    accepts: error statuses that are answers here. tenant: on whose behalf a coordinator sends it.
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
    repeated: bool = False
    """Whether it was sent again after it may have arrived."""
    span: Span = NO_SPAN
    """Its own; the server goes on with the trace."""
    sent: int = 0
    """How often it was sent."""


class Server:
    """The connections to one server. Close it."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        fleet_key: str | None = None,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float = 60.0,
        retry_for_s: float = 30.0,
        verify: bool | ssl.SSLContext = True,
        nearby: bool = False,
    ) -> None:
        """fleet_key: in the place of an API key, and signs the tenant of each call. nearby: reached
        without a proxy, whatever the environment says."""
        self._fleet_key = fleet_key
        self._address = _checked_url(url)
        self._headers = _key_header(api_key or fleet_key)
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
        """The server's default timeout of a command, as far as is known."""
        self.place = _place(self._address)
        """As attributes of spans."""
        self._websockets = WebSockets(self._address, verify=verify, nearby=nearby)
        self._clients: dict[object, httpx.AsyncClient | DirectClient] = {}
        """By event loop: a connection belongs to the loop it was made in."""

    async def close(self) -> None:
        """Close the connections of this event loop. Calls without an answer fail."""
        if client := self._clients.pop(current_token(), None):
            await client.aclose()

    @property
    def _client(self) -> httpx.AsyncClient | DirectClient:
        loop = current_token()
        if loop not in self._clients:
            self._clients[loop] = self._new_client()
        return self._clients[loop]

    def _new_client(self) -> httpx.AsyncClient | DirectClient:
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=100, keepalive_expiry=KEPT_ALIVE_S
        )
        # Not for http: loading the certificate authorities takes longer than most calls.
        verify = self._verify if self._address.scheme == "https" else False
        is_unix = self._address.scheme == "unix"
        if self._is_direct():
            return DirectClient(
                base_url=httpx.URL("http://sandbox") if is_unix else self._address,
                headers=self._headers,
                limits=limits,
                verify=verify,
                unix_path=self._address.path if is_unix else None,
            )
        return httpx.AsyncClient(
            base_url=self._address,
            headers=self._headers,
            auth=self._auth,
            limits=limits,
            verify=verify,
        )

    def _is_direct(self) -> bool:
        """Whether httpx would not do more than we do ourselves."""
        if self._address.scheme == "unix":
            return True
        if self._auth is not None:
            return False
        # https: httpx has certificate authorities of its own.
        return self._nearby or (
            self._address.scheme == "http" and not getproxies().keys() & {"http", "all"}
        )

    def retry(self, *, at_most_s: float | None = None) -> Retry:
        """The retries of one call."""
        for_s = self._retry_for_s if at_most_s is None else min(self._retry_for_s, at_most_s)
        return Retry(for_s, known=self._known, began=time.monotonic(), client=self._client)

    async def ask(self, call: Call, *, at_most_s: float | None = None) -> bytes:
        """The body of the answer. at_most_s: an upper bound for retries. Raises SandboxError."""
        retry = self.retry(at_most_s=at_most_s)
        began = time.monotonic()
        while True:
            attempt = time.monotonic()
            try:
                async with self._attempt(call) as answer:
                    with self._translated(call):
                        return await answer.aread()
            except FailedAttempt as failed:
                call.repeated |= failed.cut
                now = time.monotonic()
                if now < began + call.work_s + self._read_s:
                    retry.look_back(failed, lasted_s=now - attempt)
                await self.pause(retry, failed)

    @contextlib.asynccontextmanager
    async def open(self, call: Call) -> AsyncIterator[httpx.Response]:
        """The answer as it comes, retried until it has begun. Raises SandboxError, and
        FailedAttempt if it is cut off after that."""
        retry = self.retry()
        async with contextlib.AsyncExitStack() as stack:
            while True:
                attempt = time.monotonic()
                try:
                    answer = await stack.enter_async_context(self._attempt(call))
                    break
                except FailedAttempt as failed:
                    call.repeated |= failed.cut
                    retry.look_back(failed, lasted_s=time.monotonic() - attempt)
                    await self.pause(retry, failed)
            with self._translated(call):
                yield answer

    @contextlib.asynccontextmanager
    async def websocket(self, call: Call) -> AsyncIterator[DirectWebSocket | ClientConnection]:
        """A WebSocket, retried until it is open. Raises SandboxError."""
        retry = self.retry()
        while True:
            try:
                socket = await self._open_websocket(call)
                break
            except FailedAttempt as failed:
                await self.pause(retry, failed)
        try:
            yield socket
        finally:
            # Not close(): a server that waits for a box would not hear it.
            socket.transport.abort()
            await socket.wait_closed()

    async def _open_websocket(self, call: Call) -> DirectWebSocket | ClientConnection:
        """Raises FailedAttempt, or the error in the server's answer."""
        try:
            where = target(call.path, call.params)
        except UnicodeError:
            raise _not_unicode(call) from None
        headers = self._websocket_headers(call)
        with self._translated(call):
            try:
                return await self._websockets.open(where, headers, within_s=self._connecting_s)
            except Refused as exc:
                self._known = True
                self._refused(call, exc.answer)

    def _websocket_headers(self, call: Call) -> list[tuple[str, str]]:
        headers = [(name.decode(), value.decode()) for name, value in self._headers.items()]
        if self._auth is not None:
            asked = next(self._auth.auth_flow(httpx.Request("GET", self._address)))
            headers.append(("authorization", asked.headers["authorization"]))
        if call.tenant is not None:
            headers += self._on_behalf_of(call.tenant).items()
        return [*headers, *call.span.headers.items()]

    def _on_behalf_of(self, tenant: str) -> dict[str, str]:
        told = {TENANT_HEADER: tenant}
        if key := to_header(calling_key.current()):
            told[KEY_HEADER] = key
        if self._fleet_key:
            told[SIGNATURE_HEADER] = tenant_signature(self._fleet_key, tenant)
            if key:
                told[KEY_SIGNATURE_HEADER] = key_signature(self._fleet_key, tenant, key)
        return told

    async def chunks(self, call: Call, answer: httpx.Response) -> AsyncIterator[bytes]:
        """The body of an answer as it comes. Raises SandboxError."""
        try:
            with self._translated(call):
                async for chunk in answer.aiter_raw():
                    yield chunk
        except FailedAttempt as failed:
            raise failed.error from failed.__cause__

    async def pause(self, retry: Retry, failed: FailedAttempt) -> None:
        """Wait before the next attempt. Raises the error if there is none."""
        now = time.monotonic()
        retry.known = retry.known or self._known
        pause_s = retry.pause_s(failed, now)
        if pause_s is None:
            raise failed.error from failed.__cause__
        if (left_s := retry.to_tell_s(now, pause_s)) is not None:
            how = "puts calls off" if failed.after_s else "does not answer"
            message = "the server at %s %s (%s); trying for another %.0f s"
            log.warning(message, self.url, how, failed.seen, left_s)
        await asyncio.sleep(pause_s)
        if self._clients.get(current_token()) is not retry.client:
            # It would make connections that nobody closes.
            message = f"the connections to {self.url} were closed before the call had its answer"
            raise RuntimeUnavailable(message) from failed.__cause__

    @contextlib.asynccontextmanager
    async def _attempt(self, call: Call) -> AsyncIterator[httpx.Response]:
        """Raises FailedAttempt, or the error in the server's answer."""
        request = self._request(call)
        if call.sent:
            call.span.set("http.request.resend_count", call.sent)
        call.sent += 1
        with self._translated(call):
            try:
                answer = await self._client.send(request, stream=True)
            except httpx.RemoteProtocolError as exc:
                if is_not_http(exc):
                    raise NotHttp(str(exc)) from exc
                raise
        try:
            self._known = True
            call.span.set("http.response.status_code", answer.status_code)
            if not answer.is_success and answer.status_code not in call.accepts:
                with self._translated(call):
                    await answer.aread()
                self._refused(call, answer)
            yield answer
        finally:
            await answer.aclose()

    @property
    def _connecting_s(self) -> float:
        return self._connect_s if self._known else min(self._connect_s, _FIRST_CONNECT_S)

    def _request(self, call: Call) -> httpx.Request:
        read_s = self._read_s + call.work_s if call.silence_s is None else call.silence_s
        headers = call.headers
        if call.tenant is not None:
            headers = {**(headers or {}), **self._on_behalf_of(call.tenant)}
        if call.span is not NO_SPAN:
            headers = {**(headers or {}), **call.span.headers}
        try:
            return self._client.build_request(
                call.method,
                call.path,
                json=call.json,
                params=call.params,
                headers=headers,
                content=None if call.content is None else call.content(),
                timeout=httpx.Timeout(read_s, connect=self._connecting_s, pool=None),
            )
        except UnicodeError:
            raise _not_unicode(call) from None

    def _refused(self, call: Call, answer: httpx.Response) -> NoReturn:
        error = _error_of(answer)
        if error is not None and error.details.get("stopping") is True:
            # It may have begun, as if the connection had been cut. The next server goes on with it.
            raise FailedAttempt(error, repeatable=call.repeatable)
        given = answer.headers.get("retry-after", "")
        after_s = float(given) if given.isascii() and given.isdecimal() else None
        if error is not None and (after_s is None or isinstance(error, RuntimeUnavailable)):
            # After a failure of the runtime the call may have begun: the caller decides.
            raise error
        gateway = answer.status_code in _GATEWAY
        if error is None and gateway:
            error = RuntimeUnavailable(
                f"a proxy before {self.url} answered {answer.status_code}; try again later"
            )
        elif error is None:
            error = Internal(
                f"{self.url} answered {answer.status_code} without an error of ours; does"
                " SANDBOX_URL point at a sandbox server?"
            )
        # With Retry-After the server has not begun; behind a proxy's error it may have.
        put_off = after_s is not None and call.content is None
        repeatable = put_off or (gateway and call.repeatable)
        raise FailedAttempt(error, repeatable=repeatable, after_s=after_s or 0.0)

    @contextlib.contextmanager
    def _translated(self, call: Call) -> Iterator[None]:
        """Turns httpx's errors into FailedAttempt."""
        try:
            yield
        except _UNSENT as exc:
            found = unreached(exc, self.url, connect_s=self._connecting_s)
            raise FailedAttempt(
                Unreachable(found.message, may_have_arrived=False),
                repeatable=found.may_change(known=self._known),
                unreached=True,
                seen=found.seen,
            ) from exc
        except httpx.LocalProtocolError:
            bad = InvalidRequest(
                f"{call.path}: a header value cannot be sent; use ASCII without line breaks"
            )
            raise FailedAttempt(bad, repeatable=False) from None
        except httpx.ReadTimeout as exc:
            again = call.repeatable and call.silence_s is not None
            silent = Unreachable(
                f"the server at {self.url} took the call and did not answer in time; look at its"
                " log, or give it longer with read_timeout_s"
            )
            silent.silent = True
            raise FailedAttempt(silent, repeatable=again) from exc
        except httpx.HTTPError as exc:
            then = "try again" if call.repeatable else "it may have been carried out, so look first"
            found = unanswered(exc, self.url, known=self._known, then=then)
            repeatable = call.repeatable and found.may_change(known=self._known)
            raise FailedAttempt(
                Unreachable(found.message), repeatable=repeatable, seen=found.seen
            ) from exc


def _error_of(answer: httpx.Response) -> SandboxError | None:
    """The error in an answer, where it is one of ours."""
    try:
        body = answer.json()["error"]
        return SandboxError.from_wire(str(body["code"]), str(body["message"]), body.get("details"))
    except (ValueError, KeyError, TypeError):
        return None


def _not_unicode(call: Call) -> InvalidRequest:
    return InvalidRequest(f"{call.path}: a value is not valid Unicode; replace it")


def _checked_url(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    if parsed.host if parsed.scheme in ("http", "https") else parsed.scheme == "unix":
        return parsed
    raise InvalidRequest(
        f"{_without_password(url)!r} is not the address of a server; use one like"
        " http://127.0.0.1:8000, https://host or unix:///path (SANDBOX_URL, server_url=)"
    )


def _place(address: httpx.URL) -> dict[str, str | int]:
    if address.scheme == "unix":
        return {"server.address": address.path}
    port = address.port or (443 if address.scheme == "https" else 80)
    return {"server.address": address.host, "server.port": port}


def _without_password(url: str) -> str:
    head, at, tail = url.rpartition("@")
    return f"…@{tail}"[:200] if head and at else url[:200]


def _key_header(api_key: str | None) -> dict[bytes, bytes]:
    """Bytes, since a key need not be ASCII. Checked here, because the HTTP library's error for an
    invalid header would show the key."""
    key = (api_key or "").strip()
    if any(ord(character) < 32 for character in key):
        raise InvalidRequest(
            "the API key (api_key=, SANDBOX_API_KEY) contains a control character, such as a line"
            " break"
        )
    return {b"authorization": f"Bearer {key}".encode()} if key else {}
