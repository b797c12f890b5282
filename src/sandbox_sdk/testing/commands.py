"""The commands of a fake sandbox: they run nothing, and end when their answer says so."""

from __future__ import annotations

import itertools
import math
import signal
import time
import uuid
from base64 import b64encode
from dataclasses import dataclass, field
from typing import Any, Literal

from sandbox_sdk.protocol.errors import InvalidRequest, StdinClosed
from sandbox_sdk.protocol.events import OutputEvent
from sandbox_sdk.protocol.models import (
    COMMAND_TIMEOUT_S,
    Artifact,
    CommandInfo,
    ExecuteRequest,
    OutputEncoding,
    PtySize,
    SignalName,
    StdinReceipt,
)
from sandbox_sdk.testing.answers import FakeAnswer

_PIDS = itertools.count(100)
_NOT_ENDING = ("STOP", "CONT")


@dataclass
class FakeCommand:
    """One command. It ends when its time is over, or when it is killed before that."""

    request: ExecuteRequest
    answer: FakeAnswer
    cwd: str
    command_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    began: float = field(default_factory=time.monotonic)
    killed: str | None = None
    killed_at: float = math.inf
    stdin: bytes = b""
    stdin_open: bool = False
    command_timeout_s: float = COMMAND_TIMEOUT_S
    artifacts: list[Artifact] = field(default_factory=list)
    size: PtySize | None = None
    pid: int = field(default_factory=lambda: next(_PIDS))

    @property
    def _timeout_s(self) -> float:
        if self.request.timeout == 0 or (self.request.timeout is None and self.request.background):
            return math.inf
        return self.request.timeout or self.command_timeout_s

    @property
    def _ends_at(self) -> float:
        takes_s = min(self.answer.takes_s, self._timeout_s)
        return min(self.began + takes_s, self.killed_at)

    @property
    def running(self) -> bool:
        return time.monotonic() < self._ends_at

    @property
    def timed_out(self) -> bool:
        return self.killed is None and self.answer.takes_s > self._timeout_s

    @property
    def exit_code(self) -> int | None:
        if self.running:
            return None
        if self.killed is not None:
            return 128 + signal.Signals[f"SIG{self.killed}"]
        return 124 if self.timed_out else self.answer.exit_code

    @property
    def output_bytes(self) -> int:
        return len((self.answer.output + self.answer.stderr).encode())

    def facts(self) -> dict[str, Any]:
        """What a result and an exit event have in common."""
        duration_s = min(time.monotonic(), self._ends_at) - self.began
        return {
            "exit_code": self.exit_code,
            "command_id": self.command_id,
            "duration_ms": round(duration_s * 1000, 3),
            "timed_out": not self.running and self.timed_out,
            "truncated": False,
            "output_bytes": self.output_bytes,
            "cwd": self.cwd,
            "signal": self.killed,
            "hint": None if self.running else self.answer.hint,
            "artifacts": [] if self.running else self.artifacts,
        }

    def info(self) -> CommandInfo:
        return CommandInfo(
            command_id=self.command_id,
            idempotency_key=self.request.idempotency_key,
            command=self.request.command,
            running=self.running,
            pid=self.pid if self.running else None,
            cwd=self.request.cwd if self.running else None,
            env=self.request.env if self.running else None,
            exit_code=self.exit_code,
            age_s=round(time.monotonic() - self.began, 3),
            output_bytes=self.output_bytes,
            pty=self.size,
        )

    def resize(self, *, rows: int, cols: int) -> None:
        if self.size is None:
            raise InvalidRequest(f"command {self.command_id} has no terminal: start it with pty")
        self.size = PtySize(rows=rows, cols=cols)

    def end(self, name: SignalName) -> None:
        if self.running and name not in _NOT_ENDING:
            self.killed, self.killed_at = name, time.monotonic()

    def take(self, data: bytes, *, eof: bool, offset: int | None) -> StdinReceipt:
        at = len(self.stdin) if offset is None else offset
        if at > len(self.stdin):
            raise InvalidRequest(
                f"offset {at} leaves a hole: stdin has {len(self.stdin)} bytes so far; send those"
                " in between first"
            )
        new = data[len(self.stdin) - at :]
        if new and not (self.stdin_open and self.running):
            raise StdinClosed(
                f"command {self.command_id} takes no input: it has ended, its stdin has, or it was"
                " started without stdin_open"
            )
        self.stdin += new
        self.stdin_open = self.stdin_open and not eof
        return StdinReceipt(received=len(self.stdin))

    def events(self, offset: int, encoding: OutputEncoding = "utf-8") -> list[OutputEvent]:
        """Its output from an offset on."""
        exact = encoding == "bytes"
        found, start = [], 0
        streams: tuple[Literal["stdout", "stderr"], ...] = ("stdout", "stderr")
        for stream, text in zip(streams, (self.answer.output, self.answer.stderr), strict=True):
            data = text.encode()
            at, end = max(start, offset), start + len(data)
            if end > at:
                rest = data[at - start :]
                found.append(
                    OutputEvent(
                        event=stream,
                        data=b64encode(rest).decode() if exact else rest.decode(errors="replace"),
                        encoding="base64" if exact else "utf-8",
                        offset=at,
                        next_offset=end,
                    )
                )
            start = end
        return found
