"""AsyncSandboxClient: one conversation's sandbox, wherever it runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

from sandbox_sdk import transfer
from sandbox_sdk.connection import Connection, command_request
from sandbox_sdk.documented import takes_options, with_contents
from sandbox_sdk.errors import CommandFailed
from sandbox_sdk.options import CommandOptions
from sandbox_sdk.process import AsyncProcess
from sandbox_sdk.protocol.errors import (
    FileMissing,
    RuntimeUnavailable,
    SandboxError,
    SessionLost,
    SessionNotFound,
)
from sandbox_sdk.protocol.events import CommandEvent
from sandbox_sdk.protocol.models import (
    WORKSPACE,
    CleanupResult,
    CommandList,
    ExecuteResult,
    FileEntry,
    Health,
    ListResult,
    RenameRequest,
    Session,
    SessionInfo,
    SessionList,
    Target,
    UploadResult,
    Verdict,
    checked,
)
from sandbox_sdk.protocol.operations import RENAME
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_sdk.transfer import ByteChunks, FileChunks

METHODS = {
    "Sessions": (
        "create_session", "session", "sessions", "cleanup", "restart", "health", "thread_id",
        "close",
    ),
    "Commands": ("execute", "stream", "start", "process", "commands", "check"),
    "Files": (
        "upload_file", "upload_bytes", "download_file", "download_bytes", "read_text",
        "write_text", "list_files", "exists", "rename",
    ),
}  # fmt: skip
"""The methods of a client, as its docstring lists them."""


@with_contents(METHODS)
class AsyncSandboxClient:
    """The sandbox of one thread. It is made at its first use.

        >>> async def main():
        ...     async with AsyncSandboxClient() as sandbox:
        ...         await sandbox.write_text("numbers.txt", "1 2 3")
        ...         result = await sandbox.execute("wc -w < numbers.txt")
        ...         return result.output, result.exit_code
        >>> asyncio.run(main())
        ('3\\n', 0)

    With `server_url`, or SANDBOX_URL in the environment, it is on that server; otherwise this
    process makes it (see LocalBackend). `api_key` is SANDBOX_API_KEY unless given. `backend`
    overrides all of these.

    A client with a `thread_id` (or a `session_id`) shares that sandbox with every other client that
    has the same, now and later; closing the client leaves the sandbox alone. A client without one
    has a sandbox of its own, which ends when the client is closed.

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
        if backend is None:
            backend = default_backend(server_url, api_key)
        elif server_url is not None or api_key is not None:
            raise ValueError(
                "backend has a server_url and api_key of its own: give one or the other"
            )
        self._connection = Connection(backend, thread_id=thread_id, session_id=session_id)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._connection}>"

    @property
    def thread_id(self) -> str | None:
        """The thread of the sandbox. None for a client with a session_id, and until a sandbox of
        its own is made."""
        return self._connection.thread_id

    async def __aenter__(self) -> Self:
        await self._connection.opened()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A server that has just proved unreachable is not asked to clean up.
        await self._connection.close(cleanup=not isinstance(exc, RuntimeUnavailable))

    async def close(self) -> None:
        """Close the connection and end a sandbox of the client's own. May be called twice."""
        await self._connection.close()

    # Sessions

    async def create_session(
        self,
        *,
        environment: str | None = None,
        env: Mapping[str, str] | None = None,
        idle_timeout_s: float | None = None,
    ) -> Session:
        """Make the sandbox now, with settings of its own: the first use makes one without them.

        environment: a name out of the server's SANDBOX_ENVIRONMENTS; by default its usual image.
        env: variables of every command.
        idle_timeout_s: seconds without use after which it ends, at most a day; by default the
            server's, half an hour unless configured.

        `status` says whether it existed before, and `not_applied` which of these settings such a
        sandbox does not have: to have them, cleanup() first.
        """
        return await self._connection.make(
            environment=environment, env=env or {}, idle_timeout_s=idle_timeout_s
        )

    async def session(self) -> SessionInfo:
        """The state of the sandbox. Neither counts as a use, nor makes the one of a thread."""
        sandboxes, target = await self._connection.ready()
        return await sandboxes.session(target)

    async def sessions(self) -> SessionList:
        """All live sessions of this server and key, or of this machine's user."""
        return await (await self._connection.opened()).sessions()

    async def cleanup(self) -> CleanupResult:
        """End the sandbox, with its files. The next use of its thread makes a new one."""
        sandboxes, target = await self._connection.ready()
        return await sandboxes.cleanup(target)

    async def restart(self, *, env: Mapping[str, str] | None = None) -> Session:
        """End the sandbox and make an empty one for its thread, with the next generation.

        Environment and idle timeout stay as they were; variables are those given here.
        """
        sandboxes, target = await self._connection.ready()
        before = None if target.thread_id else await sandboxes.session(target)
        ended = CleanupResult()
        with contextlib.suppress(SessionNotFound, SessionLost):
            ended = await sandboxes.cleanup(target)
        return await self._connection.make(
            again=before,
            environment=ended.environment,
            env=env or {},
            idle_timeout_s=ended.idle_timeout_s,
        )

    async def health(self) -> Health:
        """The state of the server, or of the service in this process."""
        return await (await self._connection.opened()).health()

    # Commands

    @takes_options()
    async def execute(
        self, command: str, *, check: bool = False, **options: Unpack[CommandOptions]
    ) -> ExecuteResult:
        """Run bash source to its end. Working directory, variables and functions carry over.

        With check, an exit code other than 0 raises CommandFailed, which has the result.
        """
        sandboxes, target = await self._connection.ready()
        result = await sandboxes.execute(command_request(target, command, **options))
        if check and result.exit_code != 0:
            raise await _failure(sandboxes, target, result)
        return result

    async def check(self, command: str) -> Verdict:
        """What the policy says of a command, and which simple commands it found. Nothing runs."""
        sandboxes, target = await self._connection.ready()
        return await sandboxes.check(command_request(target, command))

    @takes_options()
    async def stream(
        self, command: str, *, stdin_open: bool = False, **options: Unpack[CommandOptions]
    ) -> AsyncGenerator[CommandEvent]:
        """Run a command and yield what happens: its start, its output as it comes, its exit.

        Leaving early does not end it. With stdin_open it takes input while it runs, from the
        process() of its command_id.
        """
        sandboxes, target = await self._connection.ready()
        request = command_request(target, command, **options, stdin_open=stdin_open)
        async with aclosing(sandboxes.stream(request)) as events:
            async for event in events:
                yield event

    @takes_options()
    async def start(
        self, command: str, *, stdin_open: bool = False, **options: Unpack[CommandOptions]
    ) -> AsyncProcess:
        """Run a command in the background. With stdin_open it takes input while it runs.

        Unless a timeout is given it runs until it ends, is killed, or its session ends; while it
        runs, the session does not expire.
        """
        sandboxes, target = await self._connection.ready()
        request = command_request(
            target, command, **options, background=True, stdin_open=stdin_open
        )
        started = await sandboxes.execute(request)
        return AsyncProcess(sandboxes, target, started.command_id)

    async def process(self, command_id: str) -> AsyncProcess:
        """A command that was started before, by this client or another. Raises NotFound."""
        sandboxes, target = await self._connection.ready()
        await sandboxes.result(target, command_id)
        return AsyncProcess(sandboxes, target, command_id)

    async def commands(self) -> CommandList:
        """The commands that run in the sandbox, and the newest of those that ended."""
        sandboxes, target = await self._connection.ready()
        return await sandboxes.commands(target)

    # Files

    async def upload_file(
        self, local_path: str | os.PathLike[str], path: str | None = None
    ) -> UploadResult:
        """Store a file of this machine; path is relative to /workspace, by default its own name."""
        sandboxes, target = await self._connection.ready()
        local = Path(local_path)
        return await sandboxes.upload_file(target, path or local.name, FileChunks(local))

    async def upload_bytes(self, data: bytes, path: str) -> UploadResult:
        """Store a file."""
        sandboxes, target = await self._connection.ready()
        return await sandboxes.upload_file(target, path, ByteChunks(data))

    async def download_file(
        self, path: str, local_path: str | os.PathLike[str] | None = None
    ) -> Path:
        """Fetch a file, or a folder as a tar, and return where it was written.

        That is local_path, or a file in it if it is a folder; by default the current folder. It is
        there once it is complete and verified, or not at all. Raises TransferCorrupted.
        """
        sandboxes, target = await self._connection.ready()
        async with sandboxes.download_file(target, path) as download:
            return await transfer.save(download, Path(local_path or "."))

    async def download_bytes(self, path: str) -> bytes:
        """The content of a file, or a folder as a tar. Raises TransferCorrupted."""
        sandboxes, target = await self._connection.ready()
        async with sandboxes.download_file(target, path) as download:
            return await transfer.read(download)

    async def list_files(
        self, path: str = WORKSPACE, *, recursive: bool = False, limit: int = 1000
    ) -> ListResult:
        """What is in a folder; of a file, the file itself.

        recursive: also what is in folders below. limit: the most entries, at most 100,000; the
        answer's `truncated` says whether there are more.
        """
        sandboxes, target = await self._connection.ready()
        return await sandboxes.list_files(target, path=path, recursive=recursive, limit=limit)

    async def rename(self, path: str, to: str, *, replace: bool = False) -> FileEntry:
        """Move a file or a folder, and return its new entry. Missing parent folders are made.

        replace: whether a file that is there already goes; a folder never does.
        """
        sandboxes, target = await self._connection.ready()
        request = checked(RenameRequest, **dict(target), path=path, to=to, replace=replace)
        return await sandboxes.call(RENAME, request)

    async def read_text(self, path: str, *, encoding: str = "utf-8") -> str:
        """The content of a text file."""
        return (await self.download_bytes(path)).decode(encoding)

    async def write_text(self, path: str, text: str, *, encoding: str = "utf-8") -> UploadResult:
        """Store a text file."""
        return await self.upload_bytes(text.encode(encoding), path)

    async def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        try:
            await self.list_files(path, limit=1)
        except FileMissing:
            return False
        return True


async def _failure(sandboxes: Sandboxes, target: Target, result: ExecuteResult) -> CommandFailed:
    """The error for a command that failed; only the session knows how much memory it had."""
    if result.reason == "oom":
        with contextlib.suppress(SandboxError):
            limits = (await sandboxes.session(target)).limits
            return CommandFailed(result, memory_bytes=limits.memory_bytes)
    return CommandFailed(result)


def default_backend(server_url: str | None, api_key: str | None) -> Sandboxes:
    """The server that is given or in SANDBOX_URL; otherwise this process."""
    if url := server_url or os.environ.get("SANDBOX_URL"):
        from sandbox_sdk.backends.remote import RemoteBackend

        return RemoteBackend(url, api_key=api_key)
    from sandbox_sdk.backends.local import LocalBackend

    return LocalBackend()
