"""This terminal as the one of a sandbox: every key goes there, and what it shows comes back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator

from sandbox_sdk.cli.follow import note
from sandbox_sdk.client import AsyncSandboxClient
from sandbox_sdk.process import AsyncProcess
from sandbox_sdk.protocol.errors import InvalidRequest, SandboxError
from sandbox_sdk.protocol.events import ExitEvent, GapEvent, OutputEvent
from sandbox_sdk.protocol.models import TERM

DETACH = b"\x1d"  # Ctrl-]
_PIECE = 64 * 1024
_UNKNOWN_SIZE = (24, 80)
_UNKNOWN_TERMS = ("", "dumb", "unknown")
_RESET = b"\x1b[?1049l\x1b[?25h\x1b[?2004l\x1b[?1000;1002;1003;1006l\x1b[0m\r\n"
"""Back from what a program may have left on: full screen, no cursor, mouse and paste reports."""


async def new_terminal(sandbox: AsyncSandboxClient, command: str = "") -> AsyncProcess:
    rows, cols = _size()
    term = os.environ.get("TERM", "")
    return await sandbox.terminal(
        command, rows=rows, cols=cols, term=TERM if term in _UNKNOWN_TERMS else term
    )


async def running_terminal(sandbox: AsyncSandboxClient, name: str) -> AsyncProcess:
    """By its id, or by "last" the newest that runs. Raises InvalidRequest, NotFound."""
    running = [c for c in (await sandbox.commands()).commands if c.running and c.pty is not None]
    if name == "last" and not running:
        raise InvalidRequest("no terminal of this thread runs; leave --attach out to open one")
    wanted = running[-1].command_id if name == "last" else name
    if name != "last" and wanted not in [command.command_id for command in running]:
        known = ", ".join(command.command_id for command in running) or "none"
        raise InvalidRequest(f"no terminal {name!r} of this thread runs; there is {known}")
    return await sandbox.process(wanted)


def _size() -> tuple[int, int]:
    """Rows and columns of this terminal, whatever LINES and COLUMNS say."""
    cols, rows = os.get_terminal_size(sys.stdin.fileno())
    return (rows, cols) if rows and cols else _UNKNOWN_SIZE


async def use(process: AsyncProcess) -> int | None:
    """Type and see until it ends or DETACH is typed. Returns its exit code; None if detached."""
    keys = _Keys()
    with _raw(sys.stdin.fileno()), keys:
        typing, showing, sizing = (
            asyncio.create_task(each)
            for each in (_type(process, keys), _show(process), _follow_size(process))
        )
        try:
            await asyncio.wait((typing, showing), return_when=asyncio.FIRST_COMPLETED)
            if not showing.done() and typing.exception() is not None:
                await showing  # Input is refused once it has ended.
            return showing.result() if showing.done() else None
        finally:
            for task in (typing, showing, sizing):
                task.cancel()
            await asyncio.gather(typing, showing, sizing, return_exceptions=True)


async def _show(process: AsyncProcess) -> int:
    async for event in process.stream():
        if isinstance(event, OutputEvent):
            await asyncio.to_thread(_write, event.data.encode())
        elif isinstance(event, GapEvent):
            lost = event.next_offset - event.offset
            await asyncio.to_thread(_write, f"\r\n[… {lost:,} bytes are lost …]\r\n".encode())
        elif isinstance(event, ExitEvent):
            return event.exit_code
    return 0


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


async def _type(process: AsyncProcess, keys: _Keys) -> None:
    while True:
        data = await keys.read()
        before, found, _ = data.partition(DETACH)
        if before:
            await process.send_stdin(before)
        if found or not data:
            return


async def _follow_size(process: AsyncProcess) -> None:
    changed = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    changed.set()  # It may be another than the one it was opened with.
    try:
        while True:
            await changed.wait()
            changed.clear()
            rows, cols = _size()
            with contextlib.suppress(SandboxError):  # It has ended.
                await process.resize(rows=rows, cols=cols)
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


class _Keys:
    """What is typed. Use as a context manager, inside of the loop."""

    def __enter__(self) -> None:
        self._typed: asyncio.Queue[bytes] = asyncio.Queue()
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._take)

    def __exit__(self, *exc_info: object) -> None:
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())

    def _take(self) -> None:
        try:
            data = os.read(sys.stdin.fileno(), _PIECE)
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        self._typed.put_nowait(data)

    async def read(self) -> bytes:
        """All that was typed since; empty at the end of the input."""
        data = await self._typed.get()
        while data and not self._typed.empty():
            data += self._typed.get_nowait()
        return data


@contextlib.contextmanager
def _raw(fd: int) -> Iterator[None]:
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd)
        yield
    finally:
        _write(_RESET)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def told_detached(thread: str, command_id: str) -> None:
    note(f"detached; come back with `sandbox shell --thread {thread} --attach {command_id}`")
