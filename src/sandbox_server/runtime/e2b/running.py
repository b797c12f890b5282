"""What happens to a command between its start and its end: output is taken in, a stream that breaks
is opened again, its time runs out."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import structlog

from sandbox_sdk.backoff import Backoff
from sandbox_sdk.protocol import errors
from sandbox_server.runtime.e2b import scripts
from sandbox_server.runtime.e2b.command import KILLED, E2bCommand
from sandbox_server.runtime.e2b.connection import BoxConnection
from sandbox_server.runtime.e2b.processes import Begun, Ended, Piece, ProcessEvent
from sandbox_warden.output import STDERR, STDOUT

log = structlog.get_logger(__name__)

BROKEN = b"\nsandbox: the connection to this sandbox broke; output may be missing here\n"
EARLIER = b"sandbox: the server was restarted; what this command wrote before is not available\n"
_OUTPUT_BYTES = 8 << 20
"""Of the output of all commands of a box that is kept."""
_DEAD_S = 10.0
"""How long after a kill the launcher may take to tell the end."""


@dataclass(frozen=True)
class Refused:
    """The launcher did not run the command."""

    why: str
    details: list[str]


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


class CommandStream:
    """Takes in the events of a command."""

    def __init__(self, command: E2bCommand) -> None:
        self._command = command
        mark = f"\x1esandbox-{command.mark}:".encode()  # What no command writes by chance.
        self._streams = {name: MarkedStream(mark) for name in ("stdout", "stderr")}
        self._ends: set[str] = set()
        self._pid = 0
        self.refused: Refused | None = None
        self.ending: list[str] | None = None
        """Exit code, whether the state was saved, whether it was killed, CPU time of the user and
        the system, folder."""
        self.exited = False

    @property
    def over(self) -> bool:
        return self.exited or self.refused is not None or self._ends == self._streams.keys()

    def take(self, event: ProcessEvent) -> None:
        if isinstance(event, Begun):
            self._pid = event.pid
        elif isinstance(event, Ended):
            self.exited = True
            for name, stream in self._streams.items():
                self._write(name, stream.rest())
        elif event.stream not in self._ends:
            output, lines = self._streams[event.stream].feed(event.data)
            self._write(event.stream, output)
            for line in lines:
                self._told(event.stream, line)

    def _write(self, name: str, data: bytes) -> None:
        self._command.add(STDERR if name == "stderr" else STDOUT, data)

    def _told(self, stream: str, line: str) -> None:
        word, *rest = line.split(" ", 6)
        if word == "begun":
            shell = rest[0] if rest else ""
            self._command.begin(self._pid, int(shell) if shell.isdecimal() else self._pid)
        elif word == "ended":
            self.ending = rest
            self._ends.add(stream)
        elif word == "":
            self._ends.add(stream)
        else:
            self.refused = Refused(word, rest)


class RunningCommands(BoxConnection):
    """Runs the commands of one box until their end is known."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._commands: dict[str, E2bCommand] = {}
        self.command_ms = self.bytes_in = self.bytes_out = 0
        self.cpu_s = 0.0

    async def _take_all(
        self, command: E2bCommand, events: AsyncGenerator[ProcessEvent]
    ) -> Refused | None:
        """Take in all of the output. Returns why the command was not run, if it was not."""
        stream = CommandStream(command)
        backoff = Backoff(0.1, 1.0, 30.0)
        while True:
            try:
                await self._take_in(command, stream, events)
                return await self._finish(command, stream)
            except errors.RuntimeUnavailable as exc:
                pause_s = backoff.pause_s(time.monotonic())
                if pause_s is None or not command.pid:
                    raise
                log.warning("e2b.stream_broken", command=command.id, why=exc.message)
                command.add(STDERR, BROKEN)
            except errors.NotFound:  # It ended while nobody listened.
                return await self._finish(command, stream)
            await asyncio.sleep(pause_s)
            events = (await self.opened()).follow(command.pid)

    async def _take_in(
        self, command: E2bCommand, stream: CommandStream, events: AsyncGenerator[ProcessEvent]
    ) -> None:
        async with contextlib.aclosing(events):
            async for event in events:
                stream.take(event)
                if stream.over:
                    return
                if isinstance(event, Piece):
                    await command.room()

    async def _finish(self, command: E2bCommand, stream: CommandStream) -> Refused | None:
        if stream.refused is not None:
            return stream.refused
        await command.read()
        if stream.ending is None and not command.timed_out:
            code = await self._recorded_exit(command.id)
            stream.ending = [str(KILLED if code is None else code), "no", "no"]
        self._ended(command, stream.ending)
        return None

    async def _expire(self, command: E2bCommand) -> None:
        """Wait for the end of its time, then kill everything it has started."""
        assert command.call.timeout_s is not None
        await command.began.wait()
        await self._over(command, within_s=command.call.timeout_s)
        if command.over.is_set():
            return
        command.timed_out = True
        with contextlib.suppress(errors.SandboxError):
            await self._send_signal(command, 9)
            await self._over(command, within_s=_DEAD_S)
            if not command.over.is_set():
                await (await self.opened()).kill(command.pid)
                await self._over(command, within_s=_DEAD_S)
        if not command.over.is_set():
            self._ended(command, None)

    async def _over(self, command: E2bCommand, *, within_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await command.over.wait()

    def _ended(self, command: E2bCommand, told: list[str] | None) -> None:
        """told: see CommandStream."""
        if command.over.is_set():
            return
        code, saved, killed, *more = told or [str(KILLED), "no", "yes"]
        if saved == "yes" and len(more) == 3 and not command.timed_out:
            self.cwd = more[2]
        exit_code = int(code) if code.isdecimal() else KILLED
        command.end(exit_code=exit_code, cwd=self.cwd, saved=saved == "yes", killed=killed == "yes")
        self._trim()
        if not command.call.own:
            self._ran += 1
            self.cpu_s += sum(map(_seconds, more[:2]))
            self.command_ms += int(command.age_s * 1000)
            self.bytes_in += command.received
            self.bytes_out += command.log.size

    async def _send_signal(self, command: E2bCommand, number: int) -> None:
        processes = await self.opened()
        await processes.output(scripts.SIGNAL, command.id, str(number))

    async def _recorded_exit(self, command_id: str) -> int | None:
        record = (await self.report()).commands.get(command_id)
        return None if record is None else record.exit_code

    def _trim(self) -> None:
        """Drop the output of the oldest commands, if that of all takes too much memory."""
        room = _OUTPUT_BYTES
        for each in reversed(list(self._commands.values())):
            room -= each.log.retained
            if room < 0 and each.over.is_set():
                each.log.forget()


def _seconds(text: str) -> float:
    """Of `0m1.234s`."""
    minutes, _, seconds = text.rstrip("s").partition("m")
    try:
        return 60 * float(minutes) + float(seconds)
    except ValueError:
        return 0.0
