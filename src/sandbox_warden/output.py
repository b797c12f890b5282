"""The retained output of one command: its beginning and its end, with absolute offsets.

stdout and stderr are kept in one log in the order they were read, and so are the results of a cell.
The combined text, each stream and a resumed read all come from the same bytes.
"""

from array import array
from bisect import bisect_right
from typing import Optional, Tuple

STDOUT, STDERR, RESULT = 0, 1, 2


class OutputLog:
    """At most `limit` bytes of an output of any size.

    Offsets count the bytes of both streams together. Bytes between the two halves are dropped:
    [gap_start, gap_end) is missing.
    """

    def __init__(self, limit: int, *, only_end: bool = False) -> None:
        """only_end: keep none of the beginning, as a terminal does."""
        self.half = max(limit if only_end else limit // 2, 1)
        self.size = 0
        self._head = bytearray()
        self._head_limit = 0 if only_end else self.half
        self._tail = bytearray()
        self._tail_start = self._head_limit
        # Where the stream changes: offset * 4 + stream. Eight bytes per change bound the memory of
        # a command that alternates between its streams byte by byte.
        self._marks = array("Q")

    @property
    def gap_start(self) -> int:
        return len(self._head)

    @property
    def gap_end(self) -> int:
        return max(self._tail_start, len(self._head))

    @property
    def truncated(self) -> bool:
        return self.size > self.retained

    @property
    def retained(self) -> int:
        return len(self._head) + len(self._tail)

    def append(self, stream: int, data: bytes) -> None:
        if not data:
            return
        if not self._marks or self._marks[-1] & 3 != stream:
            self._marks.append(self.size * 4 + stream)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data_for_tail = data[room:]
        else:
            data_for_tail = data
        self.size += len(data)
        self._tail += data_for_tail
        # Trimming only at twice the size keeps appending cheap.
        if len(self._tail) >= 2 * self.half:
            self._trim()

    def forget(self) -> None:
        """Drop the bytes of an old command's output, and keep the count."""
        self._head = bytearray()
        self._tail = bytearray()
        self._marks = array("Q")
        self._tail_start = self.size

    def settle(self) -> None:
        """Trim to the limit. Live readers have read past what is dropped."""
        self._trim()

    def read(self, offset: int, most: int) -> Optional[Tuple[int, int, bytes]]:
        """The next piece at or after offset: its start, stream and bytes.

        A piece never spans a change of stream or the gap. None if there is nothing left.
        """
        if self.gap_start <= offset < self.gap_end:
            offset = self.gap_end
        if offset >= self.size:
            return None
        index = bisect_right(self._marks, offset * 4 + 3) - 1
        stream = self._marks[index] & 3
        end = min(offset + most, self.size)
        if index + 1 < len(self._marks):
            end = min(end, self._marks[index + 1] >> 2)
        if offset < len(self._head):
            return offset, stream, bytes(self._head[offset : min(end, len(self._head))])
        start = offset - self._tail_start
        return offset, stream, bytes(self._tail[start : end - self._tail_start])

    def _trim(self) -> None:
        excess = len(self._tail) - self.half
        if excess <= 0:
            return
        del self._tail[:excess]
        self._tail_start += excess
        self._trim_marks()

    def _trim_marks(self) -> None:
        """Drop the stream changes inside the gap, except the last, which applies at its end."""
        first = bisect_right(self._marks, len(self._head) * 4 + 3)
        last = bisect_right(self._marks, self._tail_start * 4 + 3) - 1
        if last > first:
            del self._marks[first:last]
