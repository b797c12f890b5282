"""What can be going on in a channel: following a command, feeding it, sending a file, receiving
one."""

import os
import stat
from typing import Any, Callable, Dict, Iterator, Optional

from . import files
from .command import Command, Follower
from .commands import Commands
from .connection import Connection, Source
from .errors import Refused, refusal
from .frames import (
    CHUNK,
    DATA,
    ERROR,
    GAP,
    REPLY,
    STARTED,
    STDERR,
    STDOUT,
    WINDOW,
    FrameError,
    encode,
    encode_at,
    encode_json,
)
from .stdin import Stdin

_HASH_STEP = 4 << 20
_KINDS = (STDOUT, STDERR)


class Following(Source):
    """The output of a command from an offset on, then its result. at_once: not later, but how it
    stands now."""

    def __init__(
        self, connection: Connection, channel: int, commands: Commands, command: Command, *,
        offset: int, live: bool, at_once: bool,
    ) -> None:  # fmt: skip
        self._connection = connection
        self._channel = channel
        self._commands = commands
        self._command = command
        self._credit = WINDOW
        self._told = False
        self._until: Optional[int] = None
        if at_once:
            command.log.settle()
            self._until = command.log.size
        self._follower = Follower(command, offset, live, connection.pump)
        command.followers.add(self._follower)

    def pull(self) -> Optional[bytes]:
        command, follower = self._command, self._follower
        whole = command.result is not None or self._until is not None
        if not whole and not follower.live and command.stdin is None:
            return None  # Told in one go, when there is everything to tell.
        if not self._told:
            self._told = True
            return self._started()
        if self._credit <= 0 or not (whole or follower.live):
            return None
        # One that has ended meanwhile is told to its end.
        until = command.log.size if command.result or self._until is None else self._until
        most = min(CHUNK, until - follower.cursor)
        piece = command.log.read(follower.cursor, most) if most > 0 else None
        if piece is not None:
            return self._piece(*piece)
        if not whole:
            return None
        self.done = True
        if follower.cursor < until:  # Its output has been dropped since.
            self._connection.send(self._gap(until))
        if command.refused is not None:
            body = {"code": command.refused.code, "message": str(command.refused)}
            return encode_json(ERROR, self._channel, body)
        return encode_json(REPLY, self._channel, command.result or self._standing(until))

    def _standing(self, output_bytes: int) -> Dict[str, Any]:
        return self._command.standing(output_bytes=output_bytes, cwd=self._commands.cwd)

    def _started(self) -> bytes:
        stdin = self._command.stdin
        received = stdin.received if stdin is not None else 0
        body = {"command_id": self._command.ident, "stdin_received": received}
        return encode_json(STARTED, self._channel, body)

    def _piece(self, offset: int, stream: int, data: bytes) -> bytes:
        follower = self._follower
        if offset > follower.cursor:
            return self._gap(offset)
        follower.cursor = offset + len(data)
        if follower.lossy and follower.lag() == 0:
            follower.lossy = False
        self._credit -= len(data)
        self._commands.resume(self._command)
        return encode_at(_KINDS[stream], self._channel, offset, data)

    def _gap(self, end: int) -> bytes:
        follower = self._follower
        start, follower.cursor = follower.cursor, end
        return encode_json(GAP, self._channel, {"start": start, "end": end})

    def credit(self, count: int) -> None:
        self._credit += count

    def closed(self) -> None:
        self._command.followers.discard(self._follower)
        self._commands.resume(self._command)


class Feeding(Source):
    """Input for a command, taken when all of it is here and there is room, then answered."""

    def __init__(
        self, connection: Connection, channel: int, stdin: Stdin, *, offset: Optional[int],
        end: bool,
    ) -> None:  # fmt: skip
        self._connection = connection
        self._channel = channel
        self._stdin = stdin
        self._offset = offset
        self._end = end
        self._data = bytearray()
        self._whole = False
        stdin.waiting.add(self._room)

    def pull(self) -> Optional[bytes]:
        if not self._whole or not self._stdin.has_room(len(self._data)):
            return None
        self.done = True
        try:
            received = self._stdin.take(bytes(self._data), offset=self._offset, end=self._end)
        except Refused as exc:
            return encode_json(ERROR, self._channel, {"code": exc.code, "message": str(exc)})
        return encode_json(REPLY, self._channel, {"received": received})

    def data(self, payload: bytes) -> None:
        if len(self._data) + len(payload) > WINDOW:
            raise FrameError("more than %d bytes of input at once" % WINDOW)
        self._data += payload

    def eof(self) -> None:
        self._whole = True

    def closed(self) -> None:
        self._stdin.waiting.discard(self._room)

    def _room(self) -> None:
        if self._connection.open:
            self._connection.pump()


class Sending(Source):
    """A file, or a folder as a tar: first what it is, then its bytes."""

    def __init__(self, channel: int, path: str, *, digest: bool, again: Callable[[], None]) -> None:
        self._channel = channel
        self._credit = WINDOW
        self._again = again
        self._fd, self._info, self._path = files.open_path(path)
        self._folder = stat.S_ISDIR(self._info.st_mode)
        self._hash = self._hashing() if digest and not self._folder else None
        self._chunks: Optional[Iterator[bytes]] = None
        self._digest: Optional[str] = None

    def pull(self) -> Optional[bytes]:
        try:
            return self._next()
        except Refused as exc:
            self.done = True
            return encode_json(ERROR, self._channel, {"code": exc.code, "message": str(exc)})
        except OSError as exc:
            self.done = True
            body = {"code": refusal(exc).code, "message": str(exc)}
            return encode_json(ERROR, self._channel, body)

    def _next(self) -> Optional[bytes]:
        if self._hash is not None:
            if next(self._hash, None) is None:
                self._hash = None
            self._again()  # A little at a time: other channels are served in between.
            return None
        if self._chunks is None:
            self._chunks = self._open_chunks()
            return encode_json(STARTED, self._channel, self._about())
        if self._credit <= 0:
            return None
        data = next(self._chunks, None)
        if data is None:
            self.done = True
            return encode_json(REPLY, self._channel, {})
        self._credit -= len(data)
        return encode(DATA, self._channel, data)

    def _open_chunks(self) -> Iterator[bytes]:
        if self._folder:
            return files.tar_chunks(self._fd)
        return files.file_chunks(self._fd, self._info.st_size)

    def _about(self) -> Dict[str, Any]:
        return {
            "path": self._path,
            "type": "directory" if self._folder else "file",
            "size": None if self._folder else self._info.st_size,
            "modified_at": self._info.st_mtime,
            "mode": "%04o" % stat.S_IMODE(self._info.st_mode),
            "sha256": self._digest,
        }

    def _hashing(self) -> Iterator[int]:
        import hashlib  # Only boxes that need it pay for it.

        digest, offset = hashlib.sha256(), 0
        while offset < self._info.st_size:
            data = os.pread(self._fd, min(_HASH_STEP, self._info.st_size - offset), offset)
            if not data:
                raise Refused("changed", "the file became shorter while it was read")
            digest.update(data)
            offset += len(data)
            yield offset
        self._digest = digest.hexdigest()

    def credit(self, count: int) -> None:
        self._credit += count

    def closed(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Receiving(Source):
    """A file that comes in, answered when it is whole."""

    def __init__(self, channel: int, upload: files.Upload) -> None:
        self._channel = channel
        self._upload = upload
        self._answer: Optional[bytes] = None

    def pull(self) -> Optional[bytes]:
        self.done = self._answer is not None
        return self._answer

    def data(self, payload: bytes) -> None:
        if self._answer is None:
            self._try(lambda: self._upload.write(payload))

    def eof(self) -> None:
        if self._answer is None and self._try(self._upload.finish):
            body = {"path": self._upload.path, "size": self._upload.size}
            self._answer = encode_json(REPLY, self._channel, body)

    def _try(self, step: Callable[[], None]) -> bool:
        try:
            step()
        except Refused as exc:
            self._upload.close()
            body = {"code": exc.code, "message": str(exc)}
            self._answer = encode_json(ERROR, self._channel, body)
            return False
        return True

    def closed(self) -> None:
        self._upload.close()
