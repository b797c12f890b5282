"""Processes in an E2B sandbox, as its SDK starts them, with the bytes of their output.

The SDK's `commands.run` decodes output as text, so the client below it is used, which has bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

from e2b import AsyncSandbox
from e2b.connection_config import KEEPALIVE_PING_HEADER, KEEPALIVE_PING_INTERVAL_SEC
from e2b.envd.client_async import create_rpc_client
from e2b.envd.process import process_connect, process_pb
from e2b.envd.utils import timeout_to_ms
from protobuf import Oneof

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.runtime.e2b.account import Failures

HELPER_S = 60.0
_ANSWER_S = 30.0
_PING = {KEEPALIVE_PING_HEADER: str(KEEPALIVE_PING_INTERVAL_SEC)}
_MOST = 8 << 20
"""Bytes of a helper's output: a box is hostile."""


@dataclass(frozen=True, slots=True)
class Begun:
    pid: int


@dataclass(frozen=True, slots=True)
class Piece:
    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    exit_code: int
    """-1 if it was killed."""


ProcessEvent = Begun | Piece | Ended


class Processes:
    """Of one sandbox. Every method raises SessionLost and RuntimeUnavailable."""

    def __init__(self, sandbox: AsyncSandbox, failures: Failures) -> None:
        self._sandbox = sandbox
        self._failures = failures
        self._rpc = create_rpc_client(
            process_connect.ProcessClient, sandbox.envd_api_url, sandbox.connection_config
        )

    @property
    def _what(self) -> str:
        return f"box {self._sandbox.sandbox_id}"

    def start(
        self, args: list[str], *, stdin: bool = False, within_s: float | None = None
    ) -> AsyncGenerator[ProcessEvent]:
        """Run bash with these arguments. within_s: it is killed then, even without us."""
        request = process_pb.StartRequest(
            process=process_pb.ProcessConfig(cmd="/bin/bash", args=args), stdin=stdin
        )
        timeout_ms = timeout_to_ms(within_s)
        return self._events(self._rpc.start(request, headers=_PING, timeout_ms=timeout_ms))

    def follow(self, pid: int) -> AsyncGenerator[ProcessEvent]:
        """What a process writes from now on. Raises NotFound if it has ended."""
        request = process_pb.ConnectRequest(process=_selector(pid))
        return self._events(self._rpc.connect(request, headers=_PING))

    async def _events(self, stream: AsyncIterator[Any]) -> AsyncGenerator[ProcessEvent]:
        async with self._translated(), contextlib.aclosing(stream):  # type: ignore[type-var]
            async for message in stream:
                event = _event(message)
                if event is not None:
                    yield event

    async def output(
        self, script: str, *args: str, within_s: float = HELPER_S
    ) -> tuple[int, bytes, bytes]:
        """Run a script of ours to its end: exit code, stdout, stderr."""
        streams = {"stdout": bytearray(), "stderr": bytearray()}
        code = -1
        async with contextlib.aclosing(
            self.start(["-c", script, "sandbox", *args], within_s=within_s)
        ) as events:
            async for event in events:
                if isinstance(event, Piece):
                    streams[event.stream] += event.data
                    if len(streams[event.stream]) > _MOST:
                        what = f"{self._what} answers with more than {_MOST} bytes"
                        raise RuntimeUnavailable(what)
                elif isinstance(event, Ended):
                    code = event.exit_code
        return code, bytes(streams["stdout"]), bytes(streams["stderr"])

    async def send(self, pid: int, data: bytes, *, within_s: float) -> None:
        piped: Oneof[Literal["stdin"], bytes] = Oneof("stdin", data)
        entered = process_pb.ProcessInput(input=piped)
        request = process_pb.SendInputRequest(process=_selector(pid), input=entered)
        async with self._translated():
            await self._rpc.send_input(request, timeout_ms=timeout_to_ms(within_s))

    async def close_stdin(self, pid: int) -> None:
        request = process_pb.CloseStdinRequest(process=_selector(pid))
        async with self._translated():
            await self._rpc.close_stdin(request, timeout_ms=timeout_to_ms(_ANSWER_S))

    async def kill(self, pid: int) -> None:
        request = process_pb.SendSignalRequest(
            process=_selector(pid), signal=process_pb.Signal.SIGKILL
        )
        async with self._translated():
            await self._rpc.send_signal(request, timeout_ms=timeout_to_ms(_ANSWER_S))

    def _translated(self) -> contextlib.AbstractAsyncContextManager[None]:
        return self._failures.translated(self._what, health=self._sandbox.is_running)


def _selector(pid: int) -> process_pb.ProcessSelector:
    selector: Oneof[Literal["pid"], int] = Oneof("pid", pid)
    return process_pb.ProcessSelector(selector=selector)


def _event(message: Any) -> ProcessEvent | None:
    match message.event.event if message.event is not None else None:
        case Oneof(field="start", value=start):
            return Begun(start.pid)
        case Oneof(field="data", value=data):
            match data.output:
                case Oneof(field="stdout" | "stderr" as stream, value=written):
                    return Piece(stream, written)
        case Oneof(field="end", value=end):
            return Ended(end.exit_code if end.exited else -1)
    return None
