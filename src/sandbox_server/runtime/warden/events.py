"""What happens to a command, told piece by piece, and the whole of it at the end."""

from __future__ import annotations

from dataclasses import dataclass

from sandbox_sdk.protocol import errors
from sandbox_warden import frames
from sandbox_warden.frames import FrameError

from .answers import (
    CommandExit,
    CommandStanding,
    CommandStarted,
    StreamName,
    checked,
    reply_body,
)


@dataclass(frozen=True)
class Started:
    command_id: str
    stdin_received: int = 0


@dataclass(frozen=True)
class Output:
    """Bytes of a command's output; `offset` counts both streams together."""

    stream: StreamName
    offset: int
    data: bytes


@dataclass(frozen=True)
class Gap:
    """Output that is no longer kept: the bytes from start up to end."""

    start: int
    end: int


@dataclass(frozen=True)
class Exited:
    result: CommandExit


Event = Started | Output | Gap | Exited


class Pieces:
    """What is kept of an output, as it comes in. A warden that sends far more than it was told to
    keep is not believed: it would fill this server's memory."""

    def __init__(self, limit: int) -> None:
        self._room = 2 * limit + frames.WINDOW
        self._pieces: list[Output | Gap] = []

    def add(self, event: Event) -> None:
        """Raises RuntimeUnavailable."""
        if isinstance(event, Output | Gap):
            self._pieces.append(event)
            # A piece costs more than its bytes.
            self._room -= 64 + (len(event.data) if isinstance(event, Output) else 0)
            if self._room < 0:
                raise errors.RuntimeUnavailable("the warden sent more than it may keep")

    def of(self, exit: CommandStanding) -> CommandResult:
        return CommandResult(exit, tuple(self._pieces))


@dataclass(frozen=True)
class CommandResult:
    """A command with the output kept of it."""

    exit: CommandStanding
    pieces: tuple[Output | Gap, ...]

    @property
    def output(self) -> str:
        """Both streams as they came."""
        return self._text(None)

    @property
    def stdout(self) -> str:
        return self._text("stdout")

    @property
    def stderr(self) -> str:
        return self._text("stderr")

    @property
    def truncated(self) -> bool:
        return any(isinstance(piece, Gap) for piece in self.pieces)

    def _text(self, stream: StreamName | None) -> str:
        parts = []
        for piece in self.pieces:
            if isinstance(piece, Gap):
                parts.append(b"\n[%d bytes of output left out]\n" % (piece.end - piece.start))
            elif stream is None or piece.stream == stream:
                parts.append(piece.data)
        return b"".join(parts).decode("utf-8", "replace")


def event_of(kind: int, _channel: int, payload: bytes) -> Event:
    """What a frame says. Raises the error it tells, and RuntimeUnavailable for nonsense."""
    try:
        if kind in (frames.STDOUT, frames.STDERR):
            offset, data = frames.decode_at(payload)
            return Output("stdout" if kind == frames.STDOUT else "stderr", offset, data)
        if kind == frames.STARTED:
            started = checked(CommandStarted, frames.decode_json(payload))
            return Started(started.command_id, started.stdin_received)
        if kind == frames.GAP:
            body = frames.decode_json(payload)
            return Gap(int(body["start"]), int(body["end"]))
    except (FrameError, KeyError, TypeError, ValueError) as exc:
        raise errors.RuntimeUnavailable("the warden sent nonsense") from exc
    return Exited(checked(CommandExit, reply_body(kind, payload)))
