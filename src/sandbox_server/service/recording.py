"""The sandboxes of one tenant, with a line in the audit log for every call that changes something
or reads contents."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from types import TracebackType
from typing import Any

from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.protocol.events import AnyEvent, ExitEvent, OutputEvent, StartEvent
from sandbox_sdk.protocol.models import (
    ArtifactTarget,
    ConnectRequest,
    DownloadRequest,
    ExecuteRequest,
    Model,
    Request,
    RunCodeRequest,
    UploadRequest,
    UploadResult,
)
from sandbox_sdk.protocol.operations import Ans, Operation, Req
from sandbox_sdk.protocol.sandboxes import Download, EventsRequest, Sandboxes
from sandbox_server import log_fields
from sandbox_server.audit.log import AuditLog

NOT_RECORDED = frozenset(
    {op.HEALTH, op.REGISTRY, op.SESSION, op.SESSIONS, op.CONTEXTS, op.PREVIEWS, op.VOLUMES,
     op.CHECKPOINTS, op.GET_CHECKPOINT, op.ARTIFACTS, op.STORED_SESSIONS, op.WATCH_EVENTS}
)  # fmt: skip
"""Operations that tell what there is, but show nothing of its contents."""
_ASKED = (
    "thread_id", "session_id", "command_id", "context_id", "path", "to", "port", "public", "name",
    "checkpoint_id", "artifact_id", "signal", "background", "environment", "provider", "agent",
    "tool", "number", "lifetime_s",
)  # fmt: skip
"""Fields of requests that a line has."""
_ANSWERED = ("thread_id", "session_id", "command_id", "checkpoint_id", "exit_code")
"""Fields of answers that a line has."""
_PLAIN = (str, int, bool, float)
LEFT = "left"
"""The outcome of a call whose caller did not wait for its end."""


class Recorded(Sandboxes):
    def __init__(self, inner: Sandboxes, tenant: str, audit: AuditLog) -> None:
        self._inner = inner
        self._tenant = tenant
        self._audit = audit

    def __repr__(self) -> str:
        return f"<Recorded {self._inner!r}>"

    def _recording(self, operation: str, request: Request) -> _Recording:
        """Raises AuditUnavailable."""
        self._audit.require()
        return _Recording(self._audit, operation, self._tenant, request)

    async def call(self, operation: Operation[Req, Ans], request: Req) -> Ans:
        if operation in NOT_RECORDED:
            return await self._inner.call(operation, request)
        with self._recording(operation.name, request) as recording:
            answer = await self._inner.call(operation, request)
            recording.answered(answer)
            return answer

    async def events(self, request: EventsRequest) -> AsyncGenerator[AnyEvent]:
        name = "stream" if isinstance(request, ExecuteRequest | RunCodeRequest) else "follow"
        with self._recording(name, request) as recording:
            async with contextlib.aclosing(self._inner.events(request)) as events:
                async for event in events:
                    if isinstance(event, OutputEvent):
                        recording.bytes_out += event.next_offset - event.offset
                    elif isinstance(event, StartEvent | ExitEvent):
                        recording.answered(event)
                    yield event

    async def upload(self, request: UploadRequest, chunks: AsyncIterable[bytes]) -> UploadResult:
        with self._recording("upload", request) as recording:

            async def counted() -> AsyncIterator[bytes]:
                async for chunk in chunks:
                    recording.bytes_in += len(chunk)
                    yield chunk

            stored = await self._inner.upload(request, counted())
            recording.facts["sha256"] = stored.sha256
            return stored

    @contextlib.asynccontextmanager
    async def download(self, request: DownloadRequest | ArtifactTarget) -> AsyncIterator[Download]:
        with self._recording("download", request) as recording:
            async with self._inner.download(request) as download:

                async def counted() -> AsyncIterator[bytes]:
                    async for chunk in download.chunks:
                        recording.bytes_out += len(chunk)
                        yield chunk

                yield Download(download.info, counted())

    @contextlib.asynccontextmanager
    async def connect(self, request: ConnectRequest) -> AsyncIterator[ByteChannel]:
        with self._recording("connect", request) as recording:
            async with self._inner.connect(request) as channel:
                yield _Counted(channel, recording)


class _Counted(ByteChannel):
    """A channel whose bytes are counted."""

    def __init__(self, inner: ByteChannel, recording: _Recording) -> None:
        self._inner = inner
        self._recording = recording

    async def read(self) -> bytes:
        data = await self._inner.read()
        self._recording.bytes_out += len(data)
        return data

    async def write(self, data: bytes) -> None:
        self._recording.bytes_in += len(data)
        await self._inner.write(data)

    async def end(self) -> None:
        await self._inner.end()


class _Recording:
    """One call: writes its line when it ends, however it ends."""

    def __init__(self, audit: AuditLog, operation: str, tenant: str, request: Request) -> None:
        self._audit = audit
        self._began = time.monotonic()
        self.bytes_in = _size_of(request)
        self.bytes_out = 0
        bound = log_fields.bound()
        self.facts: dict[str, Any] = {
            "operation": operation,
            "tenant": tenant,
            "key": bound.get("key"),
            "request_id": bound.get("request_id"),
            **_picked(request, _ASKED),
        }
        if isinstance(request, ExecuteRequest | RunCodeRequest):
            text = request.command if isinstance(request, ExecuteRequest) else request.code
            of_command = audit.of_command(text)
            of_command.pop("command", None)  # The line of the verdict has it.
            self.facts |= of_command

    def answered(self, answer: Model) -> None:
        self.facts |= _picked(answer, _ANSWERED)
        self.bytes_out = max(self.bytes_out, vars(answer).get("output_bytes") or 0)

    def __enter__(self) -> _Recording:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        exc: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        outcome = "ok" if exc is None else LEFT
        if isinstance(exc, SandboxError):
            outcome = exc.code
        elif isinstance(exc, Exception):
            outcome = "internal"
        self._audit.record(
            "operation",
            **self.facts,
            outcome=outcome,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            duration_ms=round((time.monotonic() - self._began) * 1000, 1),
        )


def _picked(model: Model | Request, names: tuple[str, ...]) -> dict[str, Any]:
    values = vars(model)  # Not getattr: a model takes long to say that it has no such field.
    return {name: values[name] for name in names if isinstance(values.get(name), _PLAIN)}


def _size_of(request: Request) -> int:
    """The bytes that a request itself brings into a sandbox."""
    texts = map(vars(request).get, ("command", "code", "stdin", "data"))
    return sum(
        len(text.encode("utf-8", "surrogatepass")) for text in texts if isinstance(text, str)
    )
