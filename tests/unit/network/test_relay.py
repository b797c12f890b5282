"""What may pass through a tunnel, and what is told where it may not."""

import asyncio
import contextlib

import pytest

from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_server.network.hosts import Target
from sandbox_server.network.outbound import EgressLimits, Meter, MeteredChannel
from sandbox_server.network.relay import relay
from sandbox_server.network.rules import Allowed, Refused, RuleSet
from sandbox_server.network.server_name import UNRECOGNIZED_NAME
from tests.unit.network.test_server_name import hello


class Scripted(ByteChannel):
    """Gives these pieces, and remembers what it gets."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)
        self.got = b""
        self.ended = False

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        return self._pieces.pop(0) if self._pieces else b""

    async def write(self, data: bytes) -> None:
        self.got += data

    async def end(self) -> None:
        self.ended = True


async def passed(
    *sent: bytes, plain: bool = False, host: str = "a.test", open_: bool = False
) -> tuple[Scripted, Scripted]:
    box, upstream = Scripted(*sent), Scripted(b"answer")
    meter = Meter(EgressLimits())
    allowed = Allowed(target=Target(host, 443), plain=plain)
    with contextlib.suppress(Refused):
        await relay(MeteredChannel(box, meter), upstream, allowed, RuleSet(open_=open_))
    return box, upstream


async def test_tls_with_the_right_name() -> None:
    whole = hello("a.test")
    box, upstream = await passed(whole[:3], whole[3:100], whole[100:], b"and more")
    assert upstream.got == whole + b"and more"
    assert (box.got, box.ended, upstream.ended) == (b"answer", True, True)


@pytest.mark.parametrize("name", ["b.test", None, "a.test.b.test"])
@pytest.mark.parametrize("plain", [True, False])
async def test_tls_with_another_name(name: str | None, plain: bool) -> None:
    """Also at ports where anything else may pass."""
    box, upstream = await passed(hello(name), plain=plain)
    assert upstream.got == b""
    assert UNRECOGNIZED_NAME in box.got
    assert plain or box.got == UNRECOGNIZED_NAME


async def test_what_is_not_tls() -> None:
    box, upstream = await passed(b"SSH-2.0-me\r\n")
    assert (upstream.got, box.got) == (b"", b"")
    box, upstream = await passed(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
    assert upstream.got == b""
    assert b"HTTP/1.1 403 Forbidden" in box.got
    assert b"only TLS may pass to a.test:443" in box.got
    _, upstream = await passed(b"SSH-2.0-me\r\n", plain=True)
    assert upstream.got == b"SSH-2.0-me\r\n"


async def test_a_handshake_that_ends_early() -> None:
    box, upstream = await passed(hello("a.test")[:50])
    assert upstream.got == b""
    assert box.got.endswith(b"\x02\x70")


async def test_a_box_that_only_listens() -> None:
    box, upstream = await passed(plain=True)
    assert (box.got, upstream.ended) == (b"answer", True)


async def test_the_bytes_of_a_day() -> None:
    now = 0.0
    meter = Meter(EgressLimits(bytes_a_day=100), clock=lambda: now)
    await meter.received(60)
    with pytest.raises(Refused, match="a day"):
        await meter.sent(60)
    with pytest.raises(Refused):
        meter.check()
    now = 86401.0
    meter.check()
    assert (meter.bytes_in, meter.bytes_out) == (60, 60)
