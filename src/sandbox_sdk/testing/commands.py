"""The commands of a fake sandbox: they do nothing, but take their time over it."""

from __future__ import annotations

import math
import signal
import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Literal

from sandbox_sdk.protocol.errors import IdempotencyMismatch, InvalidRequest, NotFound, StdinClosed
from sandbox_sdk.protocol.events import OutputEvent
from sandbox_sdk.protocol.models import (
    COMMAND_TIMEOUT_S,
    CommandInfo,
    ExecuteRequest,
    SignalName,
    StdinReceipt,
)
from sandbox_sdk.testing.answers import FakeAnswer

_HARMLESS = ("STOP", "CONT")


@dataclass
class FakeCommand:
    """One command. It has ended when its time is over, or when it was ended before that."""

    request: ExecuteRequest
    answer: FakeAnswer
    cwd: str
    command_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    began: float = field(default_factory=time.monotonic)
    killed: str | None = None
    killed_at: float = math.inf
    stdin: bytes = b""
    stdin_open: bool = False

    @property
    def _timeout_s(self) -> float:
        return self.request.timeout or COMMAND_TIMEOUT_S

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
    def stdout(self) -> str:
        return self.answer.output

    @property
    def stderr(self) -> str:
        return self.answer.stderr

    @property
    def output_bytes(self) -> int:
        return len((self.stdout + self.stderr).encode())

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
        }

    def info(self) -> CommandInfo:
        return CommandInfo(
            command_id=self.command_id,
            idempotency_key=self.request.idempotency_key,
            running=self.running,
            exit_code=self.exit_code,
            age_s=round(time.monotonic() - self.began, 3),
            output_bytes=self.output_bytes,
        )

    def end(self, name: SignalName) -> None:
        if self.running and name not in _HARMLESS:
            self.killed, self.killed_at = name, time.monotonic()

    def take(self, data: bytes, *, eof: bool, offset: int | None) -> StdinReceipt:
        at = len(self.stdin) if offset is None else offset
        if at > len(self.stdin):
            raise InvalidRequest(f"offset {at} leaves a hole: {len(self.stdin)} bytes have come")
        new = data[len(self.stdin) - at :]
        if new and not (self.stdin_open and self.running):
            raise StdinClosed("the command takes no input; start it with stdin_open")
        self.stdin += new
        self.stdin_open = self.stdin_open and not eof
        return StdinReceipt(received=len(self.stdin))

    def events(self, offset: int) -> list[OutputEvent]:
        """Its output from an offset on."""
        found, start = [], 0
        pieces: list[tuple[Literal["stdout", "stderr"], str]]
        pieces = [("stdout", self.stdout), ("stderr", self.stderr)]
        for stream, text in pieces:
            data, end = text.encode(), start + len(text.encode())
            if end > max(start, offset):
                at = max(start, offset)
                rest = data[at - start :].decode(errors="replace")
                found.append(OutputEvent(event=stream, data=rest, offset=at, next_offset=end))
            start = end
        return found


class FakeCommands:
    """The commands of one session."""

    def __init__(self) -> None:
        self.all: list[FakeCommand] = []

    @property
    def running(self) -> list[FakeCommand]:
        return [command for command in self.all if command.running]

    def find(self, command_id: str) -> FakeCommand:
        for command in self.all:
            if command.command_id == command_id:
                return command
        raise NotFound(f"no command {command_id} in this session")

    def joined(self, request: ExecuteRequest) -> FakeCommand | None:
        """The command that has run under the same key. Raises IdempotencyMismatch."""
        for command in self.all:
            if (
                request.idempotency_key
                and command.request.idempotency_key == request.idempotency_key
            ):
                if command.request.command != request.command:
                    raise IdempotencyMismatch("this idempotency_key stands for another command")
                return command
        return None
