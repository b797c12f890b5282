"""One server's stream to the warden: frames in, frames out, a fair share for every channel."""

import os
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple, Union

from .errors import Refused, internal_error, report
from .frames import REPLY, WINDOW, Decoder, FrameError, Payload, TooLong, encode_error, encode_json
from .loop import READ, WRITE, Loop, Timer

READ_SIZE = 256 * 1024
FIRST_READ = 16 * 1024
"""Room for a request. Memory for READ_SIZE is taken from the kernel and given back at every read,
so it is used only while a caller sends as much."""
HIGH_WATER = 256 * 1024
"""Sources are not pulled while this much waits to be written."""
OUT_LIMIT = 4 << 20
"""Above this no requests are read: a server that does not read its answers has to wait."""


Sent = Union[bytes, Tuple[bytes, Payload]]
"""A frame, in one piece or two: what is large is not copied behind its header."""


class Source:
    """Sends on a channel: a command's output, a file.

    pull() returns the next frame, or None if there is nothing to send right now.
    """

    connection: "Connection"
    """That it was added to."""
    channel: int
    done = False
    _credit = WINDOW
    """How many more bytes its reader has room for, and no more than these are sent."""

    def pull(self) -> Optional[Sent]:
        raise AssertionError("pull() is not implemented")

    def answer(self, body: Dict[str, Any]) -> bytes:
        """The last frame."""
        self.done = True
        return encode_json(REPLY, self.channel, body)

    def refuse(self, refused: Refused) -> bytes:
        """The last frame."""
        self.done = True
        return encode_error(self.channel, refused.code, str(refused))

    def credit(self, count: int) -> None:
        self._credit += count

    def data(self, payload: bytes) -> None:
        """Bytes received on this channel."""

    def eof(self) -> None:
        """No more bytes will be received."""

    def closed(self) -> None:
        """The channel or its connection was closed."""


class Wire:
    """The bytes of a stream, below its frames. Does not own its descriptors, which are two: each is
    watched by itself."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd = read_fd
        self.write_fd = write_fd
        self._read_size = FIRST_READ
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)

    def read(self) -> bytes:
        """b"" at the end. Raises OSError, BlockingIOError if there is nothing yet."""
        data = os.read(self.read_fd, self._read_size)
        self._read_size = FIRST_READ if len(data) < self._read_size else READ_SIZE
        return data

    def write(self, buffers: List[Any]) -> int:
        """How many bytes are written. Raises OSError, BlockingIOError if there is no room: then it
        is called again with buffers that begin with the same bytes."""
        return os.writev(self.write_fd, buffers)


class Connection:
    """Owns the descriptors of its wire."""

    def __init__(
        self,
        loop: Loop,
        wire: Wire,
        on_frame: Callable[["Connection", int, int, bytes], None],
        on_close: Callable[["Connection"], None],
    ) -> None:
        self.epoch: Optional[int] = None
        self.sources: Dict[int, Source] = {}
        self._loop = loop
        self._wire = wire
        self._read_fd = wire.read_fd
        self._write_fd = wire.write_fd
        self._on_frame = on_frame
        self._on_close = on_close
        self._decoder = Decoder()
        self._out: Deque[memoryview] = deque()
        self._out_size = 0
        self._turn: Deque[Source] = deque()
        self._closing = False
        self._pump_due = False
        self.open = True
        loop.watch(self._read_fd, READ, self._readable, on_error=self.close)

    def send(self, frame: Sent) -> None:
        for piece in (frame,) if isinstance(frame, bytes) else frame:
            self._out.append(memoryview(piece))
            self._out_size += len(piece)

    def reply(self, channel: int, body: Dict[str, Any]) -> None:
        try:
            self.send(encode_json(REPLY, channel, body))
        except TooLong as exc:
            self.send(_too_long(channel, exc))

    def refuse(self, channel: int, code: str, message: str) -> None:
        self.send(encode_error(channel, code, message))

    def add(self, channel: int, source: Source) -> None:
        source.connection, source.channel = self, channel
        self.sources[channel] = source
        self._turn.append(source)

    def close(self, *, after_writing: bool = False) -> None:
        """Close now, or once everything queued is written."""
        if after_writing and self._out and self.open:
            self._closing = True
            self._loop.unwatch(self._read_fd)
            return
        if not self.open:
            return
        self.open = False
        for fd in (self._read_fd, self._write_fd):
            self._loop.unwatch(fd)
            os.close(fd)
        try:
            for source in list(self.sources.values()):
                source.closed()
        finally:
            self.sources.clear()
            self._turn.clear()
            self._on_close(self)

    def pump(self) -> None:
        """Write what can be written now, pulling the sources in turn. Never raises."""
        try:
            self._pump()
        except Exception:
            report()
            self.close()

    def pump_soon(self) -> None:
        """Pump after others had a turn; for a source that has more work."""
        if not self._pump_due:
            self._pump_due = True
            self._loop.after(0, self._pump_now)

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Call once, after `delay_s` seconds."""
        return self._loop.after(delay_s, call)

    def _pump_now(self) -> None:
        self._pump_due = False
        self.pump()

    def _pump(self) -> None:
        while self.open:
            self._fill()
            if not self._out:
                break
            try:
                count = self._wire.write(_first(self._out))
            except BlockingIOError:
                self._loop.watch(self._write_fd, WRITE, self._writable, on_error=self.close)
                return
            except OSError:
                self.close()
                return
            self._written(count)
        if self.open:
            self._loop.unwatch(self._write_fd)
            if self._closing:
                self.close()

    def _fill(self) -> None:
        idle = 0
        while (
            self._turn
            and not self._closing
            and self._out_size < HIGH_WATER
            and idle < len(self._turn)
        ):
            source = self._turn.popleft()
            frame = self._pull(source)
            if frame is None:
                idle += 1
            else:
                idle = 0
                self.send(frame)
            if source.done:
                self._drop(source)
            elif self.open:
                self._turn.append(source)

    def _pull(self, source: Source) -> Optional[Sent]:
        try:
            return source.pull()
        except TooLong as exc:
            source.done = True
            return _too_long(source.channel, exc)
        except Exception as exc:
            report()
            source.done = True
            return encode_error(source.channel, "internal", internal_error(exc))

    def _drop(self, source: Source) -> None:
        if self.sources.get(source.channel) is source:
            del self.sources[source.channel]
        source.closed()

    def cancel(self, channel: int) -> None:
        source = self.sources.get(channel)
        if source is not None:
            if source in self._turn:
                self._turn.remove(source)
            self._drop(source)

    def _written(self, count: int) -> None:
        self._out_size -= count
        while count:
            first = self._out[0]
            if count < len(first):
                self._out[0] = first[count:]
                return
            count -= len(first)
            self._out.popleft()

    def _readable(self, _events: int) -> None:
        if self._out_size > OUT_LIMIT:
            self._loop.unwatch(self._read_fd)
            return
        try:
            data = self._wire.read()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        try:
            for kind, channel, payload in self._decoder.feed(data):
                self._on_frame(self, kind, channel, payload)
                if not self.open or self._closing:
                    break
        except FrameError as exc:
            self.refuse(0, "bad_frame", str(exc))
            self.close(after_writing=True)
        self.pump()

    def _writable(self, _events: int) -> None:
        self.pump()
        if self.open and not self._closing and self._out_size <= OUT_LIMIT:
            self._loop.watch(self._read_fd, READ, self._readable, on_error=self.close)


def _too_long(channel: int, error: TooLong) -> bytes:
    """Instead of an answer that would end the stream."""
    return encode_error(channel, "failed", "the answer does not fit into a frame: %s" % error)


def _first(buffers: Deque[memoryview]) -> List[Any]:
    return [buffers[i] for i in range(min(len(buffers), 64))]
