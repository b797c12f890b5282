"""FakeBackend: sandboxes in memory, whose commands end as the test says."""

from __future__ import annotations

import contextlib
import hashlib
import posixpath
import re
import uuid
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
)
from typing import Any

import anyio

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import FileTooLarge
from sandbox_sdk.protocol.events import CommandEvent, ExitEvent, StartEvent
from sandbox_sdk.protocol.operations import Ans, Operation, Req
from sandbox_sdk.protocol.sandboxes import Download, Sandboxes
from sandbox_sdk.testing.answers import Answering, FakeAnswer, FakeCall, Script, answer_to
from sandbox_sdk.testing.commands import FakeCommand
from sandbox_sdk.testing.files import FakeFiles, resolve
from sandbox_sdk.testing.sessions import RUNTIME, WORKER, End, FakeSession, FakeSessions
from sandbox_sdk.transfer import ByteChunks

_LOOK_S = 0.005


class FakeBackend(Sandboxes):
    """A double for tests of programs that use sandboxes. Nothing is run, nothing leaves memory.

    Sessions, generations, files, idempotency keys, timeouts and errors are like those of a server;
    what commands do is up to the test:

        >>> fake = FakeBackend()
        >>> fake.on("pytest", output="3 passed", writes={"report.txt": "fine"})
        >>> with SandboxClient("conv-1", backend=fake) as sandbox:
        ...     sandbox.execute("pytest -q").output, sandbox.read_text("report.txt")
        ('3 passed', 'fine')
        >>> fake.ran
        ['pytest -q']

    A command without an answer ends with exit code 127, like one that bash does not find.
    """

    def __init__(
        self, *, capacity: int = 100, idle_timeout_s: float = 1800.0, upload_limit: int = 100 << 20
    ) -> None:
        self.ran: list[str] = []
        """Every command so far, oldest first."""
        self._capacity = capacity
        self._limits = models.Limits(
            memory_bytes=512 << 20, cpus=0.5, pids=256, disk_bytes=1 << 30, command_timeout_s=30,
            output_limit_bytes=1 << 20, upload_limit_bytes=upload_limit, network="none",
        )  # fmt: skip
        self._sessions = FakeSessions(capacity=capacity, idle_timeout_s=idle_timeout_s)
        self._script: Script = []
        self._handlers: Mapping[Operation[Any, Any], Callable[[Any], Awaitable[Any]]] = {
            op.CREATE_SESSION: self._create_session,
            op.SESSION: self._session,
            op.SESSIONS: self._list_sessions,
            op.CLEANUP: self._cleanup,
            op.HEALTH: self._health,
            op.EXECUTE: self._execute,
            op.CHECK: self._check,
            op.RESULT: self._result,
            op.COMMANDS: self._commands,
            op.SIGNAL: self._signal,
            op.STDIN: self._stdin,
            op.LIST_FILES: self._list_files,
            op.RENAME: self._rename,
        }

    async def call(self, operation: Operation[Req, Ans], request: Req) -> Ans:
        return await self._handlers[operation](request)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<FakeBackend {len(self._sessions.live())} live, {len(self.ran)} commands ran>"

    # For the test

    def on(
        self,
        command: str | re.Pattern[str],
        answering: Answering | None = None,
        *,
        output: str = "",
        stderr: str = "",
        exit_code: int = 0,
        hint: str | None = None,
        takes_s: float = 0.0,
        writes: Mapping[str, str | bytes] | None = None,
    ) -> None:
        """Set the answer to commands that begin with these words, or in which the pattern is found;
        the latest that fits counts. A function is called for every such command."""
        answer = FakeAnswer(
            output=output,
            stderr=stderr,
            exit_code=exit_code,
            hint=hint,
            takes_s=takes_s,
            writes=writes or {},
        )
        self._script.insert(0, (command, answering or (lambda _: answer)))

    def files(self, thread_id: str) -> FakeFiles:
        """The files of a thread, to look at and to change. Raises SessionNotFound."""
        return self._sessions.find(models.Target(thread_id=thread_id)).files

    def lose(self, thread_id: str) -> None:
        """Lose the box of a thread, as if its machine had died. Raises SessionNotFound."""
        self._sessions.find(models.Target(thread_id=thread_id)).ended = End.LOST

    # Sessions

    async def _create_session(self, request: models.CreateSessionRequest) -> models.Session:
        own_id = str(uuid.uuid4())
        session, state = self._sessions.open(
            models.Target(thread_id=request.thread_id or own_id),
            env=request.env,
            environment=request.environment,
            idle_timeout_s=request.idle_timeout_s,
        )
        if request.thread_id is None:
            session.session_id = own_id
        if state != "live":
            return self._told(session, "created")
        ignored = {"not_applied": session.not_applied(request)}
        return self._told(session, "existing").model_copy(update=ignored)

    async def _session(self, target: models.Target) -> models.SessionInfo:
        session = self._sessions.find(target)
        running = [
            models.RunningCommand(command_id=c.command_id, age_s=c.info().age_s, output_bytes=0)
            for c in session.running
        ]
        summary = session.summary(self._limits)
        more = {
            "state": summary.state,
            "idle_s": 0 if running else summary.idle_s,
            "last_used_at": session.created_at,
            "commands": len(session.commands),
            "running": running,
            "usage": models.SessionUsage(cpu_s=0.0, memory_bytes=None, disk_bytes=None, pids=1),
        }
        return models.SessionInfo.model_validate({**dict(self._told(session, "existing")), **more})

    async def _list_sessions(self, _request: models.EmptyRequest) -> models.SessionList:
        live = self._sessions.live()
        return models.SessionList(sessions=[session.summary(self._limits) for session in live])

    async def _cleanup(self, target: models.Target) -> models.CleanupResult:
        session = self._sessions.find(target)
        session.ended = End.CLEANED
        return models.CleanupResult(
            environment=session.environment, idle_timeout_s=session.idle_timeout_s
        )

    async def _health(self, _request: models.EmptyRequest) -> models.Health:
        return models.Health(
            status="healthy", role="fake", worker_id=WORKER, runtime=RUNTIME, pool_size=0,
            active_sessions=len(self._sessions.live()), capacity=self._capacity, version="0",
            uptime_s=0.0, checks={"runtime": "ok"},
        )  # fmt: skip

    def _told(self, session: FakeSession, status: str) -> models.Session:
        return models.Session.model_validate({**session.fields(self._limits), "status": status})

    # Commands

    async def _execute(self, request: models.ExecuteRequest) -> models.ExecuteResult:
        session, state = self._sessions.open(request)
        command, replayed = self._started(session, request)
        if not request.background:
            await _ended(session, command)
        return _result(session, state, command, replayed=replayed)

    async def _check(self, _request: models.CheckRequest) -> models.Verdict:
        """Everything is allowed here."""
        return models.Verdict(allowed=True, policy="fake", mode="allow-all", doubts=[], commands=[])

    async def events(
        self, request: models.ExecuteRequest | models.FollowRequest
    ) -> AsyncGenerator[CommandEvent]:
        state: models.SessionState = "live"
        offset, replayed = 0, False
        if isinstance(request, models.ExecuteRequest):
            session, state = self._sessions.open(request)
            command, replayed = self._started(session, request)
        else:
            session = self._sessions.find(request)
            command, offset = session.find(request.command_id), request.offset
        about = {"replayed": replayed, **_life(session, state)}
        yield StartEvent(command_id=command.command_id, **about)
        for event in command.events(offset):
            yield event
        await _ended(session, command)
        yield ExitEvent(**command.facts(), **about)

    async def _result(self, request: models.CommandTarget) -> models.ExecuteResult:
        session = self._sessions.find(request)
        return _result(session, "live", session.find(request.command_id))

    async def _commands(self, target: models.Target) -> models.CommandList:
        session = self._sessions.find(target)
        return models.CommandList(commands=[command.info() for command in session.commands])

    async def _signal(self, request: models.SignalRequest) -> models.CommandInfo:
        command = self._sessions.find(request).find(request.command_id)
        command.end(request.signal)
        return command.info()

    async def _stdin(self, request: models.StdinRequest) -> models.StdinReceipt:
        command = self._sessions.find(request).find(request.command_id)
        return command.take(request.data_bytes(), eof=request.eof, offset=request.offset)

    def _started(
        self, session: FakeSession, request: models.ExecuteRequest
    ) -> tuple[FakeCommand, bool]:
        """The command, and whether an earlier call started it."""
        session.use()
        if (before := session.joined(request)) is not None:
            return before, True
        self.ran.append(request.command)
        call = FakeCall(
            command=request.command,
            thread_id=session.thread_id,
            cwd=request.cwd or session.cwd,
            env={**session.env, **request.env},
            stdin=request.stdin or "",
            files=session.files,
        )
        answer = answer_to(call, self._script)
        for path, content in answer.writes.items():
            session.files[path] = content
        command = FakeCommand(
            request, answer, call.cwd, stdin=call.stdin.encode(), stdin_open=request.stdin_open
        )
        session.commands.append(command)
        return command, False

    # Files

    async def upload(
        self, request: models.UploadRequest, chunks: AsyncIterable[bytes]
    ) -> models.UploadResult:
        session, _ = self._sessions.open(request)
        session.use()
        data = bytearray()
        async for chunk in chunks:
            data += chunk
            if len(data) > self._limits.upload_limit_bytes:
                limit = self._limits.upload_limit_bytes
                raise FileTooLarge.upload(request.path, limit_bytes=limit)
        session.files[request.path] = bytes(data)
        real = resolve(request.path)
        return models.UploadResult(
            filename=posixpath.basename(real),
            path=real,
            size=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
        )

    @contextlib.asynccontextmanager
    async def download(self, request: models.DownloadRequest) -> AsyncIterator[Download]:
        session = self._sessions.find(request)
        session.use()
        entry, data = session.files.entry(request.path), session.files.read(request.path)
        folder = entry.type == "directory"
        info = models.DownloadInfo(
            filename=entry.name,
            path=entry.path,
            type="directory" if folder else "file",
            size=None if folder else len(data),
            sha256=None if folder else hashlib.sha256(data).hexdigest(),
            modified_at=entry.modified_at,
        )
        yield Download(info, aiter(ByteChunks(data)))

    async def _rename(self, request: models.RenameRequest) -> models.FileEntry:
        session = self._sessions.find(request)
        session.use()
        return session.files.rename(request.path, request.to, replace=request.replace)

    async def _list_files(self, request: models.ListRequest) -> models.ListResult:
        session, _ = self._sessions.open(request)
        session.use()
        found = session.files.list(request.path, recursive=request.recursive)
        truncated = len(found) > request.limit
        return models.ListResult(
            path=request.path, entries=found[: request.limit], truncated=truncated
        )


async def _ended(session: FakeSession, command: FakeCommand) -> None:
    """Wait for the end. Raises SessionNotFound or SessionLost if the session ends first."""
    while command.running:
        session.check()
        await anyio.sleep(_LOOK_S)
    session.check()
    session.use()


def _life(session: FakeSession, state: models.SessionState) -> dict[str, Any]:
    return {
        "session_id": session.session_id,
        "generation": session.generation,
        "session_state": state,
    }


def _result(
    session: FakeSession,
    state: models.SessionState,
    command: FakeCommand,
    *,
    replayed: bool = False,
) -> models.ExecuteResult:
    return models.ExecuteResult(
        output=command.answer.output + command.answer.stderr,
        stdout=command.answer.output,
        stderr=command.answer.stderr,
        replayed=replayed,
        **command.facts(),
        **_life(session, state),
    )
