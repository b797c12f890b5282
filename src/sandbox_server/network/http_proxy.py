"""The HTTP proxy: CONNECT, and requests with a whole URL."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterable
from http import HTTPStatus

import h11

from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_sdk.protocol.errors import SandboxError
from sandbox_server.network.headers import SecretMissing
from sandbox_server.network.hosts import InvalidHost, Target, parse_target
from sandbox_server.network.outbound import MeteredChannel, Outbound
from sandbox_server.network.relay import first_of, hang_up, relay
from sandbox_server.network.rules import (
    HTTP,
    HTTPS,
    Allowed,
    Refused,
    bad_request,
    timed_out,
    unreachable,
)

MAX_HEAD = 64 * 1024
Headers = list[tuple[bytes, bytes]]
Event = h11.Event | type[h11.PAUSED]
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
     b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade")
)  # fmt: skip
HEAD_S = 60.0
"""How long a box may take for a request, and keep an idle connection."""
ANSWER_S = 300.0
"""How long a host may be silent in the middle of an answer."""
_URL = re.compile(r"(?i)(https?)://([^/?#]*)([^#]*)")


class HttpSide:
    """One end of a connection, as events of h11: what is sent on is always written anew, so that no
    two readers can take it differently."""

    def __init__(self, channel: ByteChannel, role: type[h11.CLIENT] | type[h11.SERVER]) -> None:
        self.state = h11.Connection(role, max_incomplete_event_size=MAX_HEAD)
        self._channel = channel

    def feed(self, data: bytes) -> None:
        self.state.receive_data(data)

    async def next_event(self) -> Event:
        """Raises h11.RemoteProtocolError, and what the channel raises."""
        while (event := self.state.next_event()) is h11.NEED_DATA:
            self.state.receive_data(await self._channel.read())
        assert not isinstance(event, type) or event is h11.PAUSED
        return event

    async def send(self, event: h11.Event) -> None:
        if data := self.state.send(event):
            await self._channel.write(data)


def end_to_end(headers: Iterable[tuple[bytes, bytes]], *more: bytes) -> Headers:
    """Those that are not about this one connection. more: names to leave out besides."""
    given = [(name.lower(), value) for name, value in headers]
    named = {
        word.strip().lower()
        for name, value in given
        if name == b"connection"
        for word in value.split(b",")
    }
    # What a Connection header names goes, too, but not what says how long a body is.
    left_out = _HOP_BY_HOP | (named - {b"content-length"}) | set(more)
    return [(name, value) for name, value in given if name not in left_out]


class HttpProxy:
    """Serves one connection of a box."""

    def __init__(self, box: MeteredChannel, out: Outbound) -> None:
        self._box = box
        self._out = out
        self._side = HttpSide(box, h11.SERVER)
        self._passed = 0
        """Pieces of bodies that the box has sent."""

    async def serve(self, early: bytes, *, refused: Refused | None = None) -> None:
        """early: what the box has sent already. refused: what to answer, whatever it asks for."""
        self._side.feed(early)
        try:
            while await self._serve_one(refused):
                self._side.state.start_next_cycle()
        except h11.RemoteProtocolError as exc:
            with contextlib.suppress(Refused), self._out.noted(self._box, None):
                await self._answer(bad_request(f"this is no HTTP request: {exc}."))
                raise bad_request(str(exc)) from None
        except Refused as exc:
            await self._answer(exc)
        except TimeoutError:
            return

    async def _serve_one(self, refused: Refused | None) -> bool:
        """Whether another request may follow."""
        async with asyncio.timeout(HEAD_S):
            request = await self._side.next_event()
        if not isinstance(request, h11.Request):
            return False  # The box has closed the connection.
        method = request.method.decode("ascii")
        with self._out.noted(self._box, None, method) as note:
            target, path, https = _asked_for(request)
            note.host, note.port = str(target.host), target.port
            if refused is not None:
                raise refused
            self._out.meter.check()
            _check_framing(request)
            _check_host(request, target)
            if request.method == b"CONNECT":
                await self._tunnel(target)
                return False
            allowed = self._out.rules.request(target, method, path, https=https)
            async with self._out.connected(allowed) as upstream:
                return await self._exchange(request, allowed, path, upstream)

    async def _tunnel(self, target: Target) -> None:
        rules = self._out.rules
        allowed = rules.tunnel(target)
        async with self._out.connected(allowed) as upstream:
            await self._side.next_event()  # The end of the request.
            await self._side.send(h11.Response(status_code=200, headers=[], reason=b"connected"))
            early, _ = self._side.state.trailing_data
            await relay(self._box, upstream, allowed, rules, early)

    async def _exchange(
        self, request: h11.Request, allowed: Allowed, path: str, upstream: ByteChannel
    ) -> bool:
        up = HttpSide(upstream, h11.CLIENT)
        try:
            headers = _outgoing(request, allowed)
            await up.send(h11.Request(method=request.method, target=path, headers=headers))
            if self._side.state.they_are_waiting_for_100_continue:
                await self._side.send(h11.InformationalResponse(status_code=100, headers=[]))
            await first_of(self._pass_answer(up), self._pass_body(up))
        except SecretMissing:
            raise unreachable("the operator's header for this host cannot be read.") from None
        except (OSError, h11.ProtocolError, TimeoutError) as exc:
            return self._cut_off(exc, allowed)
        return self._side.state.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}

    def _cut_off(self, error: Exception, allowed: Allowed) -> bool:
        """A host that broke off. Told if its answer had not begun yet; else the box sees that the
        answer is not complete."""
        if self._side.state.our_state is not h11.SEND_RESPONSE:
            return False
        if self._side.state.their_state is h11.ERROR:
            raise bad_request(f"this is no HTTP request: {error}.") from None
        if isinstance(error, TimeoutError):
            raise timed_out(f"{allowed.target} did not answer within {ANSWER_S:g} s.") from None
        raise unreachable(f"{allowed.target} broke off without an answer.") from None

    async def _pass_body(self, up: HttpSide) -> None:
        while not isinstance(event := await self._side.next_event(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                return
            self._passed += 1
            with contextlib.suppress(OSError):  # It may have answered already.
                await up.send(h11.Data(data=bytes(event.data)))
        with contextlib.suppress(OSError):
            await up.send(h11.EndOfMessage())

    async def _pass_answer(self, up: HttpSide) -> None:
        event = await self._next(up)
        while isinstance(event, h11.InformationalResponse):
            event = await self._next(up)
        if not isinstance(event, h11.Response):
            raise ConnectionResetError
        await self._side.send(
            h11.Response(
                status_code=event.status_code, headers=_returned(event), reason=event.reason
            )
        )
        while isinstance(event := await self._next(up), h11.Data):
            await self._side.send(h11.Data(data=bytes(event.data)))
        if not isinstance(event, h11.EndOfMessage):
            raise ConnectionResetError
        await self._side.send(h11.EndOfMessage())

    async def _next(self, up: HttpSide) -> object:
        """Raises TimeoutError if neither end has sent anything for long."""
        while True:
            passed = self._passed
            try:
                async with asyncio.timeout(ANSWER_S):
                    return await up.next_event()
            except TimeoutError:
                if self._passed == passed:
                    raise

    async def _answer(self, refused: Refused) -> None:
        """In plain words. The connection ends with it. No-op once an answer has begun: of a tunnel
        that it has, the box is told by what ends it."""
        if self._side.state.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = f"{refused.text}\n".encode("utf-8", "replace")
        phrase = HTTPStatus(refused.status).phrase
        if refused.status == HTTPStatus.FORBIDDEN:
            # Of an answer to CONNECT most programs show this line alone.
            phrase = refused.text.partition(". ")[0][:150]
        head = h11.Response(
            status_code=refused.status,
            reason=phrase.encode("ascii", "replace"),
            headers=[
                ("content-type", "text/plain; charset=utf-8"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ],
        )
        parts = [self._side.state.send(each) for each in (head, h11.Data(data=body))]
        with contextlib.suppress(SandboxError):
            await self._box.tell(b"".join(part for part in parts if part))
            await hang_up(self._box)


def _asked_for(request: h11.Request) -> tuple[Target, str, bool]:
    """Host and port, the path, and whether it is of https. Raises Refused."""
    text = request.target.decode("ascii")
    try:
        if request.method == b"CONNECT":
            return parse_target(text), "", True
        url = _URL.fullmatch(text)
        if url is None:
            raise bad_request("this is a proxy: ask it for a whole URL, such as http://host/path.")
        if "@" in url[2]:
            raise bad_request("a URL may not have a user or a password in it.")
        https = url[1].lower() == "https"
        path = url[3] if url[3].startswith("/") else f"/{url[3]}"
        return parse_target(url[2], port=HTTPS if https else HTTP), path, https
    except InvalidHost as exc:
        raise bad_request(f"{exc}.") from None


def _check_framing(request: h11.Request) -> None:
    names = [name for name, _ in request.headers]
    if b"transfer-encoding" in names and b"content-length" in names:
        raise bad_request("a request has a Content-Length or a Transfer-Encoding, not both.")
    sized = b"transfer-encoding" in names or b"content-length" in names
    if request.method == b"CONNECT" and sized:
        raise bad_request("CONNECT has no body: what follows it is for the host.")
    if b"transfer-encoding" in names and request.http_version != b"1.1":
        raise bad_request("Transfer-Encoding is of HTTP/1.1.")
    if names.count(b"content-length") > 1 or names.count(b"transfer-encoding") > 1:
        raise bad_request("a request says once how long it is.")


def _check_host(request: h11.Request, target: Target) -> None:
    """What a host takes the request for is what was judged."""
    for name, value in request.headers:
        if name == b"host":
            try:
                said = parse_target(value.decode("ascii"), port=target.port)
            except (InvalidHost, UnicodeDecodeError):
                said = None
            if said != target:
                raise bad_request(f"the Host header does not say {target}, as the URL does.")


def _outgoing(request: h11.Request, allowed: Allowed) -> Headers:
    """Raises SecretMissing."""
    secrets = {name.encode(): value.reveal() for name, value in allowed.headers.items()}
    kept = end_to_end(request.headers, b"host", b"expect", *secrets)
    if any(name == b"transfer-encoding" for name, _ in request.headers):
        kept.append((b"transfer-encoding", b"chunked"))
    usual = HTTPS if allowed.https else HTTP
    host = str(allowed.target)
    if allowed.target.port == usual:
        host = host.rpartition(":")[0]
    return [(b"host", host.encode()), *kept, *secrets.items(), (b"connection", b"close")]


def _returned(response: h11.Response) -> Headers:
    chunked = any(name == b"transfer-encoding" for name, _ in response.headers)
    return end_to_end(response.headers, *([b"content-length"] if chunked else []))
