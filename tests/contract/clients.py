"""The clients as a Sandboxes, so that the tests of the interface hold for those who use it."""

import asyncio
import contextlib
import hashlib
import posixpath
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sandbox_sdk import AsyncSandboxClient, Process, SandboxClient
from sandbox_sdk.ports import BlockingChannel
from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_sdk.protocol.events import AnyEvent
from sandbox_sdk.protocol.models import (
    WORKSPACE,
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
    FollowRequest,
    ForkRequest,
    ForkResult,
    HappeningList,
    HappeningsRequest,
    Health,
    HistoryRequest,
    LifetimeRequest,
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
    RestoreRequest,
    RunCodeRequest,
    Session,
    SessionInfo,
    SessionList,
    SessionsRequest,
    SessionSummary,
    SignalRequest,
    StatRequest,
    StdinReceipt,
    StdinRequest,
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
    Verdict,
    Volume,
    VolumeDeleted,
    VolumeList,
    VolumeTarget,
    WatchFilesRequest,
)
from sandbox_sdk.protocol.operations import (
    ARTIFACTS,
    CHECKPOINT,
    CHECKPOINTS,
    DELETE_ARTIFACT,
    FORK,
    GET_CHECKPOINT,
    RESTORE,
    STORED_SESSION,
    STORED_SESSIONS,
    UNDO,
    UNWATCH,
    WATCH,
    WATCH_EVENTS,
    Ans,
    Operation,
    Req,
)
from sandbox_sdk.protocol.sandboxes import Download, EventsRequest, Sandboxes

_TARGET = {"thread_id", "session_id"}
_TO_THE_END = _TARGET | {"command", "background"}


class ThroughClient(Sandboxes):
    """Every call goes through a client of its own; `make` says which kind."""

    def __init__(self, backend: Sandboxes, make: Callable[..., Any]) -> None:
        self._backend = backend
        self._make = make

    def client(self, target: Target | None = None) -> Any:
        names = {} if target is None else target.model_dump(include=_TARGET)
        return self._make(**names, backend=self._backend)

    async def call(self, operation: Operation[Req, Ans], request: Req) -> Ans:
        answer: Ans = await getattr(self, f"_{operation.name}")(request)
        return answer

    async def _create_session(self, request: CreateSessionRequest) -> Session:
        target = None if request.thread_id is None else Target(thread_id=request.thread_id)
        options = request.model_dump(exclude={"thread_id"})
        return await self.client(target).create_session(**options)  # type: ignore[no-any-return]

    async def _execute(self, request: ExecuteRequest) -> ExecuteResult:
        client, options = self.client(request), request.model_dump(exclude_unset=True)
        options = {name: value for name, value in options.items() if name not in _TO_THE_END}
        if request.background:
            process = await client.start(request.command, **options)
            return await process.result()  # type: ignore[no-any-return]
        return await client.execute(request.command, **options)  # type: ignore[no-any-return]

    async def _check(self, request: CheckRequest) -> Verdict:
        return await self.client(request).check(request.command)  # type: ignore[no-any-return]

    async def events(self, request: EventsRequest) -> AsyncGenerator[AnyEvent]:
        if isinstance(request, RunCodeRequest):
            stream = self.client(request).stream_code(**self._code(request))
        elif isinstance(request, ExecuteRequest):
            options = request.model_dump(
                include={"idempotency_key", "encoding", "stdin_open", "timeout"}, exclude_unset=True
            )
            stream = self.client(request).stream(request.command, **options)
        else:
            process = await self._process(request)
            stream = process.stream(offset=request.offset, **_encoding(request))
        async with contextlib.aclosing(stream) as events:
            async for event in events:
                yield event

    async def _process(self, request: CommandTarget) -> Any:
        return await self.client(request).process(request.command_id)

    async def _command(self, request: CommandTarget) -> ExecuteResult:
        return await (await self._process(request)).result()  # type: ignore[no-any-return]

    async def _commands(self, target: Target) -> CommandList:
        return await self.client(target).commands()  # type: ignore[no-any-return]

    async def _signal(self, request: SignalRequest) -> CommandInfo:
        process = await self._process(request)
        return await process.signal(request.signal)  # type: ignore[no-any-return]

    async def _stdin(self, request: StdinRequest) -> StdinReceipt:
        process = await self._process(request)
        receipt = await process.send_stdin(request.data_bytes())
        return await process.close_stdin() if request.eof else receipt  # type: ignore[no-any-return]

    def _code(self, request: RunCodeRequest) -> dict[str, Any]:
        options = request.model_dump(exclude_unset=True, exclude=_TARGET)
        return {{"context_id": "context"}.get(name, name): options[name] for name in options}

    async def _run_code(self, request: RunCodeRequest) -> CodeResult:
        return await self.client(request).run_code(**self._code(request))  # type: ignore[no-any-return]

    async def _contexts(self, target: Target) -> ContextList:
        return ContextList(contexts=await self.client(target).contexts())

    async def _create_context(self, request: CreateContextRequest) -> Context:
        options = request.model_dump(exclude=_TARGET)
        return await self.client(request).create_context(**options)  # type: ignore[no-any-return]

    async def _restart_context(self, request: ContextTarget) -> Context:
        return await self.client(request).restart_context(request.context_id)  # type: ignore[no-any-return]

    async def _remove_context(self, request: ContextTarget) -> Context:
        return await self.client(request).remove_context(request.context_id)  # type: ignore[no-any-return]

    async def _interrupt_context(self, request: ContextTarget) -> Context:
        return await self.client(request).interrupt_context(request.context_id)  # type: ignore[no-any-return]

    async def upload(self, request: UploadRequest, chunks: AsyncIterable[bytes]) -> UploadResult:
        data, client = b"".join([chunk async for chunk in chunks]), self.client(request)
        return await client.upload_bytes(data, request.path, metadata=request.metadata)  # type: ignore[no-any-return]

    @contextlib.asynccontextmanager
    async def download(self, request: DownloadRequest | ArtifactTarget) -> AsyncIterator[Download]:
        if isinstance(request, ArtifactTarget):
            # Clients have it as an object, from the list of their thread.
            async with self._backend.download(request) as download:
                yield download
            return
        client, path = self.client(request), request.path
        data: bytes = await client.download_bytes(path)
        found = (await client.list_files(path)).entries
        folder = posixpath.join(WORKSPACE, path) != found[0].path

        async def whole() -> AsyncIterator[bytes]:
            yield data

        info = DownloadInfo(
            filename=posixpath.basename(path),
            path=path,
            type="directory" if folder else "file",
            size=None if folder else found[0].size,
            sha256=None if folder else hashlib.sha256(data).hexdigest(),
            modified_at=found[0].modified_at,
        )
        yield Download(info, whole())

    @contextlib.asynccontextmanager
    async def connect(self, request: ConnectRequest) -> AsyncIterator[ByteChannel]:
        async with self.client(request).connect(request.port or request.path) as channel:
            yield channel

    async def _list_files(self, request: ListRequest) -> ListResult:
        options = request.model_dump(include={"recursive", "depth", "limit"})
        listing = self.client(request).list_files(request.path, **options)
        return await listing  # type: ignore[no-any-return]

    async def _rename(self, request: RenameRequest) -> FileEntry:
        moved = self.client(request).rename(request.path, request.to, replace=request.replace)
        return await moved  # type: ignore[no-any-return]

    async def _stat(self, request: StatRequest) -> FileEntry:
        return await self.client(request).stat(request.path, follow=request.follow)  # type: ignore[no-any-return]

    async def _mkdir(self, request: MkdirRequest) -> MkdirResult:
        return await self.client(request).mkdir(request.path)  # type: ignore[no-any-return]

    async def _remove(self, request: RemoveRequest) -> RemoveResult:
        await self.client(request).remove(request.path, recursive=request.recursive)
        return RemoveResult(path=request.path)

    async def _watch(self, request: WatchFilesRequest) -> FileWatch:
        """Clients iterate; they do not ask for positions."""
        return await self._backend.call(WATCH, request)

    async def _watch_events(self, request: FileChangesRequest) -> FileChangeList:
        return await self._backend.call(WATCH_EVENTS, request)

    async def _unwatch(self, request: FileWatchTarget) -> FileWatchEnded:
        return await self._backend.call(UNWATCH, request)

    async def _artifacts(self, request: ArtifactsRequest) -> ArtifactList:
        if request.thread_id is None:  # A client knows its own thread alone.
            return await self._backend.call(ARTIFACTS, request)
        client = self.client(Target(thread_id=request.thread_id))
        found = await client.artifacts(limit=request.limit)
        return ArtifactList(artifacts=[each.info for each in found])

    async def _delete_artifact(self, request: ArtifactTarget) -> ArtifactDeleted:
        return await self._backend.call(DELETE_ARTIFACT, request)

    async def _stored_sessions(self, request: StoredSessionsRequest) -> StoredSessionList:
        return await self._backend.call(STORED_SESSIONS, request)

    async def _stored_session(self, request: StoredSessionTarget) -> StoredSessionDetail:
        return await self._backend.call(STORED_SESSION, request)

    async def _checkpoint(self, request: CheckpointRequest) -> Checkpoint:
        if request.idempotency_key is not None:  # A client has one of its own for every call.
            return await self._backend.call(CHECKPOINT, request)
        options = {"metadata": request.metadata, "tmp": request.tmp}
        return await self.client(request).checkpoint(request.name, **options)  # type: ignore[no-any-return]

    async def _checkpoints(self, request: CheckpointsRequest) -> CheckpointList:
        if request.thread_id is None:  # A client knows its own thread alone.
            return await self._backend.call(CHECKPOINTS, request)
        client = self.client(Target(thread_id=request.thread_id))
        return CheckpointList(checkpoints=await client.checkpoints(limit=request.limit))

    async def _get_checkpoint(self, request: CheckpointTarget) -> Checkpoint:
        return await self._backend.call(GET_CHECKPOINT, request)

    async def _delete_checkpoint(self, request: CheckpointTarget) -> CheckpointDeleted:
        await self.client().delete_checkpoint(request.checkpoint_id)
        return CheckpointDeleted(checkpoint_id=request.checkpoint_id)

    async def _history(self, request: HistoryRequest) -> ThreadHistory:
        client = self.client(Target(thread_id=request.thread_id))
        return ThreadHistory(entries=await client.history(limit=request.limit))

    async def _changes(self, request: ChangesRequest) -> CommandChanges:
        client = self.client(Target(thread_id=request.thread_id))
        return await client.changes(request.number)  # type: ignore[no-any-return]

    async def _undo(self, request: UndoRequest) -> Undone:
        if request.idempotency_key is not None:
            return await self._backend.call(UNDO, request)
        client = self.client(Target(thread_id=request.thread_id))
        return await client.undo(request.to)  # type: ignore[no-any-return]

    async def _restore(self, request: RestoreRequest) -> Session:
        if request.idempotency_key is not None:
            return await self._backend.call(RESTORE, request)
        client = self.client(Target(thread_id=request.thread_id))
        return await client.rewind(request.checkpoint_id)  # type: ignore[no-any-return]

    async def _fork(self, request: ForkRequest) -> ForkResult:
        if request.thread_id is None or request.idempotency_key is not None:
            return await self._backend.call(FORK, request)
        made = await self.client(Target(thread_id=request.thread_id)).fork(request.into)
        infos = [await each.session() for each in made]
        for each in made:
            await each.close()
        newest = await self._backend.checkpoints(thread_id=request.thread_id, limit=1)
        return ForkResult(
            checkpoint_id=newest.checkpoints[0].checkpoint_id,
            sessions=[Session.model_validate(info.model_dump()) for info in infos],
        )

    async def _events(self, request: HappeningsRequest) -> HappeningList:
        """Clients watch; they do not ask for positions."""
        return await self._backend.happenings(request)

    async def _usage(self, request: UsageRequest) -> UsageReport:
        return await self.client().usage(**dict(request))  # type: ignore[no-any-return]

    async def _volumes(self, _request: EmptyRequest) -> VolumeList:
        quota = (await self._backend.volumes()).quota  # A client tells the volumes alone.
        return VolumeList(volumes=await self.client().volumes(), quota=quota)

    async def _create_volume(self, request: CreateVolumeRequest) -> Volume:
        return await self.client().create_volume(request.name, size=request.size)  # type: ignore[no-any-return]

    async def _expose(self, request: ExposeRequest) -> Preview:
        return await self.client(request).expose(request.port, public=request.public)  # type: ignore[no-any-return]

    async def _previews(self, request: Target) -> PreviewList:
        return PreviewList(previews=await self.client(request).previews())

    async def _unexpose(self, request: PreviewTarget) -> Unexposed:
        await self.client(request).unexpose(request.port)
        return Unexposed(port=request.port)

    async def _delete_volume(self, request: VolumeTarget) -> VolumeDeleted:
        await self.client().delete_volume(request.name)
        return VolumeDeleted(name=request.name)

    async def _session(self, target: Target) -> SessionInfo:
        return await self.client(target).session()  # type: ignore[no-any-return]

    async def _sessions(self, request: SessionsRequest) -> SessionList:
        wanted = {**dict(request), "metadata": request.wanted_metadata()}
        return await self.client().sessions(**wanted)  # type: ignore[no-any-return]

    async def _pause(self, target: Target) -> SessionSummary:
        return await self.client(target).pause()  # type: ignore[no-any-return]

    async def _unpause(self, target: Target) -> SessionSummary:
        return await self.client(target).unpause()  # type: ignore[no-any-return]

    async def _set_lifetime(self, request: LifetimeRequest) -> SessionSummary:
        client, longer = self.client(request), request.only_longer
        return await client.set_lifetime(request.lifetime_s, only_longer=longer)  # type: ignore[no-any-return]

    async def _set_egress(self, request: EgressRequest) -> SessionSummary:
        client = self.client(request)
        return await client.set_egress(allow=request.allow, deny=request.deny)  # type: ignore[no-any-return]

    async def _cleanup(self, target: Target) -> CleanupResult:
        return await self.client(target).cleanup()  # type: ignore[no-any-return]

    async def _registry(self, _request: EmptyRequest) -> RegistryList:
        return await self.client().registry()  # type: ignore[no-any-return]

    async def _call_tool(self, request: CallToolRequest) -> ToolAnswer:
        options = {"idempotency_key": request.idempotency_key}
        called = self.client(request).call_tool(request.tool, request.arguments, **options)
        return await called  # type: ignore[no-any-return]

    async def _health(self, _request: EmptyRequest) -> Health:
        return await self.client().health()  # type: ignore[no-any-return]


class InThreads:
    """A synchronous object whose every call blocks a thread of its own, like those of its users."""

    def __init__(self, wrapped: SandboxClient | Process, threads: ThreadPoolExecutor) -> None:
        self._wrapped = wrapped
        self._threads = threads

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._wrapped, name)
        if name == "connect":
            return lambda *args: self._connected(method(*args))
        if name in ("stream", "stream_code"):
            return lambda *args, **options: self._each(method(*args, **options))

        async def call(*args: Any, **options: Any) -> Any:
            done = await self._in_thread(lambda: method(*args, **options))
            if isinstance(done, list):
                return [
                    InThreads(each, self._threads) if isinstance(each, SandboxClient) else each
                    for each in done
                ]
            return InThreads(done, self._threads) if isinstance(done, Process) else done

        return call

    @contextlib.asynccontextmanager
    async def _connected(self, opening: Any) -> AsyncIterator[ByteChannel]:
        channel = await self._in_thread(opening.__enter__)
        try:
            yield _ChannelInThreads(channel, self._in_thread)
        finally:
            await self._in_thread(lambda: opening.__exit__(None, None, None))

    async def _each(self, items: Any) -> AsyncGenerator[Any]:
        try:
            while (item := await self._in_thread(lambda: next(items, None))) is not None:
                yield item
        finally:
            await self._in_thread(items.close)

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _encoding(request: EventsRequest) -> dict[str, Any]:
    return {"encoding": request.encoding} if isinstance(request, FollowRequest) else {}


@contextlib.asynccontextmanager
async def through_client(kind: str, backend: Sandboxes) -> AsyncIterator[Sandboxes]:
    """A Sandboxes over clients of one kind, `async` or `sync`, which share a backend."""
    made: list[Any] = []
    with ThreadPoolExecutor(64) as threads:

        def make(**options: Any) -> Any:
            if kind == "sync":
                made.append(InThreads(SandboxClient(**options), threads))
            else:
                made.append(AsyncSandboxClient(**options))
            return made[-1]

        try:
            yield ThroughClient(backend, make)
        finally:
            for client in made:
                await client.close()


class _ChannelInThreads(ByteChannel):
    def __init__(self, channel: BlockingChannel, in_thread: Callable[..., Any]) -> None:
        self._channel = channel
        self._in_thread = in_thread

    async def read(self) -> bytes:
        return await self._in_thread(self._channel.read)  # type: ignore[no-any-return]

    async def write(self, data: bytes) -> None:
        await self._in_thread(lambda: self._channel.write(data))

    async def end(self) -> None:
        await self._in_thread(self._channel.end)
