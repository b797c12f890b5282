"""Sandboxes: the one interface. A service offers it, the HTTP app and the clients use it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from sandbox_sdk.protocol.errors import InvalidRequest
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
    Verdict,
)


@dataclass(frozen=True)
class Download:
    """A file on its way out. A folder comes as a tar."""

    info: DownloadInfo
    chunks: AsyncIterator[bytes]


def to_run(request: ExecuteRequest) -> ExecuteRequest:
    """A request that is to be run. Raises InvalidRequest for a dry run, which check answers."""
    if request.dry_run:
        raise InvalidRequest("a dry run is never run; ask check() what the policy says")
    return request


class closing:  # noqa: N801 - it is used like contextlib's
    """Iterators of backends hold connections: whoever leaves one early closes it.

    A class: a loop that shuts down closes generators in any order, also those of decorators.
    """

    def __init__(self, events: AsyncIterator[CommandEvent]) -> None:
        self._events = events

    async def __aenter__(self) -> AsyncIterator[CommandEvent]:
        return self._events

    async def __aexit__(self, *exc_info: object) -> None:
        if isinstance(self._events, AsyncGenerator):
            await self._events.aclose()


class Sandboxes(ABC):
    """The operations of the wire contract. Every method may raise any SandboxError.

    A thread belongs to a tenant: the same thread_id under two tenants is two threads, and one that
    belongs to somebody else does not exist. execute, stream, upload_file and list_files make the
    session of a thread_id they do not know; by session_id they raise SessionNotFound.
    """

    @abstractmethod
    async def create_session(
        self, request: CreateSessionRequest, *, tenant: str = DEFAULT_TENANT
    ) -> Session:
        """The live session of a thread, or a new one. Without thread_id, a thread of its own."""

    @abstractmethod
    async def execute(
        self, request: ExecuteRequest, *, tenant: str = DEFAULT_TENANT
    ) -> ExecuteResult:
        """Run a command to its end. It goes on when the caller leaves."""

    @abstractmethod
    def stream(
        self, request: ExecuteRequest, *, tenant: str = DEFAULT_TENANT
    ) -> AsyncIterator[CommandEvent]:
        """Run a command and yield what happens as it happens."""

    @abstractmethod
    async def check(self, request: ExecuteRequest, *, tenant: str = DEFAULT_TENANT) -> Verdict:
        """What the policy says of a command. It is not run, and no session is made."""

    @abstractmethod
    def follow(
        self, target: Target, command_id: str, *, offset: int = 0, tenant: str = DEFAULT_TENANT
    ) -> AsyncIterator[CommandEvent]:
        """Go on with a command that was started before, from an offset in its output on."""

    @abstractmethod
    async def result(
        self, target: Target, command_id: str, *, tenant: str = DEFAULT_TENANT
    ) -> ExecuteResult:
        """How a command stands, with the output kept so far; `exit_code` is None while it runs.

        Neither a use of the session, nor does it make one. Raises NotFound for a command the box
        does not know.
        """

    @abstractmethod
    async def commands(self, target: Target, *, tenant: str = DEFAULT_TENANT) -> CommandList:
        """The commands a session knows, running ones and the newest of those that ended.

        Neither a use of the session, nor does it make one.
        """

    @abstractmethod
    async def signal(
        self,
        target: Target,
        command_id: str,
        *,
        signal: SignalName = "TERM",
        tenant: str = DEFAULT_TENANT,
    ) -> CommandInfo:
        """Send a signal to all processes of a command. KILL ends everything it has started,
        daemons included. For a command that has ended nothing is done; that is no error.

        Raises NotFound for a command the box does not know.
        """

    @abstractmethod
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
        """Input for a command that was started with `stdin_open`; with eof, the last of it.

        offset is where in stdin the data belongs: what has come before is not written again, so
        the same call may be repeated. Without it the data goes to the end. Raises StdinClosed,
        Capacity where the command does not read what it has been sent, InvalidRequest where
        offset leaves a hole, and NotFound.
        """

    @abstractmethod
    async def upload_file(
        self,
        target: Target,
        path: str,
        chunks: AsyncIterable[bytes],
        *,
        tenant: str = DEFAULT_TENANT,
    ) -> UploadResult:
        """Store a file. It appears when it is whole, or not at all."""

    @abstractmethod
    def download_file(
        self, target: Target, path: str, *, tenant: str = DEFAULT_TENANT
    ) -> AbstractAsyncContextManager[Download]:
        """Read a file, or a folder as a tar."""

    @abstractmethod
    async def list_files(
        self,
        target: Target,
        *,
        path: str = WORKSPACE,
        recursive: bool = False,
        limit: int = 1000,
        tenant: str = DEFAULT_TENANT,
    ) -> ListResult:
        """What is in a folder."""

    @abstractmethod
    async def session(self, target: Target, *, tenant: str = DEFAULT_TENANT) -> SessionInfo:
        """How a session is doing. Neither a use of it, nor does it make one."""

    @abstractmethod
    async def sessions(self, *, tenant: str = DEFAULT_TENANT) -> SessionList:
        """The live sessions of the tenant, oldest first."""

    @abstractmethod
    async def cleanup(self, target: Target, *, tenant: str = DEFAULT_TENANT) -> CleanupResult:
        """End a session and all that is in it."""

    @abstractmethod
    async def health(self) -> Health:
        """How the whole is doing. Raises RuntimeUnavailable where there is nobody to ask."""
