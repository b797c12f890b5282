"""Channels with all files of the box: packing them, and unpacking them."""

from typing import Any, Callable, Dict, Iterator, List, Optional

from .connection import Connection, Sent, Source
from .errors import Refused
from .frames import (
    DATA,
    EOF,
    REPLY,
    STARTED,
    WINDOW,
    encode,
    encode_error,
    encode_json,
    header,
)
from .loop import Timer
from .pause import Pause, named, others
from .state import ShellState
from .tree import END, Packer
from .unpacking import Unpacker

_MOST_TOLD = 100
_LONGEST_TOLD = 200


class Hold:
    """Keeps the box as it is: no command begins, no file is received, and what runs is paused, but
    for the pids in `keep`. on_end lets commands begin again."""

    def __init__(self, keep: Callable[[], List[int]], on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._pause: Optional[Pause] = None
        self._ended = False
        found = others(keep)
        self.running = named(found)[:_MOST_TOLD]
        """Processes that a copy of the files does not have."""
        if found:
            self._pause = Pause(keep)
            if not self._pause.begin():
                self.end()
                message = "the processes of the box do not stand still; try again, or end them"
                raise Refused("conflict", message)

    @property
    def took_s(self) -> float:
        return 0.0 if self._pause is None else self._pause.took_s

    @property
    def pauses(self) -> bool:
        return self._pause is not None

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            if self._pause is not None:
                self._pause.end()
            self._on_end()


class Packing(Source):
    """Sends the segments of the box's files, a DATA or more and an EOF each."""

    def __init__(
        self, channel: int, roots: List[str], state: ShellState, hold: Hold, *, pause_s: float,
        connection: Connection, receiving: Optional[List[str]],
    ) -> None:  # fmt: skip
        """receiving: if the disk of the box is copied besides, the files on it that are not whole
        yet. The first segment is then sent after an EOF of the server, which has that copy."""
        self._channel = channel
        self._again = connection.pump_soon
        self._credit = WINDOW
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
            return self._failed(exc)
        except OSError as exc:
            return self._failed(Refused("failed", "the files of the box cannot be read: %s" % exc))

    def eof(self) -> None:
        self._waits = False

    def _expire(self) -> None:
        self._expired = True
        self._hold.end()
        self._again()

    def _next(self) -> Optional[Sent]:
        if not self._begun:
            self._begun = True
            return encode_json(STARTED, self._channel, {"running": self._hold.running})
        if self._expired:
            message = (
                "the files of the box could not be read within %g s, for which its processes may be"
                " paused; try again when they have ended"
            )
            raise Refused("conflict", message % self._pause_s)
        if self._waits:
            return None
        piece = next(self._pieces, self)
        if piece is self:
            self.done = True
            self._hold.end()
            return encode_json(REPLY, self._channel, self._about())
        if piece is None:
            self._again()
            return None
        assert isinstance(piece, bytes)
        if piece == END:
            return encode(EOF, self._channel)
        self._credit -= len(piece)
        return header(DATA, self._channel, piece), piece

    def _about(self) -> Dict[str, Any]:
        return dict(
            self._packer.seen._asdict(),
            left_out=self._left_out,
            left_out_more=self._not_told,
            paused_ms=round(self._hold.took_s * 1000, 3),
        )

    def _failed(self, refused: Refused) -> bytes:
        self.done = True
        return encode_error(self._channel, refused.code, str(refused))

    def credit(self, count: int) -> None:
        self._credit += count

    def closed(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._pieces.close()  # type: ignore[attr-defined]
        self._hold.end()


class Unpacking(Source):
    """Receives segments; answers when all are unpacked. on_state gets the state of the shell."""

    def __init__(self, channel: int, hold: Hold, on_state: Callable[[ShellState], None]) -> None:
        self._channel = channel
        self._hold = hold
        self._on_state = on_state
        self._unpacker = Unpacker()
        self._answer: Optional[bytes] = None

    def pull(self) -> Optional[bytes]:
        self.done = self._answer is not None
        return self._answer

    def data(self, payload: bytes) -> None:
        self._try(lambda: self._unpacker.feed(payload))

    def eof(self) -> None:
        if self._try(self._unpacker.finish):
            if self._unpacker.state is not None:
                self._on_state(self._unpacker.state)
            self._answer = encode_json(REPLY, self._channel, self._unpacker.seen._asdict())

    def _try(self, step: Callable[[], None]) -> bool:
        if self._answer is not None:
            return False
        try:
            step()
        except Refused as exc:
            self._answer = encode_error(self._channel, exc.code, str(exc))
            return False
        return True

    def closed(self) -> None:
        self._unpacker.close()
        self._hold.end()
