"""AsyncSandboxClient: one conversation's sandbox, wherever it runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import anyio
from pydantic import ValidationError

from sandbox_sdk import transfer
from sandbox_sdk.backends.base import Sandboxes
from sandbox_sdk.errors import CommandFailed
from sandbox_sdk.options import CommandOptions
from sandbox_sdk.process import AsyncProcess, closing
from sandbox_sdk.protocol.errors import (
    FileMissing,
    InvalidRequest,
    RuntimeUnavailable,
    SessionLost,
    SessionNotFound,
)
from sandbox_sdk.protocol.events import CommandEvent
from sandbox_sdk.protocol.models import (
    MAX_TIMEOUT_S,
    WORKSPACE,
    CleanupResult,
    CommandList,
    CreateSessionRequest,
    ExecuteRequest,
    ExecuteResult,
    Health,
    ListResult,
    Session,
    SessionInfo,
    SessionList,
    Target,
    UploadResult,
)
from sandbox_sdk.transfer import ByteChunks, FileChunks

CLOSE_S = 15.0
"""How long leaving may take where the server does not answer."""

_Request = TypeVar("_Request", ExecuteRequest, CreateSessionRequest, Target)


class AsyncSandboxClient:
    """The sandbox of one thread. It is made at its first use.

    With `server_url`, or SANDBOX_URL in the environment, it is on that server; else it is made by
    this very process (see LocalBackend). `backend` says so explicitly.

    A client that is given a `thread_id` (or a `session_id`) shares that sandbox with everybody who
    uses the same, now and later; leaving closes the connection alone. A client without one has a
    sandbox of its own and cleans it up on leaving.

        >>> async def main():
        ...     async with AsyncSandboxClient() as sandbox:
        ...         await sandbox.write_text("numbers.txt", "1 2 3")
        ...         result = await sandbox.execute("wc -w < numbers.txt")
        ...         return result.output, result.exit_code
        >>> asyncio.run(main())
        ('3\\n', 0)

    Every method may raise any SandboxError. Use it in one event loop.
    """

    def __init__(
        self,
        thread_id: str | None = None,
        *,
        session_id: str | None = None,
        server_url: str | None = None,
        api_key: str | None = None,
        backend: Sandboxes | None = None,
    ) -> None:
        self._owned = thread_id is None and session_id is None
        self._target: Target | None = None
        if not self._owned:
            self._target = _checked(Target, thread_id=thread_id, session_id=session_id)
        self._backend = backend or default_backend(server_url, api_key)
        self._stack = contextlib.AsyncExitStack()
        self._opening = anyio.Lock()
        self._opened = self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self._opened else "not yet used"
        whose = "its own" if self._owned else ""
        if self._target is not None:
            whose = " ".join(self._target.model_dump(exclude_none=True).values())
        return f"<{type(self).__name__} {whose}, {state}, {self._backend!r}>"

    @property
    def thread_id(self) -> str | None:
        """The thread this client speaks for. None where it was given a session_id, and as long as
        a sandbox of its own is not made."""
        return None if self._target is None else self._target.thread_id

    async def __aenter__(self) -> Self:
        await self._sandboxes()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A server that has just been found gone is not waited for a second time.
        await self._close(cleanup=self._owned and not isinstance(exc, RuntimeUnavailable))

    async def close(self) -> None:
        """Leave; a sandbox of the client's own is cleaned up. Closing twice is harmless."""
        await self._close(cleanup=self._owned)

    async def _close(self, *, cleanup: bool) -> None:
        closed, self._closed = self._closed, True
        if closed or not self._opened:
            return
        with anyio.move_on_after(CLOSE_S, shield=True):
            try:
                if cleanup and self._target is not None:
                    with contextlib.suppress(SessionNotFound, SessionLost):
                        await self._backend.cleanup(self._target)
            finally:
                await self._stack.aclose()

    async def _sandboxes(self) -> Sandboxes:
        """The backend, open."""
        if self._closed:
            raise RuntimeError("this client is closed; make another one")
        if not self._opened:
            async with self._opening:
                if not self._opened:
                    if isinstance(self._backend, contextlib.AbstractAsyncContextManager):
                        await self._stack.enter_async_context(self._backend)
                    self._opened = True
        return self._backend

    async def _ready(self) -> tuple[Sandboxes, Target]:
        """The backend, open, and whose sandbox is meant; one of the client's own is made first."""
        sandboxes = await self._sandboxes()
        if self._target is None:
            async with self._opening:
                if self._target is None:
                    await self._make_own(sandboxes, CreateSessionRequest())
        assert self._target is not None
        return sandboxes, self._target

    async def _make_own(self, sandboxes: Sandboxes, request: CreateSessionRequest) -> Session:
        session = await sandboxes.create_session(request)
        self._target = Target(thread_id=session.thread_id)
        return session

    # Sessions

    async def create_session(
        self,
        *,
        environment: str | None = None,
        env: Mapping[str, str] | None = None,
        idle_timeout_s: float | None = None,
    ) -> Session:
        """Make the sandbox now, with settings of its own; `status` tells where there was one.

        Only needed for the settings: the first use makes it too.
        """
        sandboxes = await self._sandboxes()
        settings = {"environment": environment, "env": env or {}, "idle_timeout_s": idle_timeout_s}
        async with self._opening:
            if self._target is None:
                return await self._make_own(sandboxes, _checked(CreateSessionRequest, **settings))
        thread_id = await self._thread_id()
        request = _checked(CreateSessionRequest, thread_id=thread_id, **settings)
        return await sandboxes.create_session(request)

    async def session(self) -> SessionInfo:
        """How the sandbox is doing. Neither a use of it, nor does it make the one of a thread."""
        sandboxes, target = await self._ready()
        return await sandboxes.session(target)

    async def sessions(self) -> SessionList:
        """All live sessions of this server and key, or of this machine's user."""
        return await (await self._sandboxes()).sessions()

    async def cleanup(self) -> CleanupResult:
        """End the sandbox with all that is in it. The next use of its thread makes a new one."""
        sandboxes, target = await self._ready()
        return await sandboxes.cleanup(target)

    async def restart(self) -> Session:
        """End the sandbox and make an empty one for the same thread, of the next generation."""
        sandboxes, target = await self._ready()
        thread_id = await self._thread_id()
        with contextlib.suppress(SessionNotFound, SessionLost):
            await sandboxes.cleanup(target)
        session = await sandboxes.create_session(CreateSessionRequest(thread_id=thread_id))
        if target.session_id is not None:
            self._target = Target(session_id=session.session_id)
        return session

    async def health(self) -> Health:
        """How the server is doing, or the service in this process."""
        return await (await self._sandboxes()).health()

    async def _thread_id(self) -> str:
        return self.thread_id or (await self.session()).thread_id

    # Commands

    async def execute(
        self, command: str, *, check: bool = False, **options: Unpack[CommandOptions]
    ) -> ExecuteResult:
        """Run bash source to its end. Working directory, variables and functions carry over.

        An exit code other than 0 is a result; with check it raises CommandFailed, which has it.
        """
        sandboxes, target = await self._ready()
        result = await sandboxes.execute(_request(target, command, **options))
        if check and result.exit_code != 0:
            raise CommandFailed(result)
        return result

    async def stream(
        self, command: str, **options: Unpack[CommandOptions]
    ) -> AsyncGenerator[CommandEvent]:
        """Run a command and yield what happens: its start, its output as it comes, its exit.

        Leaving early does not end it.
        """
        sandboxes, target = await self._ready()
        async with closing(sandboxes.stream(_request(target, command, **options))) as events:
            async for event in events:
                yield event

    async def start(
        self, command: str, *, stdin_open: bool = False, **options: Unpack[CommandOptions]
    ) -> AsyncProcess:
        """Run a command in the background. With stdin_open it takes input while it runs."""
        sandboxes, target = await self._ready()
        options.setdefault("timeout", MAX_TIMEOUT_S)
        request = _request(target, command, **options, background=True, stdin_open=stdin_open)
        started = await sandboxes.execute(request)
        sent = len((request.stdin or "").encode())
        return AsyncProcess(sandboxes, target, started.command_id, stdin_sent=sent)

    async def process(self, command_id: str) -> AsyncProcess:
        """A command that was started before, by this client or another. Raises NotFound."""
        sandboxes, target = await self._ready()
        await sandboxes.result(target, command_id)
        return AsyncProcess(sandboxes, target, command_id)

    async def commands(self) -> CommandList:
        """The commands that run in the sandbox, and the newest of those that ended."""
        sandboxes, target = await self._ready()
        return await sandboxes.commands(target)

    # Files

    async def upload_file(
        self, local_path: str | os.PathLike[str], path: str | None = None
    ) -> UploadResult:
        """Store a file of this machine; relative to /workspace, or under its own name there."""
        sandboxes, target = await self._ready()
        local = Path(local_path)
        return await sandboxes.upload_file(target, path or local.name, FileChunks(local))

    async def upload_bytes(self, data: bytes, path: str) -> UploadResult:
        """Store a file."""
        sandboxes, target = await self._ready()
        return await sandboxes.upload_file(target, path, ByteChunks(data))

    async def download_file(
        self, path: str, local_path: str | os.PathLike[str] | None = None
    ) -> Path:
        """Fetch a file, or a folder as a tar, and tell where it is.

        It goes to local_path, or into that folder, or into the current one. It is there when it is
        whole and verified, or not at all. Raises TransferCorrupted.
        """
        sandboxes, target = await self._ready()
        async with sandboxes.download_file(target, path) as download:
            return await transfer.save(download, Path(local_path or "."))

    async def download_bytes(self, path: str) -> bytes:
        """The content of a file, or a folder as a tar. Raises TransferCorrupted."""
        sandboxes, target = await self._ready()
        async with sandboxes.download_file(target, path) as download:
            return await transfer.read(download)

    async def list_files(
        self, path: str = WORKSPACE, *, recursive: bool = False, limit: int = 1000
    ) -> ListResult:
        """What is in a folder; of a file, the file itself."""
        sandboxes, target = await self._ready()
        return await sandboxes.list_files(target, path=path, recursive=recursive, limit=limit)

    async def read_text(self, path: str, *, encoding: str = "utf-8") -> str:
        """The content of a text file."""
        return (await self.download_bytes(path)).decode(encoding)

    async def write_text(self, path: str, text: str, *, encoding: str = "utf-8") -> UploadResult:
        """Store a text file."""
        return await self.upload_bytes(text.encode(encoding), path)

    async def exists(self, path: str) -> bool:
        """Whether there is a file or a folder."""
        try:
            await self.list_files(path, limit=1)
        except FileMissing:
            return False
        return True


def default_backend(server_url: str | None, api_key: str | None) -> Sandboxes:
    """The server that is given or in SANDBOX_URL; else sandboxes of this process."""
    if url := server_url or os.environ.get("SANDBOX_URL"):
        from sandbox_sdk.backends.remote import RemoteBackend

        return RemoteBackend(url, api_key=api_key)
    from sandbox_sdk.backends.local import LocalBackend

    return LocalBackend()


def _request(target: Target, command: str, **options: Any) -> ExecuteRequest:
    return _checked(ExecuteRequest, **dict(target), command=command, **options)


def _checked(model: type[_Request], **fields: Any) -> _Request:
    """What a server would refuse is refused here, with the same error."""
    try:
        return model(**fields)
    except ValidationError as exc:
        problems = "; ".join(
            f"{'.'.join(map(str, error['loc'])) or 'request'}: {error['msg']}"
            for error in exc.errors(include_url=False)
        )
        raise InvalidRequest(problems) from None
