"""What is missing from the tar of a folder, according to the notice at its end."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

NOTICE = "LEFT-OUT-BY-SANDBOX.txt"
_BLOCK = 512
_KEPT = 256 * _BLOCK
_LONGEST_LINE = 300


class TarEnd:
    """Keeps the last bytes of a tar that is streamed."""

    def __init__(self) -> None:
        self._end = bytearray()

    def feed(self, chunk: bytes) -> None:
        self._end += chunk
        if len(self._end) > 4 * _KEPT:
            self._trim()

    def left_out(self) -> list[str]:
        """A line for each thing that is missing or incomplete: its path and why. The text comes
        from a sandbox, so control characters are escaped."""
        return self._notice()[1]

    @property
    def notice_bytes(self) -> int:
        """The size of the notice, up to the end of the tar."""
        return self._notice()[0]

    def _notice(self) -> tuple[int, list[str]]:
        self._trim()
        for start in range(len(self._end) % _BLOCK, len(self._end), _BLOCK):
            if self._end.startswith(NOTICE.encode() + b"\0", start):
                text = self._text_at(start)
                if text is not None:
                    lines = [_printable(line) for line in text.splitlines()[2:] if line]
                    return len(self._end) - start, lines
        return 0, []

    def _trim(self) -> None:
        del self._end[: max(len(self._end) - _KEPT, 0)]

    def _text_at(self, start: int) -> str | None:
        """The text of the notice, if its header is here and it is the last of the archive."""
        header = bytes(self._end[start : start + _BLOCK])
        try:
            size = tarfile.TarInfo.frombuf(header, "utf-8", "replace").size
        except tarfile.TarError:
            return None
        content = start + _BLOCK
        if content + size + -size % _BLOCK + 2 * _BLOCK != len(self._end):
            return None
        return self._end[content : content + size].decode("utf-8", "replace")


def take_notice(archive: Path) -> list[str]:
    """Return what is missing from an archive on this machine, and cut the notice off it."""
    end = TarEnd()
    with archive.open("r+b") as file:
        file.seek(max(archive.stat().st_size - _KEPT, 0))
        end.feed(file.read())
        if end.notice_bytes:
            file.seek(-end.notice_bytes, os.SEEK_END)
            file.write(bytes(2 * _BLOCK))
            file.truncate()
    return end.left_out()


def _printable(line: str) -> str:
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
    return shown if len(shown) <= _LONGEST_LINE else f"{shown[: _LONGEST_LINE - 1]}…"
