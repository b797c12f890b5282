"""Separates what our launcher tells (launch.sh) from the output of a command."""

from __future__ import annotations


def stream_mark(mark: str) -> bytes:
    """As the launcher writes it: what no command writes by chance."""
    return f"\x1esandbox-{mark}:".encode()


class MarkedStream:
    """One stream of a command, in pieces of any size. Lines that begin with the mark are ours; a
    mark may stand anywhere, since a command need not end its last line."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._held = b""
        """What may be the beginning of a mark, or a mark whose line is not complete."""

    def feed(self, data: bytes) -> tuple[bytes, list[str]]:
        """The output in this piece, and the lines for us."""
        lines: list[str] = []
        data, output = self._held + data, b""
        while (at := data.find(self._mark)) >= 0:
            line, newline, rest = data[at + len(self._mark) :].partition(b"\n")
            if not newline:
                self._held = data[at:]
                return output + data[:at], lines
            lines.append(line.decode("utf-8", "replace"))
            output, data = output + data[:at], rest
        kept = self._beginning_of_mark(data)
        self._held = data[len(data) - kept :]
        return output + data[: len(data) - kept], lines

    def rest(self) -> bytes:
        """At the end of the stream: what was not a mark after all."""
        held, self._held = self._held, b""
        return held

    def _beginning_of_mark(self, data: bytes) -> int:
        """How many of the last bytes may be the beginning of a mark."""
        for size in range(min(len(self._mark) - 1, len(data)), 0, -1):
            if self._mark.startswith(data[-size:]):
                return size
        return 0
