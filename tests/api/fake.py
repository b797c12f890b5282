"""Sandboxes in memory, whose commands do what a test has written down for them."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_sdk.protocol.errors import (
    CheckpointNotFound,
    Conflict,
    FileMissing,
    KernelMissing,
    NotFound,
    NotListening,
    SandboxError,
    SessionNotFound,
    StdinClosed,
    VolumeNotFound,
)
from sandbox_sdk.protocol.events import (
    AnyEvent,
    CodeErrorEvent,
    CommandEvent,
    EndEvent,
    ExitEvent,
    GapEvent,
    OutputEvent,
    ResultEvent,
    StartEvent,
)
from sandbox_sdk.protocol.models import (
    WORKSPACE,
    Artifact,
    ArtifactDeleted,
    ArtifactList,
    ArtifactsRequest,
    ArtifactTarget,
    CallToolRequest,
    ChangesRequest,
    Checkpoint,
    CheckpointDeleted,
    CheckpointList,
    CheckpointRequest,
    CheckpointsRequest,
    CheckpointTarget,
    CheckRequest,
    CleanupResult,
    CodeFacts,
    CodeResult,
    CommandChanges,
    CommandInfo,
    CommandList,
    CommandTarget,
    ConnectRequest,
    Context,
    ContextList,
    ContextTarget,
    CreateContextRequest,
    CreateSessionRequest,
    CreateVolumeRequest,
    DownloadInfo,
    DownloadRequest,
    EgressRequest,
    EmptyRequest,
    ExecuteRequest,
    ExecuteResult,
    ExposeRequest,
    FileChangeList,
    FileChangesRequest,
    FileEntry,
    FileWatch,
    FileWatchEnded,
    FileWatchTarget,
    FollowCodeRequest,
    FollowRequest,
    ForkRequest,
    ForkResult,
    HappeningList,
    HappeningsRequest,
    Health,
    HistoryRequest,
    LifetimeRequest,
    Limits,
    ListRequest,
    ListResult,
    MkdirRequest,
    MkdirResult,
    Preview,
    PreviewList,
    PreviewTarget,
    RegistryList,
    RemoveRequest,
    RemoveResult,
    RenameRequest,
    ResizeRequest,
    RestoreRequest,
    RunCodeRequest,
    Session,
    SessionInfo,
    SessionList,
    SessionsRequest,
    SessionSummary,
    SessionUsage,
    SignalName,
    SignalRequest,
    StatRequest,
    StdinReceipt,
    StdinRequest,
    StoredSession,
    StoredSessionDetail,
    StoredSessionList,
    StoredSessionsRequest,
    StoredSessionTarget,
    Target,
    ThreadHistory,
    ToolAnswer,
    Undone,
    UndoRequest,
    Unexposed,
    UploadRequest,
    UploadResult,
    UsageReport,
    UsageRequest,
    UsageRow,
    Verdict,
    Volume,
    VolumeDeleted,
    VolumeList,
    VolumeTarget,
    WatchFilesRequest,
)
from sandbox_sdk.protocol.operations import HEALTH, Ans, Operation, Req
from sandbox_sdk.protocol.providers import no_provider
from sandbox_sdk.protocol.sandboxes import Download, EventsRequest, Sandboxes, Tenants
from sandbox_server.api import examples
from sandbox_server.events.log import EventLog

ARTIFACT = b"made by a run"
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


LISTENING = 8080
"""The port at which every sandbox has somebody who sends back what he gets."""


class Echo(ByteChannel):
    def __init__(self) -> None:
        self._held: asyncio.Queue[bytes] = asyncio.Queue()

    async def read(self) -> bytes:
        return await self._held.get()

    async def write(self, data: bytes) -> None:
        self._held.put_nowait(data)

    async def end(self) -> None:
        self._held.put_nowait(b"")


class FakeTenants(Tenants):
    """Sandboxes of all tenants, in one place."""

    def __init__(self) -> None:
        self.happened = EventLog("w-1")
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
        self.kept: list[tuple[str, Artifact]] = []
        self.checkpointed: list[tuple[str, Checkpoint]] = []
        self.made_volumes: dict[tuple[str, str], Volume] = {}
        self.made_previews: dict[tuple[str, str, int], Preview] = {}

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
        if request.provider not in (None, "fake"):
            raise no_provider(request.provider, there=["fake"])
        if request.checkpoint_id is not None:
            self.find_checkpoint(tenant, request.checkpoint_id)
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
        told = self.told(session, request)
        if not request.artifacts:
            return told
        return told.model_copy(update={"artifacts": [self.made(tenant, session)]})

    def made(self, tenant: str, session: FakeSession) -> Artifact:
        """The artifact that every run makes."""
        made = Artifact(
            artifact_id=f"a-{len(self.kept)}@w-1",
            thread_id=session.thread_id,
            session_id=session.session_id,
            path=f"{WORKSPACE}/made.txt",
            size=len(ARTIFACT),
            sha256=hashlib.sha256(ARTIFACT).hexdigest(),
            mime="text/plain",
            created_at=NOW,
        )
        self.kept.append((tenant, made))
        return made

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

    async def run_code(self, tenant: str, request: RunCodeRequest) -> CodeResult:
        """There is a kernel for python alone."""
        session = self.find(request, tenant, make=request.thread_id is not None)
        if request.language not in (None, "python"):
            raise KernelMissing(f"no Jupyter kernel for {request.language}")
        result = CodeResult.model_validate(examples.CODE_RESULT)
        artifacts = [self.made(tenant, session)] if request.artifacts else []
        return result.model_copy(update={"artifacts": artifacts})

    async def stream_code(
        self, tenant: str, request: RunCodeRequest | FollowCodeRequest
    ) -> AsyncGenerator[AnyEvent]:
        self.find(request, tenant, make=isinstance(request, RunCodeRequest))
        yield start()
        yield ResultEvent(data={"text/plain": "2"}, offset=0, next_offset=9)
        yield CodeErrorEvent(name="E", value="", traceback=[], offset=9, next_offset=20)
        yield EndEvent(**dict(CodeFacts.model_validate(examples.CODE_RESULT)))

    async def contexts(self, tenant: str, target: Target) -> ContextList:
        self.find(target, tenant)
        return ContextList(contexts=[Context.model_validate(examples.CONTEXT)])

    async def create_context(self, tenant: str, request: CreateContextRequest) -> Context:
        self.find(request, tenant, make=request.thread_id is not None)
        return Context.model_validate(examples.CONTEXT)

    async def context(self, tenant: str, request: ContextTarget) -> Context:
        self.find(request, tenant)
        return Context.model_validate(examples.CONTEXT)

    restart_context = remove_context = interrupt_context = context

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

    async def resize(self, tenant: str, request: ResizeRequest) -> CommandInfo:
        self.find(request, tenant)
        self.known(request.command_id)
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

    @asynccontextmanager
    async def connect(self, tenant: str, request: ConnectRequest) -> AsyncIterator[ByteChannel]:
        self.find(request, tenant)
        if request.port != LISTENING:
            raise NotListening(f"nobody listens at {request.port or request.path} in the box")
        try:
            yield Echo()
        finally:
            self.closed.append("connect")

    @asynccontextmanager
    async def download_artifact(
        self, tenant: str, request: ArtifactTarget
    ) -> AsyncIterator[Download]:
        found = self.find_artifact(tenant, request)
        info = DownloadInfo(
            filename=found.path.rpartition("/")[2],
            path=found.path,
            type="file",
            size=found.size,
            sha256=found.sha256,
            modified_at=NOW,
        )
        yield Download(info, self.pieces(ARTIFACT))

    def find_artifact(self, tenant: str, request: ArtifactTarget) -> Artifact:
        kept = [each for owner, each in self.kept if owner == tenant]
        for artifact in kept:
            if artifact.artifact_id == request.artifact_id:
                return artifact
        raise NotFound(f"no artifact {request.artifact_id}")

    async def artifacts(self, tenant: str, request: ArtifactsRequest) -> ArtifactList:
        found = [each for owner, each in self.kept if owner == tenant]
        return ArtifactList(artifacts=found[: request.limit])

    async def delete_artifact(self, tenant: str, request: ArtifactTarget) -> ArtifactDeleted:
        found = self.find_artifact(tenant, request)
        self.kept.remove((tenant, found))
        return ArtifactDeleted(artifact_id=request.artifact_id)

    async def stored_sessions(
        self, tenant: str, request: StoredSessionsRequest
    ) -> StoredSessionList:
        mine = [session for (owner, _), session in self.live.items() if owner == tenant]
        wanted = [s for s in mine if request.thread in (None, s.thread_id)]
        return StoredSessionList(sessions=[StoredSession(**self.stored(s)) for s in wanted])

    async def stored_session(
        self, tenant: str, request: StoredSessionTarget
    ) -> StoredSessionDetail:
        found = self.find(Target(session_id=request.session_id), tenant)
        return StoredSessionDetail(**self.stored(found), log=[], artifacts=[])

    def find_checkpoint(self, tenant: str, checkpoint_id: str) -> Checkpoint:
        for owner, each in self.checkpointed:
            if (owner, each.checkpoint_id) == (tenant, checkpoint_id):
                return each
        raise CheckpointNotFound(f"no checkpoint {checkpoint_id}")

    async def checkpoint(self, tenant: str, request: CheckpointRequest) -> Checkpoint:
        session = self.find(request, tenant)
        made = Checkpoint(
            checkpoint_id=f"cp-{len(self.checkpointed)}", thread_id=session.thread_id,
            session_id=session.session_id, generation=1, name=request.name,
            metadata=request.metadata, created_at=NOW, files=1, folders=0, size=1, added=1,
        )  # fmt: skip
        self.checkpointed.append((tenant, made))
        return made

    async def checkpoints(self, tenant: str, request: CheckpointsRequest) -> CheckpointList:
        found = [each for owner, each in self.checkpointed if owner == tenant]
        return CheckpointList(checkpoints=found[: request.limit])

    async def get_checkpoint(self, tenant: str, request: CheckpointTarget) -> Checkpoint:
        return self.find_checkpoint(tenant, request.checkpoint_id)

    async def delete_checkpoint(self, tenant: str, request: CheckpointTarget) -> CheckpointDeleted:
        found = self.find_checkpoint(tenant, request.checkpoint_id)
        self.checkpointed.remove((tenant, found))
        return CheckpointDeleted(checkpoint_id=request.checkpoint_id)

    async def usage(self, tenant: str, request: UsageRequest) -> UsageReport:
        day = request.until or date(2025, 1, 30)
        mine = [s for (owner, _), s in self.live.items() if owner == tenant]
        figures = {name: 0 for name in UsageRow.model_fields if "_" in name and "_id" not in name}
        row = UsageRow.model_validate({**figures, "commands": len(mine)})
        return UsageReport(by=request.by, since=request.since or day, until=day, rows=[row])

    async def happenings(self, tenant: str, request: HappeningsRequest) -> HappeningList:
        return await self.happened.since(tenant, request)

    async def volumes(self, tenant: str, _request: EmptyRequest) -> VolumeList:
        found = [each for (owner, _), each in self.made_volumes.items() if owner == tenant]
        return VolumeList(volumes=found, quota=10 << 30)

    async def create_volume(self, tenant: str, request: CreateVolumeRequest) -> Volume:
        if (tenant, request.name) in self.made_volumes:
            raise Conflict(f"there is a volume {request.name}")
        made = Volume(
            name=request.name, size=request.size or 1 << 30, used=0, created_at=NOW, worker="w"
        )
        self.made_volumes[tenant, request.name] = made
        return made

    async def delete_volume(self, tenant: str, request: VolumeTarget) -> VolumeDeleted:
        if self.made_volumes.pop((tenant, request.name), None) is None:
            raise VolumeNotFound(f"no volume {request.name}")
        return VolumeDeleted(name=request.name)

    async def expose(self, tenant: str, request: ExposeRequest) -> Preview:
        session_id = self.find(request, tenant).session_id
        made = Preview(
            port=request.port,
            session_id=session_id,
            url=f"http://{request.port}-{session_id}.localhost:8001/",
            public=request.public,
            created_at=NOW,
            expires_at=NOW,
        )
        self.made_previews[tenant, session_id, request.port] = made
        return made

    async def previews(self, tenant: str, request: Target) -> PreviewList:
        wanted = (tenant, self.find(request, tenant).session_id)
        found = [each for key, each in self.made_previews.items() if key[:2] == wanted]
        return PreviewList(previews=found)

    async def unexpose(self, tenant: str, request: PreviewTarget) -> Unexposed:
        key = (tenant, self.find(request, tenant).session_id, request.port)
        if self.made_previews.pop(key, None) is None:
            raise NotFound(f"port {request.port} is not exposed")
        return Unexposed(port=request.port)

    async def restore(self, tenant: str, request: RestoreRequest) -> Session:
        self.find_checkpoint(tenant, request.checkpoint_id)
        return await self.create_session(tenant, CreateSessionRequest(thread_id=request.thread_id))

    async def history(self, tenant: str, request: HistoryRequest) -> ThreadHistory:
        return ThreadHistory(entries=[])

    async def changes(self, tenant: str, request: ChangesRequest) -> CommandChanges:
        raise NotFound("nothing is kept")

    async def undo(self, tenant: str, request: UndoRequest) -> Undone:
        made = await self.create_session(tenant, CreateSessionRequest(thread_id=request.thread_id))
        return Undone(**dict(made), to=request.to or 1, command="true")

    async def fork(self, tenant: str, request: ForkRequest) -> ForkResult:
        if request.checkpoint_id is None:
            wanted = CheckpointRequest(thread_id=request.thread_id)
            request = request.model_copy(
                update={"checkpoint_id": (await self.checkpoint(tenant, wanted)).checkpoint_id}
            )
        self.find_checkpoint(tenant, request.checkpoint_id or "")
        made = [
            await self.create_session(tenant, CreateSessionRequest(thread_id=thread_id))
            for thread_id in request.into
        ]
        return ForkResult(checkpoint_id=request.checkpoint_id or "", sessions=made)

    def stored(self, session: FakeSession) -> dict[str, Any]:
        return {
            "session_id": session.session_id,
            "sandbox_id": "b-1",
            "thread_id": session.thread_id,
            "generation": 1,
            "provider": "fake",
            "worker": "w-1",
            "state": "live",
            "created_at": NOW,
            "commands": 0,
        }

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

    def entry(self, path: str, size: int, *, folder: bool = False) -> FileEntry:
        return FileEntry(
            name=path.rpartition("/")[2],
            path=f"{WORKSPACE}/{path}",
            type="directory" if folder else "file",
            size=size,
            mode="0644",
            modified_at=NOW,
        )

    async def stat(self, tenant: str, request: StatRequest) -> FileEntry:
        session = self.find(request, tenant, make=request.thread_id is not None)
        if request.path not in session.files:
            raise FileMissing(f"there is no file {request.path}")
        return self.entry(request.path, len(session.files[request.path]))

    async def mkdir(self, tenant: str, request: MkdirRequest) -> MkdirResult:
        self.find(request, tenant, make=request.thread_id is not None)
        return MkdirResult(created=True, entry=self.entry(request.path, 4096, folder=True))

    async def remove(self, tenant: str, request: RemoveRequest) -> RemoveResult:
        session = self.find(request, tenant)
        if session.files.pop(request.path, None) is None:
            raise FileMissing(f"there is no file {request.path}")
        return RemoveResult(path=request.path)

    async def watch(self, tenant: str, request: WatchFilesRequest) -> FileWatch:
        session = self.find(request, tenant, make=request.thread_id is not None)
        return FileWatch(
            watch_id="w-1", session_id=session.session_id, path=request.path, position=0
        )

    async def watch_events(self, tenant: str, request: FileChangesRequest) -> FileChangeList:
        self.find(request, tenant)
        if request.watch_id != "w-1":
            raise NotFound(f"no watch {request.watch_id}")
        return FileChangeList(events=[], position=request.after)

    async def unwatch(self, tenant: str, request: FileWatchTarget) -> FileWatchEnded:
        self.find(request, tenant)
        return FileWatchEnded(ended=request.watch_id == "w-1")

    async def registry(self, _tenant: str, _request: EmptyRequest) -> RegistryList:
        if self.fails is not None:
            raise self.fails
        return RegistryList(agents=[], tools=[], environments=[])

    async def call_tool(self, tenant: str, request: CallToolRequest) -> ToolAnswer:
        self.find(request, tenant, make=request.thread_id is not None)
        return ToolAnswer(text=request.tool, data=request.arguments)

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

    async def sessions(self, tenant: str, request: SessionsRequest) -> SessionList:
        if self.fails is not None:
            raise self.fails
        own = [session for (owner, _), session in self.live.items() if owner == tenant]
        return request.page(map(self._summary, own))

    def _summary(self, session: FakeSession) -> SessionSummary:
        return SessionSummary.model_validate(
            {**self.described(session), "idle_s": 1.5, "state": "idle"}
        )

    async def set_lifetime(self, tenant: str, request: LifetimeRequest) -> SessionSummary:
        return self._summary(self.find(request, tenant))

    async def set_egress(self, tenant: str, request: EgressRequest) -> SessionSummary:
        return self._summary(self.find(request, tenant))

    async def pause(self, tenant: str, target: Target) -> SessionSummary:
        return self._summary(self.find(target, tenant))

    async def unpause(self, tenant: str, target: Target) -> SessionSummary:
        return self._summary(self.find(target, tenant))

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
        if operation is HEALTH:
            return await self._all.health()  # type: ignore[return-value]
        name = {"stdin": "stdin_", "events": "happenings"}.get(operation.name, operation.name)
        answer: Ans = await getattr(self._all, name)(self._tenant, request)
        return answer

    def events(self, request: EventsRequest) -> AsyncGenerator[AnyEvent]:
        if isinstance(request, ExecuteRequest):
            return self._all.stream(self._tenant, request)
        if isinstance(request, RunCodeRequest | FollowCodeRequest):
            return self._all.stream_code(self._tenant, request)
        return self._all.follow(self._tenant, request)

    async def upload(self, request: UploadRequest, chunks: AsyncIterable[bytes]) -> UploadResult:
        return await self._all.upload(self._tenant, request, chunks)

    def download(
        self, request: DownloadRequest | ArtifactTarget
    ) -> AbstractAsyncContextManager[Download]:
        if isinstance(request, ArtifactTarget):
            return self._all.download_artifact(self._tenant, request)
        return self._all.download(self._tenant, request)

    def connect(self, request: ConnectRequest) -> AbstractAsyncContextManager[ByteChannel]:
        return self._all.connect(self._tenant, request)
