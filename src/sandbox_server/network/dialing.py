"""Connections to the hosts that were judged: a name is resolved once, each of its addresses is
judged, and one of those is connected to. Nothing asks for the name again."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Protocol

from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_server.network.hosts import IPAddress, Target, is_own, parse_address, plain
from sandbox_server.network.rules import Allowed, Refused, RuleSet, timed_out, unreachable

_THREADS = 16
RESOLVE_S = 10.0
CONNECT_S = 10.0
"""For each address."""
_ADDRESSES = 4
"""Of a name that are tried."""
_PIECE = 1 << 16


class Resolver(Protocol):
    async def resolve(self, name: str) -> Sequence[IPAddress]:
        """All addresses of a name, the preferred first. Raises OSError if there are none."""

    def close(self) -> None: ...


class SystemResolver:
    """As the server's machine resolves names, in threads of its own: no box can use up those of the
    server. Close it."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "resolve")

    async def resolve(self, name: str) -> Sequence[IPAddress]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _look_up, name)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(name: str) -> list[IPAddress]:
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    texts = dict.fromkeys(str(each[4][0]) for each in found)
    return [address for text in texts if (address := parse_address(text)) is not None]


class Upstream(ByteChannel):
    """A connection to a host. Errors of the socket are raised as OSError."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.address = plain(ip_address(writer.get_extra_info("peername")[0].partition("%")[0]))

    async def read(self) -> bytes:
        return await self._reader.read(_PIECE)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def end(self) -> None:
        if self._writer.can_write_eof():
            self._writer.write_eof()


class Dialer:
    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    @contextlib.asynccontextmanager
    async def connected(self, allowed: Allowed, rules: RuleSet) -> AsyncIterator[Upstream]:
        """Raises Refused for an address that is not allowed, and if nobody answers."""
        sock = await self._connect(allowed.target, rules)
        try:
            streams = await self._streams(sock, allowed)
        except BaseException:
            sock.close()
            raise
        transport = streams[1].transport
        try:
            yield Upstream(*streams)
            if not allowed.https:
                transport.close()  # After what is still to be sent.
                return
        except BaseException:
            transport.abort()
            raise
        transport.abort()

    async def _connect(self, target: Target, rules: RuleSet) -> socket.socket:
        why = ""
        for address in await self._judged(target, rules):
            try:
                return await _connected(address, target.port)
            except TimeoutError:
                why = f"no answer within {CONNECT_S:g} s"
            except OSError as exc:
                why = exc.strerror or str(exc)
        text = f"{target} cannot be reached: {why}."
        raise timed_out(text) if why.startswith("no answer") else unreachable(text)

    async def _judged(self, target: Target, rules: RuleSet) -> Sequence[IPAddress]:
        found = [target.host] if not isinstance(target.host, str) else await self._of(target.host)
        good = [each for each in map(plain, found) if _may_reach(each, target.port, rules)]
        if not good:
            at = "" if not isinstance(target.host, str) else f" is at {found[0]}, which"
            raise Refused(
                f"{target.host}{at} is not a public address; the operator has to name such an"
                f" address in the allowlist besides. {rules.told()}"
            )
        left = [each for each in good if rules.passes(target.host, each)]
        if not left:
            raise rules.denied(target)
        return left[:_ADDRESSES]

    async def _of(self, name: str) -> Sequence[IPAddress]:
        try:
            async with asyncio.timeout(RESOLVE_S):
                found = await self._resolver.resolve(name)
        except TimeoutError:
            raise timed_out(f"{name} could not be resolved within {RESOLVE_S:g} s.") from None
        except OSError as exc:
            why = exc.strerror or "unknown name"
            raise unreachable(f"{name} cannot be resolved: {why}.") from None
        if not found:
            raise unreachable(f"{name} cannot be resolved: it has no address.")
        return found

    async def _streams(
        self, sock: socket.socket, allowed: Allowed
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not allowed.https:
            return await asyncio.open_connection(sock=sock, limit=4 * _PIECE)
        name = str(allowed.target.host)
        try:
            async with asyncio.timeout(CONNECT_S):
                return await asyncio.open_connection(
                    sock=sock, ssl=_context(allowed.ca), server_hostname=name
                )
        except ssl.SSLCertVerificationError as exc:
            raise unreachable(f"{name} has no valid certificate: {exc.verify_message}.") from None
        except TimeoutError:
            raise timed_out(f"{name} did not set up TLS within {CONNECT_S:g} s.") from None
        except OSError as exc:
            raise unreachable(f"TLS with {name} failed: {exc.strerror or 'cut off'}.") from None


def _may_reach(address: IPAddress, port: int, rules: RuleSet) -> bool:
    if rules.named(address, port):
        return True
    return rules.address(address, port) and not is_own(address)


async def _connected(address: IPAddress, port: int) -> socket.socket:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with asyncio.timeout(CONNECT_S):
            await asyncio.get_running_loop().sock_connect(sock, (str(address), port))
    except BaseException:
        sock.close()
        raise
    return sock


@functools.cache
def _context(ca: str) -> ssl.SSLContext:
    """To read the authorities takes tens of milliseconds."""
    context = ssl.create_default_context(cafile=ca or None)
    context.set_alpn_protocols(["http/1.1"])
    return context
