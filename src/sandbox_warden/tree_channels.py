"""Channels with all files of the box: packing them, and unpacking them."""

from typing import Any, Callable, Dict, Iterator, List, Optional

from . import frames
from .connection import Connection, Sent, Source
from .errors import Refused
from .file_channels import Taking
from .loop import Timer
from .pause import Hold
from .state import ShellState
from .tree import END, PIECE, Packer
from .unpacking import Unpacker

_MOST_TOLD = 100
_LONGEST_TOLD = 200


class Packing(Source):
    """Sends the segments of the box's files, a DATA or more and an EOF each."""

    def __init__(
        self, connection: Connection, roots: List[str], state: ShellState, hold: Hold, *,
        pause_s: float, receiving: Optional[List[str]],
    ) -> None:  # fmt: skip
        """receiving: if the disk of the box is copied besides, the files on it that are not whole
        yet. The first segment is then sent after an EOF of the server, which has that copy."""
        self._hold = hold
        self._pause_s = pause_s
        self._expired = False
        self._waits = receiving is not None
        self._timer: Optional[Timer] = None
        if hold.pauses or self._waits:
            self._timer = connection.after(pause_s, self._expire)
        self._left_out: List[Dict[str, str]] = []
        self._not_told = 0
        self._packer = Packer(roots, self._leave_out)
        self._receiving = receiving or []
        self._pieces = self._all(state)
        self._rest = memoryview(b"")
        """What is yet to be sent of the last piece."""
        self._begun = False

    def _all(self, state: ShellState) -> Iterator[Optional[bytes]]:
        yield from self._packer.state(state.cwd, state.packed(), gone=self._receiving)
        yield from self._packer

    def _leave_out(self, path: str, why: str) -> None:
        if len(self._left_out) < _MOST_TOLD:
            self._left_out.append({"path": path[-_LONGEST_TOLD:], "why": why[:_LONGEST_TOLD]})
        else:
            self._not_told += 1

    def pull(self) -> Optional[Sent]:
        if self._credit <= 0:
            return None
        try:
            return self._next()
        except Refused as exc:
            return self.refuse(exc)
        except OSError as exc:
            return self.refuse(Refused("failed", "the files of the box cannot be read: %s" % exc))

    def eof(self) -> None:
        self._waits = False

    def _expire(self) -> None:
        self._expired = True
        self._hold.end()
        self.connection.pump_soon()

    def _next(self) -> Optional[Sent]:
        if not self._begun:
            self._begun = True
            return frames.encode_json(frames.STARTED, self.channel, {"running": self._hold.running})
        if self._expired:
            message = (
                "the files of the box could not be read within %g s, for which its processes may be"
                " paused; try again when they have ended"
            )
            raise Refused("conflict", message % self._pause_s)
        if self._waits:
            return None
        if self._rest:
            return self._sent()
        piece = next(self._pieces, self)
        if piece is self:
            self._hold.end()
            return self.answer(self._about())
        if piece is None:
            self.connection.pump_soon()
            return None
        assert isinstance(piece, bytes)
        if piece == END:
            return frames.encode(frames.EOF, self.channel)
        self._rest = memoryview(piece)
        return self._sent()

    def _sent(self) -> Sent:
        """A packer's piece has whole files, and may be larger than a frame or the credit."""
        most = min(PIECE, self._credit)
        data, self._rest = self._rest[:most], self._rest[most:]
        self._credit -= len(data)
        return frames.header(frames.DATA, self.channel, data), data

    def _about(self) -> Dict[str, Any]:
        return dict(
            self._packer.seen._asdict(),
            left_out=self._left_out,
            left_out_more=self._not_told,
            paused_ms=round(self._hold.took_s * 1000, 3),
        )

    def closed(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._pieces.close()  # type: ignore[attr-defined]
        self._hold.end()


class Unpacking(Taking):
    """Receives segments; answers when all are unpacked. on_state gets the state of the shell."""

    def __init__(self, hold: Hold, on_state: Callable[[ShellState], None]) -> None:
        self._hold = hold
        self._on_state = on_state
        self._unpacker = Unpacker()

    def _take(self, payload: bytes) -> None:
        self._unpacker.feed(payload)

    def _finish(self) -> Dict[str, Any]:
        self._unpacker.finish()
        if self._unpacker.state is not None:
            self._on_state(self._unpacker.state)
        return self._unpacker.seen._asdict()

    def closed(self) -> None:
        self._unpacker.close()
        self._hold.end()
