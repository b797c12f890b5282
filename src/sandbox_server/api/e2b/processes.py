"""process.Process: commands and terminals, each a process of its own with a pid."""

from __future__ import annotations

import asyncio
import shlex
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

from pydantic import Field
from starlette.responses import Response

from sandbox_sdk.protocol import errors, models
from sandbox_sdk.protocol.events import AnyEvent
from sandbox_sdk.protocol.models import CommandInfo, SignalName, Target
from sandbox_sdk.protocol.sandboxes import STDIN_PIECE
from sandbox_server.api.e2b.messages import (
    Message,
    json_answer,
    message_stream,
    messages,
    one_message,
    parsed,
    timeout_s,
)
from sandbox_server.api.e2b.process_events import EventFrames, pid_of
from sandbox_server.api.e2b.routes import BoxRoute, Door, InBox, check_user, full_path

SERVICE = "/process.Process"
STREAM_INPUT = f"/e2b{SERVICE}/StreamInput"
_SIGNALS: dict[str | int, SignalName] = {
    "SIGNAL_SIGTERM": "TERM", 15: "TERM", "SIGNAL_SIGKILL": "KILL", 9: "KILL",
}  # fmt: skip
_FULL_S = 0.05
"""How long input waits for a command that does not read what it has been sent."""
_INPUT_S = 60.0
_STREAMED = 16 << 20
"""The largest message of a stream of input."""
_RUN = "exec "
_RUN_AT_HOME = f"cd; {_RUN}"


class Size(Message):
    rows: models.Cells = 24
    cols: models.Cells = 80


class Pty(Message):
    size: Size = Size()


class ProcessConfig(Message):
    cmd: str = Field(min_length=1)
    args: list[str] = Field(default_factory=list)
    envs: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None


class StartRequest(Message):
    process: ProcessConfig
    pty: Pty | None = None
    stdin: bool = False


class Selector(Message):
    pid: int | None = None
    tag: str | None = None


class OfProcess(Message):
    process: Selector


class UpdateRequest(OfProcess):
    pty: Pty | None = None


class SignalRequest(OfProcess):
    signal: str | int


class Input(Message):
    stdin: str | None = None
    pty: str | None = None

    def raw(self) -> bytes:
        """Raises InvalidRequest."""
        text = self.stdin if self.pty is None else self.pty
        try:
            return b64decode(text or "", validate=True)
        except ValueError:
            raise errors.InvalidRequest("the input is not valid base64") from None


class InputRequest(OfProcess):
    input: Input


class InputData(Message):
    input: Input


class StreamInputMessage(Message):
    start: OfProcess | None = None
    data: InputData | None = None


def process_routes(door: Door) -> list[BoxRoute]:
    handlers = {
        "Start": start, "Connect": connect, "List": list_processes, "SendInput": send_input,
        "CloseStdin": close_stdin, "StreamInput": stream_input, "SendSignal": send_signal,
        "Update": update,
    }  # fmt: skip
    return [
        BoxRoute(door, "POST", f"{SERVICE}/{name}", handler) for name, handler in handlers.items()
    ]


# Streams


async def start(box: InBox) -> Response:
    check_user(box.http)
    request = parsed(StartRequest, one_message(await box.asked.body()))
    events = _started(box, request)
    frames = EventFrames(pty=request.pty is not None)
    return await message_stream(box, events, frames.of, keep_alive=frames.KEEP_ALIVE)


async def _started(box: InBox, request: StartRequest) -> AsyncIterator[AnyEvent]:
    """Raises InvalidPath for a folder that is not there: to the SDK a missing process is one that
    it names by its pid."""
    try:
        async with aclosing(box.sandboxes.events(to_execute(box, request))) as events:
            async for event in events:
                yield event
    except errors.FileMissing as error:
        raise errors.InvalidPath(error.message) from None


async def connect(box: InBox) -> Response:
    """What the process writes from now on."""
    request = parsed(OfProcess, one_message(await box.asked.body()))

    async def followed() -> AsyncIterator[AnyEvent]:
        found = await _find(box, request.process)
        frames.begin(found)
        request_ = models.FollowRequest(
            session_id=box.session_id,
            command_id=found.command_id,
            offset=found.output_bytes,
            encoding="bytes",
        )
        async with aclosing(box.sandboxes.events(request_)) as events:
            async for event in events:
                yield event

    frames = EventFrames(pty=False)
    within_s = timeout_s(box)
    return await message_stream(
        box, followed(), frames.of, keep_alive=frames.KEEP_ALIVE, within_s=within_s
    )


def to_execute(box: InBox, request: StartRequest) -> models.ExecuteRequest:
    """Raises InvalidRequest. With `exec` the process is the one that was asked for, with a pid of
    its own, and the next command finds nothing of its shell."""
    process, pty = request.process, request.pty
    env = {name: value for name, value in process.envs.items() if pty is None or name != "TERM"}
    return models.checked(
        models.ExecuteRequest,
        session_id=box.session_id,
        command=(_RUN if process.cwd else _RUN_AT_HOME) + shlex.join([process.cmd, *process.args]),
        cwd=full_path(process.cwd) if process.cwd else None,
        env=env,
        stdin_open=request.stdin and pty is None,
        pty=pty and _pty(pty, process.envs.get("TERM")),
        timeout=_bounded(timeout_s(box)),
        encoding="bytes",
    )


def _bounded(timeout_s: float | None) -> float:
    """A command's time limit; 0 for none, and for a longer one than there is."""
    return 0.0 if timeout_s is None or timeout_s > models.MAX_TIMEOUT_S else timeout_s


def _pty(pty: Pty, term: str | None) -> models.Pty:
    size = {"rows": pty.size.rows, "cols": pty.size.cols}
    return models.checked(models.Pty, **size, term=term or models.TERM)


# One request, one answer


async def list_processes(box: InBox) -> Response:
    found = await box.sandboxes.commands(box.target)
    running = [info for info in found.commands if info.running and not info.is_code]
    return json_answer({"processes": [_process(info) for info in running]})


def _process(info: CommandInfo) -> dict[str, object]:
    cmd, *args = _argv(info.command or "")
    config: dict[str, object] = {"cmd": cmd, "args": args, "envs": dict(info.env or {})}
    if info.cwd is not None:
        config["cwd"] = info.cwd
    return {"config": config, "pid": pid_of(info.pid, info.command_id)}


def _argv(command: str) -> list[str]:
    """What was started; the source of a command that was begun some other way."""
    try:
        start = _RUN_AT_HOME if command.startswith(_RUN_AT_HOME) else _RUN
        argv = shlex.split(command.removeprefix(start)) if command.startswith(start) else []
    except ValueError:  # It was cut, as long ones are.
        argv = []
    return argv or ["/bin/bash", "-l", "-c", command]


async def send_input(box: InBox) -> Response:
    request = parsed(InputRequest, await box.asked.body())
    found = await _find(box, request.process)
    await _send(box, found.command_id, request.input.raw())
    return json_answer({})


async def close_stdin(box: InBox) -> Response:
    request = parsed(OfProcess, await box.asked.body())
    found = await _find(box, request.process)
    await box.sandboxes.send_stdin(box.target, found.command_id, b"", eof=True)
    return json_answer({})


async def stream_input(box: InBox) -> Response:
    body = box.http.stream()

    async def taken() -> AsyncIterator[dict[str, object]]:
        command_id = None
        async for data in messages(body, most_bytes=_STREAMED):
            message = parsed(StreamInputMessage, data)
            if message.start is not None:
                command_id = (await _find(box, message.start.process)).command_id
            elif message.data is not None:
                if command_id is None:
                    raise errors.InvalidRequest("the stream must begin with the process it is for")
                await _send(box, command_id, message.data.input.raw())
        yield {}

    return await message_stream(box, taken(), lambda message: [message])


async def send_signal(box: InBox) -> Response:
    request = parsed(SignalRequest, await box.asked.body())
    signal = _SIGNALS.get(request.signal)
    if signal is None:
        raise errors.InvalidRequest(
            f"signal {str(request.signal)[:40]!r} is neither SIGTERM nor SIGKILL"
        )
    found = await _find(box, request.process)
    await box.sandboxes.signal(box.target, found.command_id, signal=signal)
    return json_answer({})


async def update(box: InBox) -> Response:
    request = parsed(UpdateRequest, await box.asked.body())
    found = await _find(box, request.process)
    if request.pty is not None:
        size = request.pty.size
        await box.sandboxes.resize(box.target, found.command_id, rows=size.rows, cols=size.cols)
    return json_answer({})


async def _find(box: InBox, selector: Selector) -> CommandInfo:
    """The running process. Raises NotFound, InvalidRequest."""
    if selector.pid is None:
        raise errors.InvalidRequest("name the process by its pid; tags are not known here")
    listed = await box.sandboxes.commands(box.target)
    for info in _newest_first(listed.commands):
        if info.running and pid_of(info.pid, info.command_id) == selector.pid:
            return info
    raise errors.NotFound(f"no process with pid {selector.pid} runs in this sandbox")


def _newest_first(commands: list[CommandInfo]) -> Iterator[CommandInfo]:
    return reversed(commands)


async def _send(box: InBox, command_id: str, data: bytes) -> None:
    """Waits for a command that is slow to read, as a pipe would."""
    deadline = time.monotonic() + (timeout_s(box) or _INPUT_S)
    target: Target = box.target
    for at in range(0, len(data) or 1, STDIN_PIECE):
        piece = data[at : at + STDIN_PIECE]
        while True:
            try:
                await box.sandboxes.send_stdin(target, command_id, piece)
                break
            except errors.Capacity:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_FULL_S)
