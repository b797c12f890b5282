"""What a cell writes and shows, within limits."""

import json
import re
from collections import deque
from typing import Any, Callable, Deque, Dict, Tuple

from . import frames

MOST_RESULTS = 200
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_TRACEBACK = 64 * 1024
_PIECE = frames.CHUNK

Send = Callable[[int, bytes], None]
"""Sends bytes of a kind: STDOUT, STDERR or RESULT."""


class CellOutput:
    """Passes on what a cell writes. Of text the first and the last half of a limit is kept, and
    what is in between counted; results beyond their limit are replaced by a notice."""

    def __init__(self, send: Send, *, text_limit: int, result_limit: int) -> None:
        self._send = send
        self._half = max(text_limit // 2, 1)
        self._head_left = self._half
        self._tail: Deque[Tuple[int, bytes]] = deque()
        self._tail_size = 0
        self._room = result_limit
        self._result_limit = result_limit
        self._results = 0
        self.size = 0
        """Bytes of text in all."""
        self.left_out = 0
        """Bytes of text that are not kept."""
        self.results_left_out = 0

    def text(self, kind: int, text: str) -> None:
        data = text.encode("utf-8", "replace")
        self.size += len(data)
        head, rest = data[: self._head_left], data[self._head_left :]
        self._head_left -= len(head)
        self._pieces(kind, head)
        if rest:
            self._tail.append((kind, rest))
            self._tail_size += len(rest)
            if self._tail_size > 2 * self._half:
                self._trim()

    def result(self, content: Dict[str, Any], *, main: bool, update: bool = False) -> None:
        data = {str(k): v for k, v in dict(content.get("data") or {}).items()}
        if self._results >= MOST_RESULTS:
            self.results_left_out += 1
            return
        self._results += 1
        record: Dict[str, Any] = {"type": "result", "main": main, "data": self._bounded(data)}
        display_id = dict(content.get("transient") or {}).get("display_id")
        if display_id:
            record["display_id"] = str(display_id)[:200]
        if update:
            record["update"] = True
        self.record(record)

    def _bounded(self, data: Dict[str, Any]) -> Dict[str, Any]:
        """The forms of a result, smallest first, as many as there is room for."""
        sized = sorted((len(json.dumps(value)), mime, value) for mime, value in data.items()
                       if isinstance(value, (str, dict, list, int, float)))  # fmt: skip
        kept: Dict[str, Any] = {}
        too_large = []
        for size, mime, value in sized:
            if size <= self._room:
                self._room -= size
                kept[mime] = value
            else:
                too_large.append("%s of %d bytes" % (mime[:100], size))
        if too_large:
            notice = "[left out: %s; results of one run have at most %d bytes. Save it to a file]"
            kept.setdefault("text/plain", "")
            notice %= (", ".join(too_large), self._result_limit)
            kept["text/plain"] = ("%s\n%s" % (kept["text/plain"], notice)).strip()
        return kept

    def error(self, content: Dict[str, Any]) -> None:
        lines = [_ANSI.sub("", str(line)) for line in content.get("traceback") or ()]
        kept, size = [], 0
        for line in lines:
            size += len(line)
            kept.append(line if size <= _TRACEBACK else "[the rest is left out]")
            if size > _TRACEBACK:
                break
        name, value = str(content.get("ename"))[:200], str(content.get("evalue"))
        self.record({"type": "error", "name": name, "value": value[:_TRACEBACK], "traceback": kept})

    def record(self, record: Dict[str, Any]) -> None:
        text = json.dumps(record, separators=(",", ":"), ensure_ascii=False)
        self._pieces(frames.RESULT, text.encode("utf-8", "replace") + b"\n")

    def finish(self) -> None:
        """Send what is kept of the end of the text."""
        self._trim()
        if self.left_out:
            notice = b"\n[%d bytes of output left out]\n" % self.left_out
            self._pieces(self._tail[0][0] if self._tail else frames.STDOUT, notice)
        for kind, data in self._tail:
            self._pieces(kind, data)
        self._tail.clear()
        self._tail_size = 0
        if self.results_left_out:
            notice_text = "[%d more results left out; a run has at most %d]"
            notice_text %= (self.results_left_out, MOST_RESULTS)
            self.record({"type": "result", "main": False, "data": {"text/plain": notice_text}})

    def _trim(self) -> None:
        while self._tail_size > self._half:
            kind, data = self._tail.popleft()
            excess = self._tail_size - self._half
            self.left_out += min(excess, len(data))
            self._tail_size -= min(excess, len(data))
            if excess < len(data):
                self._tail.appendleft((kind, data[excess:]))

    def _pieces(self, kind: int, data: bytes) -> None:
        for start in range(0, len(data), _PIECE):
            self._send(kind, data[start : start + _PIECE])
