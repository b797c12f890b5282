"""Channels with a command: following its output, feeding its stdin."""

from typing import Optional

from . import frames
from .command import Command, Follower
from .commands import Commands
from .connection import Source
from .errors import Refused
from .stdin import Stdin

_KINDS = (frames.STDOUT, frames.STDERR, frames.RESULT)


class Following(Source, Follower):
    """Sends a command's output from an offset on, then its result. at_once: only up to its current
    state, without waiting for the end."""

    def __init__(
        self, commands: Commands, command: Command, *, offset: int, live: bool, at_once: bool
    ) -> None:
        super().__init__(command, offset, live=live)
        self._commands = commands
        self._announced = False
        self._until: Optional[int] = None
        if at_once:
            command.log.settle()
            self._until = command.log.size

    def wake(self) -> None:
        self.connection.pump()

    def pull(self) -> Optional[bytes]:
        command = self.command
        whole = command.result is not None or self._until is not None
        if not whole and not self.live and command.stdin is None:
            return None  # Not live: everything is sent at the end.
        if not self._announced:
            if not command.has_begun and self._until is None:
                return None
            self._announced = True
            return self._started()
        # The offset counts too, or pieces of one byte would send nine times the credit.
        room = self._credit - frames.OFFSET.size
        if room <= 0 or not (whole or self.live):
            return None
        # If the command has ended meanwhile, send all of it.
        until = command.log.size if command.result or self._until is None else self._until
        most = min(frames.CHUNK, room, until - self.cursor)
        piece = command.log.read(self.cursor, most) if most > 0 else None
        if piece is not None:
            return self._piece(*piece)
        if not whole:
            return None
        if self.cursor < until:  # That output has been dropped meanwhile.
            self.connection.send(self._gap(until))
        if command.refused is not None:
            return self.refuse(command.refused)
        result = command.result or command.standing(
            output_bytes=until, cwd=self._commands.carrying.state.cwd
        )
        return self.answer(result)

    def _started(self) -> bytes:
        stdin = self.command.stdin
        received = stdin.received if stdin is not None else 0
        body = {"command_id": self.command.ident, "stdin_received": received}
        if self.command.pid:
            body["pid"] = self.command.pid
        return frames.encode_json(frames.STARTED, self.channel, body)

    def _piece(self, offset: int, stream: int, data: bytes) -> bytes:
        if offset > self.cursor:
            return self._gap(offset)
        self.cursor = offset + len(data)
        if self.lossy and self.lag() == 0:
            self.lossy = False
        self._credit -= frames.OFFSET.size + len(data)
        self._commands.pipes.resume(self.command)
        return frames.encode_at(_KINDS[stream], self.channel, offset, data)

    def _gap(self, end: int) -> bytes:
        start, self.cursor = self.cursor, end
        return frames.encode_json(frames.GAP, self.channel, {"start": start, "end": end})

    def closed(self) -> None:
        self.command.followers.discard(self)
        self._commands.pipes.resume(self.command)


class Feeding(Source):
    """Input for a command: taken once all of it has arrived and fits, then acknowledged."""

    def __init__(self, stdin: Stdin, *, ident: str, offset: Optional[int], end: bool) -> None:
        """ident: the command's id, for messages."""
        self._ident = ident
        self._stdin = stdin
        self._offset = offset
        self._end = end
        self._data = bytearray()
        self._whole = False
        self._refused: Optional[Refused] = None
        stdin.waiting.add(self._room)

    def pull(self) -> Optional[bytes]:
        if self._refused is not None:
            return self.refuse(self._refused)
        if not self._whole or not self._stdin.has_room(len(self._data)):
            return None
        try:
            received = self._stdin.take(bytes(self._data), offset=self._offset, end=self._end)
        except Refused as exc:
            return self.refuse(Refused(exc.code, "command %s: %s" % (self._ident, exc)))
        return self.answer({"received": received})

    def data(self, payload: bytes) -> None:
        if len(self._data) + len(payload) > frames.WINDOW:
            message = "a STDIN request has at most %d bytes; send the rest in another"
            self._refused = Refused("invalid_request", message % frames.WINDOW)
            self._data.clear()
            return
        self._data += payload

    def eof(self) -> None:
        self._whole = True

    def closed(self) -> None:
        self._stdin.waiting.discard(self._room)

    def _room(self) -> None:
        if self.connection.open:
            self.connection.pump()
