"""Channels with files: listing, sending, receiving."""

import json
import os
import stat
from typing import Any, Callable, Dict, Iterator, List, Optional

from . import files
from .connection import Source
from .errors import Refused, refusal, shown
from .frames import CHUNK, DATA, EOF, STARTED, encode, encode_json
from .paths import MAX_PATH, is_inside
from .uploads import Upload
from .walk import MAX_DEPTH, Item, Walk

MAX_LISTED = 100_000
MAX_LISTED_BYTES = 8 << 20
"""Most bytes of names and paths in one listing."""
_ENTRY_BYTES = 120
"""Bytes of an entry besides its name and path."""
_MAX_SPOOLED = 8 << 20
"""Bytes of a file whose size is not known before it is read."""
_READS = 16
_BATCH = 200
_HASH_STEP = 1 << 20
_SMALL = 256 * 1024
"""Bytes of a file that is kept in memory as it was read, so that one can be read while it is
written again and again."""


class Working(Source):
    """A source with work between its frames, done in small slices so that other channels are served
    in between."""

    def __init__(self, path: str) -> None:
        """path: a file or folder, kept open until the channel is closed."""
        self._fd, self._info, self._path = files.open_path(path)
        self._rest, self._behind = b"", b""
        """What is yet to be sent of the last data, and a frame behind it."""

    def pull(self) -> Optional[bytes]:
        if self._credit <= 0:
            return None
        if self._rest:
            return self._data(self._rest, self._behind)
        try:
            frame = self._next()
        except Refused as exc:
            return self.refuse(exc)
        except OSError as exc:
            return self.refuse(refusal(exc, self._path))
        if frame is None:
            self.connection.pump_soon()
        return frame

    def _data(self, data: bytes, behind: bytes = b"") -> bytes:
        """As much of it as there is credit for, and with its end the frame `behind`."""
        self._rest, self._behind = data[self._credit :], behind
        data = data[: self._credit]
        self._credit -= len(data)
        return encode(DATA, self.channel, data) + (b"" if self._rest else behind)

    def _next(self) -> Optional[bytes]:
        """The next frame, or None after a slice of work. Raises Refused, OSError."""
        raise NotImplementedError

    def closed(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Listing(Working):
    """Sends a folder's entries in batches, a DATA and an EOF each, then whether it is truncated."""

    def __init__(self, path: str, *, depth: int, limit: int) -> None:
        """depth: how many folders in folders, the listed one included."""
        super().__init__(path)
        self._room = limit
        self._bytes = MAX_LISTED_BYTES
        self._truncated = False
        self._entries: Iterator[Optional[Dict[str, Any]]]
        if stat.S_ISDIR(self._info.st_mode):
            self._entries = self._walk(depth)
        else:
            self._entries = iter([files.entry(self._path, self._info)])
        self._batch: List[bytes] = []

    def _next(self) -> Optional[bytes]:
        for entry in self._entries:
            if entry is None:
                return None
            self._batch.append(_dumped(entry))
            if len(self._batch) >= _BATCH or sum(map(len, self._batch)) > CHUNK:
                return self._sent()
        if self._batch:
            return self._sent()
        return self.answer({"truncated": self._truncated})

    def _sent(self) -> bytes:
        data = b"[" + b",".join(self._batch) + b"]"
        self._batch = []
        return self._data(data, encode(EOF, self.channel))

    def _walk(self, depth: int) -> Iterator[Optional[Dict[str, Any]]]:
        def enter(item: Item) -> bool:
            return depth == MAX_DEPTH or item.path.count("/") + 1 < depth

        walk = Walk(
            self._fd,
            recursive=depth > 1,
            left_out=self._left_out,
            room=lambda: self._room,
            enter=enter,
        )
        for item in walk:
            if item is None:
                yield None
                continue
            path = os.path.join(self._path, item.path)
            entry = files.entry_at(item.folder, item.name, path, item.status)
            if len(os.fsencode(entry["path"])) > MAX_PATH:
                self._truncated = True  # Such a path is too long for any request.
                continue
            self._room -= 1
            self._bytes -= len(_dumped(entry)) - _ENTRY_BYTES
            if self._room < 0 or self._bytes < 0:
                self._truncated = True
                return
            yield entry

    def _left_out(self, _path: str, _why: str) -> None:
        self._truncated = True

    def closed(self) -> None:
        self._entries = iter(())  # Closes the walk's descriptors.
        super().closed()


class Sending(Working):
    """Sends a file, or a folder as a tar: first its description, then its bytes."""

    def __init__(self, path: str, *, digest: bool) -> None:
        super().__init__(path)
        self._folder = stat.S_ISDIR(self._info.st_mode)
        self._size = self._info.st_size
        # In /proc and /sys, sizes are wrong.
        unknown = self._info.st_blocks == 0 and not self._folder and not is_inside(self._path)
        self._spool = self._spooling() if unknown else None
        self._hash = self._hashing() if digest and not self._folder else None
        self._chunks: Optional[Iterator[Optional[bytes]]] = None
        self._sent = 0
        self._digest: Optional[str] = None
        self._kept: Optional[bytes] = None
        if not unknown and not self._folder and self._size <= _SMALL:
            self._keep()

    def _next(self) -> Optional[bytes]:
        if self._spool is not None:
            if next(self._spool, None) is None:
                self._spool = None
            return None
        if self._hash is not None:
            if next(self._hash, None) is None:
                self._hash = None
            return None
        if self._chunks is None:
            self._chunks = self._open_chunks()
            return encode_json(STARTED, self.channel, self._about())
        for data in self._chunks:
            if data is None:
                return None
            self._sent += len(data)
            return self._data(data)
        if not self._folder and self._sent < self._size:
            raise _shorter(self._path)
        return self.answer({})

    def _open_chunks(self) -> Iterator[Optional[bytes]]:
        if self._folder:
            from .tar import Tar  # Imported late to save memory.

            return iter(Tar(self._fd))
        if self._kept is not None:
            return files.chunks_of(self._kept)
        self._check_size()
        return files.file_chunks(self._fd, self._size)

    def _keep(self) -> None:
        self._kept = files.read_at(self._fd, _SMALL)
        self._info = os.fstat(self._fd)
        self._size = len(self._kept)

    def _check_size(self) -> None:
        """A sparse file may have any size, and would take forever to read."""
        most = files.capacity(self._fd)
        if self._size > 2 * most:
            message = (
                "%s is a sparse file of %d bytes, but its disk holds only %d; pack it with tar -S"
            )
            raise Refused("file_too_large", message % (shown(self._path), self._size, most))

    def _spooling(self) -> Iterator[int]:
        """Read the whole file into memory, to know its size."""
        spool, size = os.memfd_create("spool", os.MFD_CLOEXEC), 0
        try:
            while data := self._read_on():
                size += os.write(spool, data)
                if size > _MAX_SPOOLED:
                    message = (
                        "%s has more than %d bytes, and its size is not known before it is read"
                    )
                    raise Refused("file_too_large", message % (shown(self._path), _MAX_SPOOLED))
                yield size
            os.dup2(spool, self._fd, inheritable=False)
            self._size = size
        finally:
            os.close(spool)

    def _read_on(self) -> bytes:
        """Some of what comes next in the file: its kind comes in small pieces."""
        try:
            return b"".join(os.read(self._fd, CHUNK) for _ in range(_READS))
        except OSError as exc:
            message = "%s cannot be read as a file: %s"
            raise Refused("not_a_file", message % (shown(self._path), exc.strerror)) from None

    def _about(self) -> Dict[str, Any]:
        return {
            "path": self._path,
            "type": "directory" if self._folder else "file",
            "size": None if self._folder else self._size,
            "modified_at": self._info.st_mtime,
            "mode": "%04o" % stat.S_IMODE(self._info.st_mode),
            "sha256": self._digest,
        }

    def _hashing(self) -> Iterator[int]:
        import hashlib  # Imported late to save memory.

        if self._kept is not None:
            self._digest = hashlib.sha256(self._kept).hexdigest()
            return
        self._check_size()
        digest, offset = hashlib.sha256(), 0
        while offset < self._size:
            data = os.pread(self._fd, min(_HASH_STEP, self._size - offset), offset)
            if not data:
                raise _shorter(self._path)
            digest.update(data)
            offset += len(data)
            yield offset
        self._digest = digest.hexdigest()

    def closed(self) -> None:
        self._chunks = iter(())  # Closes the tar's descriptors.
        super().closed()


class Taking(Source):
    """Takes bytes; answers when all are taken, or some are refused."""

    _answer: Optional[bytes] = None

    def pull(self) -> Optional[bytes]:
        self.done = self._answer is not None
        return self._answer

    def data(self, payload: bytes) -> None:
        self._try(lambda: self._take(payload))

    def eof(self) -> None:
        self._try(self._end)

    def _end(self) -> None:
        self._answer = self.answer(self._finish())

    def _try(self, step: Callable[[], None]) -> None:
        if self._answer is not None:
            return
        try:
            step()
        except Refused as exc:
            self.closed()
            self._answer = self.refuse(exc)

    def _take(self, payload: bytes) -> None:
        """Raises Refused."""
        raise NotImplementedError

    def _finish(self) -> Dict[str, Any]:
        """The answer. Raises Refused."""
        raise NotImplementedError


class Receiving(Taking):
    """Receives a file; answers when it is complete."""

    def __init__(self, upload: Upload) -> None:
        self._upload = upload

    def _take(self, payload: bytes) -> None:
        self._upload.write(payload)

    def _finish(self) -> Dict[str, Any]:
        self._upload.finish()
        return {"path": self._upload.path, "size": self._upload.size}

    def closed(self) -> None:
        self._upload.close()


def _dumped(entry: Dict[str, Any]) -> bytes:
    text = json.dumps(entry, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def _shorter(path: str) -> Refused:
    return Refused("changed", "%s was truncated while it was read; try again" % shown(path))
