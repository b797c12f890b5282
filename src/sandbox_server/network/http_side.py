"""One end of an HTTP connection, as events of h11: what is sent on is always written anew, so that
no two readers can take it differently."""

from __future__ import annotations

from collections.abc import Iterable

import h11

from sandbox_sdk.protocol.channels import ByteChannel

MAX_HEAD = 64 * 1024
Headers = list[tuple[bytes, bytes]]
Event = h11.Event | type[h11.PAUSED]
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
     b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade")
)  # fmt: skip


class HttpSide:
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
    left_out = _HOP_BY_HOP | named | set(more)
    return [(name, value) for name, value in given if name not in left_out]
