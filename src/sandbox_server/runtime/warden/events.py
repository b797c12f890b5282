"""What happens to a command, told piece by piece, and the whole of it at the end."""

from __future__ import annotations

from array import array

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.agent import (
    OF_BOTH,
    OF_STREAM,
    CommandExit,
    CommandResult,
    CommandStanding,
    Event,
    Exited,
    Gap,
    Output,
    Started,
)
from sandbox_warden import frames
from sandbox_warden.frames import FrameError

from .answers import CommandStarted, OutputGap, body_of, checked, invalid, reply_body

_NOTHING_COSTS = 64
"""What a frame without output counts for."""


class Pieces:
    """What is kept of an output, as it comes in. A warden that sends far more than it was told to
    keep is not believed: it would fill this server's memory."""

    def __init__(self, limit: int) -> None:
        self._room = 2 * limit + frames.WINDOW
        self._kept = bytearray()
        self._ends = array("Q")
        self._truncated = False

    def add(self, event: Event) -> None:
        """Raises RuntimeUnavailable."""
        if isinstance(event, Output):
            self._take(len(event.data) or _NOTHING_COSTS)
            self._append(event.data, OF_STREAM[event.stream])
        elif isinstance(event, Gap):
            self._take(_NOTHING_COSTS)
            self._truncated = True
            left_out = b"\n[%d bytes of output left out]\n" % (event.end - event.start)
            self._append(left_out, OF_BOTH)

    def _append(self, data: bytes, of: int) -> None:
        self._kept += data
        end = len(self._kept) << 2 | of
        if self._ends and self._ends[-1] & 3 == of:
            self._ends[-1] = end
        else:
            self._ends.append(end)

    def _take(self, size: int) -> None:
        self._room -= size
        if self._room < 0:
            raise errors.RuntimeUnavailable("the warden sent more than it may keep")

    def of(self, exit: CommandStanding) -> CommandResult:
        return CommandResult(exit, self._truncated, self._kept, self._ends)


class Order:
    """The offsets of one command's output, each event of which begins where the last has ended."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset

    def follow(self, event: Event) -> None:
        """Raises RuntimeUnavailable."""
        if isinstance(event, Output):
            start, end = event.offset, event.offset + len(event.data)
        elif isinstance(event, Gap):
            start, end = event.start, event.end
        else:
            return
        if start != self.offset or end <= start:
            raise invalid(f"output from {start} to {end} after {self.offset}")
        self.offset = end


def event_of(kind: int, _channel: int, payload: bytes) -> Event:
    """What a frame says. Raises the error it tells, and RuntimeUnavailable for an invalid one."""
    if kind in (frames.STDOUT, frames.STDERR):
        try:
            offset, data = frames.decode_at(payload)
        except FrameError as exc:
            raise invalid(str(exc)) from None
        return Output("stdout" if kind == frames.STDOUT else "stderr", offset, data)
    if kind == frames.STARTED:
        started = checked(CommandStarted, body_of(payload))
        return Started(started.command_id, started.stdin_received)
    if kind == frames.GAP:
        gap = checked(OutputGap, body_of(payload))
        return Gap(gap.start, gap.end)
    return Exited(checked(CommandExit, reply_body(kind, payload)))
