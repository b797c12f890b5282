"""Running commands: shows their output, passes stdin on, and kills them on Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Unpack

from sandbox_sdk.cli.escape import escaped, escaped_json
from sandbox_sdk.cli.terminal import refuse_waiting
from sandbox_sdk.client import AsyncSandboxClient
from sandbox_sdk.options import CommandOptions
from sandbox_sdk.process import AsyncProcess
from sandbox_sdk.protocol.errors import Capacity, Internal, SandboxError
from sandbox_sdk.protocol.events import CommandEvent, ExitEvent, GapEvent, OutputEvent, StartEvent
from sandbox_sdk.protocol.models import Resumed
from sandbox_sdk.units import duration_text

Show = Callable[[CommandEvent], None]

_PIECE = 64 * 1024
_READ_AHEAD = 4
_SEND_AGAIN_S = 0.2


def shown_as(*, json: bool) -> Show:
    """How events are shown: as a line of JSON each, or as text for a person."""
    return _show_json if json else _show_text


def _show_text(event: CommandEvent) -> None:
    """Output goes to our stdout and stderr, notes for the person to stderr."""
    if isinstance(event, OutputEvent):
        write(event.data, to=event.event)
    elif isinstance(event, GapEvent):
        note(f"{event.next_offset - event.offset} bytes of output are no longer kept")
    elif isinstance(event, StartEvent) and event.session_state == "recreated":
        note("the box of this thread was lost with its files; this is a new one")
    elif isinstance(event, StartEvent) and event.resumed is not None:
        note(resumed_text(event.resumed))
    elif isinstance(event, ExitEvent):
        if event.timed_out:
            note("the command ran into its --timeout and was ended")
        elif event.reason == "oom":
            note("the command ran out of memory and was ended")
        show_hint(event.hint)


def resumed_text(resumed: Resumed) -> str:
    if resumed.complete:
        return "this thread was kept as a checkpoint and goes on; processes are not in one"
    return (
        "the box of this thread was lost; it goes on from a checkpoint of"
        f" {duration_text(round(resumed.age_s))} ago, and what happened since is gone"
    )


def show_hint(hint: str | None) -> None:
    if hint:
        write(f"hint: {escaped(hint)}\n", to="stderr")


def _show_json(event: CommandEvent) -> None:
    write(escaped_json(event.model_dump_json()) + "\n", to="stdout")


def write(text: str, *, to: str) -> None:
    """As UTF-8, whatever the locale says: boxes use UTF-8."""
    stream = sys.stdout if to == "stdout" else sys.stderr
    stream.buffer.write(text.encode())
    stream.buffer.flush()


def note(text: str) -> None:
    write(f"sandbox: {escaped(text)}\n", to="stderr")


async def run_command(
    sandbox: AsyncSandboxClient,
    command: str,
    *,
    show: Show,
    interrupted: asyncio.Event,
    input_fd: int | None = None,
    **options: Unpack[CommandOptions],
) -> ExitEvent:
    """Run a command to its end and show what happens.

    Once `interrupted` is set, the command and everything it has started is killed, and its end is
    returned as usual. What can be read from input_fd is passed on to it. Raises InvalidRequest for
    a command that needs a terminal.
    """
    refuse_waiting(command)
    beside: list[asyncio.Task[None]] = []
    events = sandbox.stream(command, stdin_open=input_fd is not None, **options)
    try:
        async with contextlib.aclosing(events):
            async for event in events:
                show(event)
                if isinstance(event, StartEvent):
                    killing = _kill(sandbox, event.command_id, interrupted)
                    beside.append(asyncio.create_task(killing))
                    if input_fd is not None:
                        feeding = _pass_on(input_fd, sandbox, event.command_id)
                        beside.append(asyncio.create_task(feeding))
                if isinstance(event, ExitEvent):
                    return event
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
    raise Internal(
        "the events of the command ended without its exit; see `sandbox ps --thread T` for it"
    )


async def _kill(sandbox: AsyncSandboxClient, command_id: str, when: asyncio.Event) -> None:
    await when.wait()
    try:
        await (await sandbox.process(command_id)).kill()
    except SandboxError as exc:
        note(f"the command could not be killed: {exc.message}")


async def _pass_on(input_fd: int, sandbox: AsyncSandboxClient, command_id: str) -> None:
    """Send what is read, as it is read, until the input or the command ends.

    A daemon thread reads: a pipe may stay silent for ever after the command has ended.
    """
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(_READ_AHEAD)

    def read() -> None:
        with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: the loop has ended.
            data = b"-"
            while data:
                room.acquire()
                data = os.read(input_fd, _PIECE)
                loop.call_soon_threadsafe(pieces.put_nowait, data)

    threading.Thread(target=read, name="stdin", daemon=True).start()
    with contextlib.suppress(SandboxError):  # It has ended, or takes no more.
        process = await sandbox.process(command_id)
        while data := await pieces.get():
            await _send(process, data)
            room.release()
        await process.close_stdin()


async def _send(process: AsyncProcess, data: bytes) -> None:
    while True:
        try:
            await process.send_stdin(data)
            return
        except Capacity:
            # It has not read yet what it was sent before.
            await asyncio.sleep(_SEND_AGAIN_S)
