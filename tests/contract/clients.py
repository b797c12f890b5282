"""The clients as a Sandboxes, so that the tests of the interface hold for those who use it."""

import asyncio
import contextlib
import hashlib
import posixpath
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sandbox_sdk import AsyncSandboxClient, Process, SandboxClient
from sandbox_sdk.backends.base import Download, Sandboxes
from sandbox_sdk.protocol.events import CommandEvent
from sandbox_sdk.protocol.models import (
    DEFAULT_TENANT,
    WORKSPACE,
    CleanupResult,
    CommandInfo,
    CommandList,
    CreateSessionRequest,
    DownloadInfo,
    ExecuteRequest,
    ExecuteResult,
    Health,
    ListResult,
    Session,
    SessionInfo,
    SessionList,
    SignalName,
    StdinReceipt,
    Target,
    UploadResult,
)

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

    async def create_session(
        self, request: CreateSessionRequest, *, tenant: str = DEFAULT_TENANT
    ) -> Session:
        target = None if request.thread_id is None else Target(thread_id=request.thread_id)
        options = request.model_dump(exclude={"thread_id"})
        return await self.client(target).create_session(**options)  # type: ignore[no-any-return]

    async def execute(
        self, request: ExecuteRequest, *, tenant: str = DEFAULT_TENANT
    ) -> ExecuteResult:
        client, options = self.client(request), request.model_dump(exclude_unset=True)
        options = {name: value for name, value in options.items() if name not in _TO_THE_END}
        if request.background:
            process = await client.start(request.command, **options)
            return await process.result()  # type: ignore[no-any-return]
        return await client.execute(request.command, **options)  # type: ignore[no-any-return]

    async def stream(
        self, request: ExecuteRequest, *, tenant: str = DEFAULT_TENANT
    ) -> AsyncGenerator[CommandEvent]:
        async with contextlib.aclosing(self.client(request).stream(request.command)) as events:
            async for event in events:
                yield event

    async def follow(
        self, target: Target, command_id: str, *, offset: int = 0, tenant: str = DEFAULT_TENANT
    ) -> AsyncGenerator[CommandEvent]:
        process = await self.client(target).process(command_id)
        async with contextlib.aclosing(process.stream(offset=offset)) as events:
            async for event in events:
                yield event

    async def result(
        self, target: Target, command_id: str, *, tenant: str = DEFAULT_TENANT
    ) -> ExecuteResult:
        process = await self.client(target).process(command_id)
        return await process.result()  # type: ignore[no-any-return]

    async def commands(self, target: Target, *, tenant: str = DEFAULT_TENANT) -> CommandList:
        return await self.client(target).commands()  # type: ignore[no-any-return]

    async def signal(
        self,
        target: Target,
        command_id: str,
        *,
        signal: SignalName = "TERM",
        tenant: str = DEFAULT_TENANT,
    ) -> CommandInfo:
        process = await self.client(target).process(command_id)
        return await process.signal(signal)  # type: ignore[no-any-return]

    async def send_stdin(
        self,
        target: Target,
        command_id: str,
        data: bytes,
        *,
        eof: bool = False,
        offset: int | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> StdinReceipt:
        process = await self.client(target).process(command_id)
        receipt = await process.send_stdin(data)
        return await process.close_stdin() if eof else receipt  # type: ignore[no-any-return]

    async def upload_file(
        self,
        target: Target,
        path: str,
        chunks: AsyncIterable[bytes],
        *,
        tenant: str = DEFAULT_TENANT,
    ) -> UploadResult:
        data = b"".join([chunk async for chunk in chunks])
        return await self.client(target).upload_bytes(data, path)  # type: ignore[no-any-return]

    @contextlib.asynccontextmanager
    async def download_file(
        self, target: Target, path: str, *, tenant: str = DEFAULT_TENANT
    ) -> AsyncIterator[Download]:
        client = self.client(target)
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

    async def list_files(
        self,
        target: Target,
        *,
        path: str = WORKSPACE,
        recursive: bool = False,
        limit: int = 1000,
        tenant: str = DEFAULT_TENANT,
    ) -> ListResult:
        listing = self.client(target).list_files(path, recursive=recursive, limit=limit)
        return await listing  # type: ignore[no-any-return]

    async def session(self, target: Target, *, tenant: str = DEFAULT_TENANT) -> SessionInfo:
        return await self.client(target).session()  # type: ignore[no-any-return]

    async def sessions(self, *, tenant: str = DEFAULT_TENANT) -> SessionList:
        return await self.client().sessions()  # type: ignore[no-any-return]

    async def cleanup(self, target: Target, *, tenant: str = DEFAULT_TENANT) -> CleanupResult:
        return await self.client(target).cleanup()  # type: ignore[no-any-return]

    async def health(self) -> Health:
        return await self.client().health()  # type: ignore[no-any-return]


class InThreads:
    """A synchronous object whose every call blocks a thread of its own, like those of its users."""

    def __init__(self, wrapped: SandboxClient | Process, threads: ThreadPoolExecutor) -> None:
        self._wrapped = wrapped
        self._threads = threads

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._wrapped, name)
        if name == "stream":
            return lambda *args, **options: self._each(method(*args, **options))

        async def call(*args: Any, **options: Any) -> Any:
            done = await self._in_thread(lambda: method(*args, **options))
            return InThreads(done, self._threads) if isinstance(done, Process) else done

        return call

    async def _each(self, items: Any) -> AsyncGenerator[Any]:
        try:
            while (item := await self._in_thread(lambda: next(items, None))) is not None:
                yield item
        finally:
            await self._in_thread(items.close)

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


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
