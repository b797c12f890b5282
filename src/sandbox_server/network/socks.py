"""SOCKS 5 (RFC 1928) without authentication, for connections alone."""

from __future__ import annotations

import asyncio
import contextlib
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address

from sandbox_sdk.protocol.errors import SandboxError
from sandbox_server.network.hosts import InvalidHost, Target, parse_host, plain
from sandbox_server.network.outbound import MeteredChannel, Outbound
from sandbox_server.network.relay import hang_up, relay
from sandbox_server.network.rules import Refused, Verdict, bad_request

VERSION = 5
METHOD = "SOCKS"
_HEAD_S = 30.0
_CONNECT = 1
_NO_AUTHENTICATION, _NONE_OF_THESE = 0, 255


class _Reply(IntEnum):
    SUCCEEDED = 0
    FAILED = 1
    NOT_ALLOWED = 2
    UNREACHABLE = 4
    EXPIRED = 6
    UNKNOWN_COMMAND = 7
    UNKNOWN_ADDRESS = 8


class _Kind(IntEnum):
    IPV4 = 1
    NAME = 3
    IPV6 = 4


class _Malformed(Exception):
    def __init__(self, reply: _Reply | None = None) -> None:
        self.reply = reply


class SocksProxy:
    """Serves one connection of a box."""

    def __init__(self, box: MeteredChannel, out: Outbound) -> None:
        self._box = box
        self._out = out
        self._data = b""

    async def serve(self, early: bytes, *, refused: Refused | None = None) -> None:
        """early: what the box has sent already. refused: what to answer, whatever it asks for."""
        self._data = early
        with contextlib.suppress(Refused), self._out.noted(self._box, None, METHOD) as note:
            try:
                async with asyncio.timeout(_HEAD_S):
                    target = await self._asked_for()
                note.host, note.port = str(target.host), target.port
            except _Malformed as exc:
                if exc.reply is not None:
                    await self._reply(exc.reply)
                raise bad_request("this is no SOCKS 5 request for a connection.") from None
            except TimeoutError:
                raise bad_request(f"no whole SOCKS 5 request within {_HEAD_S:g} s.") from None
            await self._serve(target, refused)

    async def _serve(self, target: Target, refused: Refused | None) -> None:
        rules, began = self._out.rules, False
        try:
            if refused is not None:
                raise refused
            self._out.meter.check()
            allowed = rules.tunnel(target)
            async with self._out.connected(allowed) as upstream:
                await self._reply(_Reply.SUCCEEDED)
                early, self._data = self._data, b""
                began = True
                await relay(self._box, upstream, allowed, rules, early)
        except Refused as exc:
            if not began:
                await self._reply(_reply_for(exc))
            raise

    async def _asked_for(self) -> Target:
        _, count = await self._take(2)
        methods = await self._take(count)
        if _NO_AUTHENTICATION not in methods:
            await self._box.tell(bytes([VERSION, _NONE_OF_THESE]))
            raise _Malformed
        await self._box.tell(bytes([VERSION, _NO_AUTHENTICATION]))
        version, command, _, kind = await self._take(4)
        if version != VERSION:
            raise _Malformed(_Reply.FAILED)
        if command != _CONNECT:
            raise _Malformed(_Reply.UNKNOWN_COMMAND)
        host = await self._host(kind)
        port = int.from_bytes(await self._take(2), "big")
        if port == 0:
            raise _Malformed(_Reply.FAILED)
        return Target(host, port)

    async def _host(self, kind: int) -> str | IPv4Address | IPv6Address:
        if kind == _Kind.IPV4:
            return IPv4Address(await self._take(4))
        if kind == _Kind.IPV6:
            return plain(IPv6Address(await self._take(16)))
        if kind != _Kind.NAME:
            raise _Malformed(_Reply.UNKNOWN_ADDRESS)
        (size,) = await self._take(1)
        try:
            return parse_host((await self._take(size)).decode("ascii"))
        except (InvalidHost, UnicodeDecodeError):
            raise _Malformed(_Reply.NOT_ALLOWED) from None

    async def _take(self, count: int) -> bytes:
        while len(self._data) < count:
            more = await self._box.read()
            if not more:
                raise _Malformed
            self._data += more
        taken, self._data = self._data[:count], self._data[count:]
        return taken

    async def _reply(self, reply: _Reply) -> None:
        with contextlib.suppress(SandboxError):
            await self._box.tell(bytes([VERSION, reply, 0, _Kind.IPV4, *bytes(6)]))
            if reply is not _Reply.SUCCEEDED:
                await hang_up(self._box)


def _reply_for(refused: Refused) -> _Reply:
    if refused.verdict is Verdict.REFUSED:
        return _Reply.NOT_ALLOWED
    return _Reply.EXPIRED if refused.status == 504 else _Reply.UNREACHABLE
