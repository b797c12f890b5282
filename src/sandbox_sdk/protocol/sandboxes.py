"""Sandboxes: the one interface. A service offers it, the HTTP app and the clients use it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.events import CommandEvent
from sandbox_sdk.protocol.operations import Ans, Operation, Req

STDIN_PIECE = 256 * 1024
"""Six times as long in JSON at worst: well within what a body may have."""


@dataclass(frozen=True)
class Download:
    """A file on its way out. A folder comes as a tar."""

    info: models.DownloadInfo
    chunks: AsyncIterator[bytes]


class Sandboxes(ABC):
    """The sandboxes of one tenant. Every method may raise any SandboxError.

    An implementation provides call, events, upload and download; the rest is made of these.
    execute, stream, upload_file and list_files make the session of a thread_id they do not know; by
    session_id they raise SessionNotFound.
    """

    @abstractmethod
    async def call(self, operation: Operation[Req, Ans], request: Req) -> Ans:
        """Carry out an operation of the table."""

    @abstractmethod
    def events(
        self, request: models.ExecuteRequest | models.FollowRequest
    ) -> AsyncGenerator[CommandEvent]:
        """Run a command, or go on with one that was started before, and yield what happens."""

    @abstractmethod
    async def upload(
        self, request: models.UploadRequest, chunks: AsyncIterable[bytes]
    ) -> models.UploadResult:
        """Store a file. It appears when it is whole, or not at all."""

    @abstractmethod
    def download(self, request: models.DownloadRequest) -> AbstractAsyncContextManager[Download]:
        """Read a file, or a folder as a tar."""

    # Sessions

    async def create_session(self, request: models.CreateSessionRequest) -> models.Session:
        """The live session of a thread, or a new one. Without thread_id, a thread of its own."""
        return await self.call(op.CREATE_SESSION, request)

    async def session(self, target: models.Target) -> models.SessionInfo:
        """How a session is doing. Neither a use of it, nor does it make one."""
        return await self.call(op.SESSION, target)

    async def sessions(self) -> models.SessionList:
        """The live sessions, oldest first."""
        return await self.call(op.SESSIONS, models.EmptyRequest())

    async def cleanup(self, target: models.Target) -> models.CleanupResult:
        """End a session and all that is in it."""
        return await self.call(op.CLEANUP, target)

    async def health(self) -> models.Health:
        """How the whole is doing. Raises RuntimeUnavailable where there is nobody to ask."""
        return await self.call(op.HEALTH, models.EmptyRequest())

    # Commands

    async def execute(self, request: models.ExecuteRequest) -> models.ExecuteResult:
        """Run a command to its end. It goes on when the caller leaves."""
        return await self.call(op.EXECUTE, to_run(request))

    def stream(self, request: models.ExecuteRequest) -> AsyncGenerator[CommandEvent]:
        """Run a command and yield what happens as it happens."""
        return self.events(to_run(request))

    async def check(self, request: models.ExecuteRequest) -> models.Verdict:
        """What the policy says of a command. It is not run, and no session is made."""
        return await self.call(op.CHECK, models.CheckRequest(**{**dict(request), "dry_run": True}))

    def follow(
        self, target: models.Target, command_id: str, *, offset: int = 0
    ) -> AsyncGenerator[CommandEvent]:
        """Go on with a command that was started before, from an offset in its output on."""
        request = models.checked(
            models.FollowRequest, **_of(target), command_id=command_id, offset=offset
        )
        return self.events(request)

    async def result(self, target: models.Target, command_id: str) -> models.ExecuteResult:
        """How a command stands, with the output kept so far; `exit_code` is None while it runs.

        Neither a use of the session, nor does it make one. Raises NotFound for a command the box
        does not know.
        """
        request = models.checked(models.CommandTarget, **_of(target), command_id=command_id)
        return await self.call(op.RESULT, request)

    async def commands(self, target: models.Target) -> models.CommandList:
        """The commands a session knows, running ones and the newest of those that ended.

        Neither a use of the session, nor does it make one.
        """
        return await self.call(op.COMMANDS, target)

    async def signal(
        self, target: models.Target, command_id: str, *, signal: models.SignalName = "TERM"
    ) -> models.CommandInfo:
        """Send a signal to all processes of a command. KILL ends everything it has started,
        daemons included. For a command that has ended nothing is done; that is no error.

        Raises NotFound for a command the box does not know.
        """
        request = models.checked(
            models.SignalRequest, **_of(target), command_id=command_id, signal=signal
        )
        return await self.call(op.SIGNAL, request)

    async def send_stdin(
        self,
        target: models.Target,
        command_id: str,
        data: bytes,
        *,
        eof: bool = False,
        offset: int | None = None,
    ) -> models.StdinReceipt:
        """Input for a command that was started with `stdin_open`; with eof, the last of it.

        offset is where in stdin the data belongs: what has come before is not written again, so
        the same call may be repeated. Without it the data goes to the end. Raises StdinClosed,
        Capacity where the command does not read what it has been sent, InvalidRequest where
        offset leaves a hole, and NotFound.
        """
        about = {**_of(target), "command_id": command_id}
        for request in _stdin_requests(about, data, eof=eof, offset=offset):
            receipt = await self.call(op.STDIN, request)
        return receipt

    # Files

    async def upload_file(
        self, target: models.Target, path: str, chunks: AsyncIterable[bytes]
    ) -> models.UploadResult:
        """Store a file. It appears when it is whole, or not at all."""
        return await self.upload(
            models.checked(models.UploadRequest, **_of(target), path=path), chunks
        )

    def download_file(
        self, target: models.Target, path: str
    ) -> AbstractAsyncContextManager[Download]:
        """Read a file, or a folder as a tar."""
        return self.download(models.checked(models.DownloadRequest, **_of(target), path=path))

    async def list_files(
        self,
        target: models.Target,
        *,
        path: str = models.WORKSPACE,
        recursive: bool = False,
        limit: int = 1000,
    ) -> models.ListResult:
        """What is in a folder."""
        request = models.checked(
            models.ListRequest, **_of(target), path=path, recursive=recursive, limit=limit
        )
        return await self.call(op.LIST_FILES, request)


class Tenants(ABC):
    """The sandboxes of all tenants. The same thread_id under two tenants is two threads, and what
    belongs to somebody else does not exist."""

    @abstractmethod
    def of(self, tenant: str) -> Sandboxes:
        """Those of one tenant."""

    @abstractmethod
    async def health(self) -> models.Health:
        """How the whole is doing. Raises RuntimeUnavailable where there is nobody to ask."""


def to_run(request: models.ExecuteRequest) -> models.ExecuteRequest:
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


def _of(target: models.Target) -> dict[str, str | None]:
    """Whose sandbox is meant: also of a request that says more."""
    return {"thread_id": target.thread_id, "session_id": target.session_id}


def _stdin_requests(
    about: dict[str, Any], data: bytes, *, eof: bool, offset: int | None
) -> Iterator[models.StdinRequest]:
    """At least one, however little there is."""
    for at in range(0, len(data) or 1, STDIN_PIECE):
        piece = data[at : at + STDIN_PIECE]
        yield models.checked(
            models.StdinRequest,
            **about,
            **_as_text(piece),
            eof=eof and at + STDIN_PIECE >= len(data),
            offset=None if offset is None else offset + at,
        )


def _as_text(piece: bytes) -> dict[str, str]:
    """How input travels: as it is where that is possible."""
    try:
        return {"data": piece.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"data": b64encode(piece).decode(), "encoding": "base64"}
