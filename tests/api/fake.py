"""Sandboxes in memory, whose commands do what a test has written down for them."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sandbox_sdk.protocol.errors import (
    FileMissing,
    NotFound,
    SandboxError,
    SessionNotFound,
    StdinClosed,
)
from sandbox_sdk.protocol.events import CommandEvent, ExitEvent, GapEvent, OutputEvent, StartEvent
from sandbox_sdk.protocol.models import (
    WORKSPACE,
    CheckRequest,
    CleanupResult,
    CommandInfo,
    CommandList,
    CommandTarget,
    CreateSessionRequest,
    DownloadInfo,
    DownloadRequest,
    EmptyRequest,
    ExecuteRequest,
    ExecuteResult,
    FileEntry,
    FollowRequest,
    Health,
    Limits,
    ListRequest,
    ListResult,
    RenameRequest,
    Session,
    SessionInfo,
    SessionList,
    SessionSummary,
    SessionUsage,
    SignalName,
    SignalRequest,
    StdinReceipt,
    StdinRequest,
    Target,
    UploadRequest,
    UploadResult,
    Verdict,
)
from sandbox_sdk.protocol.operations import Ans, Operation, Req
from sandbox_sdk.protocol.sandboxes import Download, Sandboxes, Tenants

NOW = datetime(2025, 1, 1, 12, tzinfo=UTC)
LIMITS = Limits(
    memory_bytes=1 << 29,
    cpus=0.5,
    pids=256,
    disk_bytes=1 << 30,
    command_timeout_s=3600,
    output_limit_bytes=1 << 20,
    upload_limit_bytes=100 << 20,
    network="none",
)

Step = CommandEvent | Exception | float
"""An event, something to raise, or a time to be silent."""


@dataclass
class FakeSession:
    session_id: str
    thread_id: str
    files: dict[str, bytes] = field(default_factory=dict)


def start(command_id: str = "c-1") -> StartEvent:
    return StartEvent(command_id=command_id, session_id="s-1", generation=1, session_state="live")


def out(data: str, offset: int) -> OutputEvent:
    end = offset + len(data.encode())
    return OutputEvent(event="stdout", data=data, offset=offset, next_offset=end)


def exited(command_id: str = "c-1", output_bytes: int = 0) -> ExitEvent:
    return ExitEvent(
        exit_code=0,
        command_id=command_id,
        duration_ms=1.0,
        timed_out=False,
        truncated=False,
        output_bytes=output_bytes,
        cwd=WORKSPACE,
        session_id="s-1",
        generation=1,
        session_state="live",
    )


class FakeTenants(Tenants):
    """Sandboxes of all tenants, in one place."""

    def __init__(self) -> None:
        self.live: dict[tuple[str, str], FakeSession] = {}
        self.script: list[Step] = [start(), out("4\n", 0), exited(output_bytes=2)]
        self.fails: Exception | None = None
        self.status = "healthy"
        self.ran: list[ExecuteRequest] = []
        self.signalled: list[SignalName] = []
        self.stdin = b""
        self.stdin_ended = False
        self.followed: list[tuple[Target, str, int]] = []
        self.closed: list[str] = []
        self.on_chunk: Callable[[bytes], None] | None = None
        self.keep_uploads = True
        self.download_fails_at: int | None = None

    def of(self, tenant: str) -> Sandboxes:
        return _Of(self, tenant)

    def find(self, target: Target, tenant: str, *, make: bool = False) -> FakeSession:
        if self.fails is not None:
            raise self.fails
        if target.thread_id is not None:
            key = (tenant, target.thread_id)
            if make and key not in self.live:
                self.live[key] = FakeSession(f"s-{len(self.live) + 1}", target.thread_id)
            found = self.live.get(key)
        else:
            mine = [s for (owner, _), s in self.live.items() if owner == tenant]
            found = next((s for s in mine if s.session_id == target.session_id), None)
        if found is None:
            raise SessionNotFound("there is no such session; make one with create_session")
        return found

    async def create_session(self, tenant: str, request: CreateSessionRequest) -> Session:
        thread_id = request.thread_id or f"s-{len(self.live) + 1}"
        status = "existing" if (tenant, thread_id) in self.live else "created"
        made = self.find(Target(thread_id=thread_id), tenant, make=True)
        return Session.model_validate({**self.described(made), "status": status})

    def described(self, session: FakeSession) -> dict[str, object]:
        return {
            "session_id": session.session_id,
            "thread_id": session.thread_id,
            "status": "existing",
            "generation": 1,
            "worker": "w-1",
            "runtime": "fake",
            "created_at": NOW,
            "expires_at": NOW,
            "limits": LIMITS,
        }

    async def execute(self, tenant: str, request: ExecuteRequest) -> ExecuteResult:
        session = self.find(request, tenant, make=request.thread_id is not None)
        self.ran.append(request)
        return self.told(session, request)

    def told(self, session: FakeSession, request: ExecuteRequest) -> ExecuteResult:
        return ExecuteResult(
            exit_code=None if request.background else 0,
            output=request.command,
            stdout=request.command,
            stderr="",
            command_id="c-1",
            duration_ms=1.5,
            timed_out=False,
            truncated=False,
            output_bytes=len(request.command.encode()),
            cwd=WORKSPACE,
            session_id=session.session_id,
            generation=1,
            session_state="live",
        )

    async def stream(self, tenant: str, request: ExecuteRequest) -> AsyncGenerator[CommandEvent]:
        self.find(request, tenant, make=request.thread_id is not None)
        self.ran.append(request)
        async for event in self.played(0, "stream"):
            yield event

    async def follow(self, tenant: str, request: FollowRequest) -> AsyncGenerator[CommandEvent]:
        self.find(request, tenant)
        target = Target(thread_id=request.thread_id, session_id=request.session_id)
        self.followed.append((target, request.command_id, request.offset))
        async for event in self.played(request.offset, "follow"):
            yield event

    async def played(self, offset: int, name: str) -> AsyncIterator[CommandEvent]:
        closed = self.closed  # That of its own test, also where it ends in the middle of the next.
        try:
            for step in self.script:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, float):
                    await asyncio.sleep(step)
                elif not isinstance(step, (OutputEvent, GapEvent)) or step.offset >= offset:
                    yield step
        finally:
            closed.append(name)

    def known(self, command_id: str) -> ExecuteRequest:
        if command_id != "c-1" or not self.ran:
            raise NotFound(f"no command {command_id} in this box")
        return self.ran[-1]

    async def command(self, tenant: str, request: CommandTarget) -> ExecuteResult:
        session = self.find(request, tenant)
        return self.told(session, self.known(request.command_id))

    def info(self) -> CommandInfo:
        return CommandInfo(
            command_id="c-1",
            idempotency_key=self.ran[-1].idempotency_key,
            running=self.ran[-1].background,
            exit_code=None if self.ran[-1].background else 0,
            age_s=1.5,
            output_bytes=2,
        )

    async def commands(self, tenant: str, target: Target) -> CommandList:
        self.find(target, tenant)
        return CommandList(commands=[self.info()] if self.ran else [])

    async def signal(self, tenant: str, request: SignalRequest) -> CommandInfo:
        self.find(request, tenant)
        self.known(request.command_id)
        self.signalled.append(request.signal)
        return self.info()

    async def stdin_(self, tenant: str, request: StdinRequest) -> StdinReceipt:
        self.find(request, tenant)
        data, offset = request.data_bytes(), request.offset
        data = data if offset is None else data[len(self.stdin) - offset :]
        if not self.known(request.command_id).stdin_open or (data and self.stdin_ended):
            raise StdinClosed("the command takes no input")
        self.stdin += data
        self.stdin_ended |= request.eof
        return StdinReceipt(received=len(self.stdin))

    async def check(self, _tenant: str, request: CheckRequest) -> Verdict:
        allowed = "rm -rf /" not in request.command
        return Verdict(allowed=allowed, policy="fake", mode="blacklist", doubts=[], commands=[])

    async def upload(
        self, tenant: str, request: UploadRequest, chunks: AsyncIterable[bytes]
    ) -> UploadResult:
        session = self.find(request, tenant, make=request.thread_id is not None)
        path = request.path
        kept, size, digest = bytearray(), 0, hashlib.sha256()
        async for chunk in chunks:
            size += len(chunk)
            digest.update(chunk)
            if self.on_chunk:
                self.on_chunk(chunk)
            if self.keep_uploads:
                kept += chunk
        session.files[path] = bytes(kept)
        return UploadResult(
            filename=path.rpartition("/")[2],
            path=f"{WORKSPACE}/{path}",
            size=size,
            sha256=digest.hexdigest(),
        )

    @asynccontextmanager
    async def download(self, tenant: str, request: DownloadRequest) -> AsyncIterator[Download]:
        session, path = self.find(request, tenant), request.path
        folder = path.endswith("/")
        if not folder and path not in session.files:
            raise FileMissing(f"there is no file {path}; list_files shows those there are")
        content = b"" if folder else session.files[path]
        info = DownloadInfo(
            filename=path.rstrip("/").rpartition("/")[2],
            path=path,
            type="directory" if folder else "file",
            size=None if folder else len(content),
            sha256=None if folder else hashlib.sha256(content).hexdigest(),
            modified_at=NOW,
        )
        closed = self.closed
        try:
            yield Download(info, self.pieces(b"tar" if folder else content))
        finally:
            closed.append("download")

    async def pieces(self, content: bytes) -> AsyncIterator[bytes]:
        for at in range(0, len(content), 4):
            if self.download_fails_at is not None and at >= self.download_fails_at:
                raise SandboxError("the box broke off")
            yield content[at : at + 4]

    async def list_files(self, tenant: str, request: ListRequest) -> ListResult:
        session = self.find(request, tenant, make=request.thread_id is not None)
        path, limit = request.path, request.limit
        entries = [
            FileEntry(
                name=name,
                path=f"{path}/{name}",
                type="file",
                size=len(content),
                mode="0644",
                modified_at=NOW,
            )
            for name, content in sorted(session.files.items())
            if request.recursive or "/" not in name
        ]
        return ListResult(path=path, entries=entries[:limit], truncated=len(entries) > limit)

    async def rename(self, tenant: str, request: RenameRequest) -> FileEntry:
        session = self.find(request, tenant)
        if request.path not in session.files:
            raise FileMissing(f"there is no file {request.path}")
        session.files[request.to] = content = session.files.pop(request.path)
        return FileEntry(
            name=request.to.rpartition("/")[2],
            path=f"{WORKSPACE}/{request.to}",
            type="file",
            size=len(content),
            mode="0644",
            modified_at=NOW,
        )

    async def session(self, tenant: str, target: Target) -> SessionInfo:
        found = self.find(target, tenant)
        usage = SessionUsage(cpu_s=0.1, memory_bytes=1, disk_bytes=None, pids=1)
        return SessionInfo.model_validate(
            {
                **self.described(found),
                "state": "idle",
                "last_used_at": NOW,
                "idle_s": 0,
                "commands": 0,
                "running": [],
                "usage": usage,
            }
        )

    async def sessions(self, tenant: str, _request: EmptyRequest) -> SessionList:
        if self.fails is not None:
            raise self.fails
        own = [session for (owner, _), session in self.live.items() if owner == tenant]
        return SessionList(
            sessions=[
                SessionSummary.model_validate(
                    {**self.described(session), "idle_s": 1.5, "state": "idle"}
                )
                for session in own
            ]
        )

    async def cleanup(self, tenant: str, target: Target) -> CleanupResult:
        found = self.find(target, tenant)
        del self.live[tenant, found.thread_id]
        return CleanupResult()

    async def health(self) -> Health:
        return Health.model_validate(
            {
                "status": self.status,
                "role": "standalone",
                "worker_id": "w-1",
                "runtime": "fake",
                "pool_size": 0,
                "active_sessions": len(self.live),
                "capacity": 10,
                "version": "0",
                "uptime_s": 1.0,
                "checks": {"runtime": "ok"},
            }
        )


class _Of(Sandboxes):
    def __init__(self, all_of_them: FakeTenants, tenant: str) -> None:
        self._all = all_of_them
        self._tenant = tenant

    async def call(self, operation: Operation[Req, Ans], request: Req) -> Ans:
        name = {"stdin": "stdin_"}.get(operation.name, operation.name)
        answer: Ans = await getattr(self._all, name)(self._tenant, request)
        return answer

    def events(self, request: ExecuteRequest | FollowRequest) -> AsyncGenerator[CommandEvent]:
        if isinstance(request, ExecuteRequest):
            return self._all.stream(self._tenant, request)
        return self._all.follow(self._tenant, request)

    async def upload(self, request: UploadRequest, chunks: AsyncIterable[bytes]) -> UploadResult:
        return await self._all.upload(self._tenant, request, chunks)

    def download(self, request: DownloadRequest) -> AbstractAsyncContextManager[Download]:
        return self._all.download(self._tenant, request)
