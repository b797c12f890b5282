"""Tunnels: bytes between a box and a host, of which only the beginning is looked at."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Coroutine
from typing import Any, TypeVar

from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_sdk.protocol.errors import SandboxError
from sandbox_server.network import server_name
from sandbox_server.network.outbound import MeteredChannel
from sandbox_server.network.rules import Allowed, Refused, RuleSet
from sandbox_server.tasks import stop

IDLE_S = 900.0
"""How long a tunnel may carry nothing."""
HELLO_S = 30.0
_LINGER_S = 2.0
_LINGER_BYTES = 1 << 20
_HTTP = re.compile(rb"[A-Z]{3,10} [^\r\n]")
_T = TypeVar("_T")


async def relay(
    box: MeteredChannel, upstream: ByteChannel, allowed: Allowed, rules: RuleSet, early: bytes = b""
) -> None:
    """Until both have sent all, or one end breaks. early: what the box has sent already. Raises
    Refused for what may not pass, after the box was told."""
    clock, judged = asyncio.get_running_loop().time, asyncio.Event()
    if allowed.plain:  # The host may be the one that speaks first.
        judged.set()

    def touch() -> None:
        if not idle.expired():
            idle.reschedule(clock() + IDLE_S)

    async def out() -> None:
        data = await _beginning(box, early, allowed, rules)
        judged.set()
        while data:
            touch()
            await upstream.write(data)
            data = await box.read()
        await upstream.end()

    async def back() -> None:
        await judged.wait()
        while data := await upstream.read():
            touch()
            await box.write(data)
        await box.end()

    with contextlib.suppress(OSError, SandboxError):  # A TimeoutError is an OSError.
        async with asyncio.timeout(IDLE_S) as idle:
            await _both(out(), back())


async def _both(one: Coroutine[Any, Any, None], other: Coroutine[Any, Any, None]) -> None:
    """Until both are done, or one of them raises."""
    tasks = asyncio.create_task(one), asyncio.create_task(other)
    try:
        await asyncio.gather(*tasks)
    finally:
        await stop(*tasks)


async def first_of(main: Coroutine[Any, Any, _T], other: Coroutine[Any, Any, None]) -> _T:
    """The result of main, as long as the other does not raise before."""
    tasks = asyncio.create_task(main), asyncio.create_task(other)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            tasks[1].result()
        return await tasks[0]
    finally:
        await stop(*tasks)


async def _beginning(box: MeteredChannel, early: bytes, allowed: Allowed, rules: RuleSet) -> bytes:
    """The first bytes of the box, once they are known to be what may pass."""
    data = early or await box.read()
    try:
        async with asyncio.timeout(HELLO_S):
            while data and (fine := _judge(data, allowed, rules)) is None:
                more = await box.read()
                if not more:
                    raise Refused("the connection ended in the middle of a TLS handshake.")
                data += more
        if data and not fine:
            raise Refused(
                f"only TLS may pass to {allowed.target}; the allowlist has to name the port for"
                f" anything else. {rules.told()}"
            )
    except TimeoutError:
        raise Refused(f"no TLS handshake came within {HELLO_S:g} s.") from None
    except Refused as exc:
        await _cut(box, data, exc)
        raise
    return data


def _judge(data: bytes, allowed: Allowed, rules: RuleSet) -> bool | None:
    """None if more bytes are needed. Raises Refused."""
    tls = server_name.looks_like_tls(data)
    if not tls:
        return None if tls is None else allowed.plain
    try:
        name = server_name.server_name(data)
    except server_name.BadHello as exc:
        raise Refused(f"what was sent to {allowed.target} is no TLS handshake: {exc}.") from None
    if name is None:
        return None
    host = allowed.target.host
    if name != (host if isinstance(host, str) else "") and not (
        rules.open and not isinstance(host, str)
    ):
        asked = f"{name!r}" if name else "no server name"
        raise Refused(
            f"a TLS connection to {host} asked for {asked}: it has to name the host that it was"
            " allowed for."
        )
    return True


async def _cut(box: MeteredChannel, data: bytes, refused: Refused) -> None:
    """Tell whoever is in the box in its own protocol, and end the connection."""
    if server_name.looks_like_tls(data):
        answer = server_name.UNRECOGNIZED_NAME
    elif _HTTP.match(data):
        body = f"{refused.text}\n".encode()
        head = f"HTTP/1.1 403 Forbidden\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
        answer = f"{head}Content-Type: text/plain; charset=utf-8\r\n\r\n".encode() + body
    else:
        answer = b""
    with contextlib.suppress(SandboxError):
        await box.tell(answer)
        await hang_up(box)


async def hang_up(box: MeteredChannel) -> None:
    """End a connection of which not all was read: if it were closed at once, the box might lose
    what it was told last."""
    await box.end()
    left = _LINGER_BYTES
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            while left > 0 and (data := await box.drain()):
                left -= len(data)
