"""Sandboxes: the interface that services implement, and that the HTTP app and clients use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import date
from typing import Any, cast

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.events import AnyEvent, CodeEvent, CommandEvent
from sandbox_sdk.protocol.operations import Ans, Operation, Req

EventsRequest = (
    models.ExecuteRequest | models.FollowRequest | models.RunCodeRequest | models.FollowCodeRequest
)
WATCH_S = 20.0
"""How long one request for events waits."""
STDIN_PIECE = 256 * 1024
"""Bytes in one request: in JSON six times as many at worst, well below the limit of a body."""


@dataclass(frozen=True)
class Download:
    """A file that is being read. A folder comes as a tar."""

    info: models.DownloadInfo
    chunks: AsyncIterator[bytes]


class Sandboxes(ABC):
    """The sandboxes of one tenant. Every method may raise any SandboxError.

    An implementation provides call, events, upload, download and connect; the other methods use
    these.
    execute, stream, upload_file and list_files make the session of a thread that has none; with a
    session_id they raise SessionNotFound instead.
    """

    same_machine = False
    """Whether they are on the caller's machine, made by the caller's user."""

    @abstractmethod
    async def call(self, operation: Operation[Req, Ans], request: Req) -> Ans:
        """Carry out an operation of the table."""

    @abstractmethod
    def events(self, request: EventsRequest) -> AsyncGenerator[AnyEvent]:
        """Run a command or code, or follow one that was started before, and yield its events."""

    @abstractmethod
    async def upload(
        self, request: models.UploadRequest, chunks: AsyncIterable[bytes]
    ) -> models.UploadResult:
        """Store a file. It appears once it is complete, or not at all."""

    @abstractmethod
    def download(
        self, request: models.DownloadRequest | models.ArtifactTarget
    ) -> AbstractAsyncContextManager[Download]:
        """Read a file, or a folder as a tar, or an artifact."""

    @abstractmethod
    def connect(self, request: models.ConnectRequest) -> AbstractAsyncContextManager[ByteChannel]:
        """A connection to a port or a unix socket of a sandbox. Its bytes count as use of the
        session; being open does not. Raises NotListening, SessionNotFound, Capacity."""

    async def _call_with(
        self, operation: Operation[Req, Ans], target: models.Target | None = None, **fields: Any
    ) -> Ans:
        """Carry out an operation with these fields of its request. Raises InvalidRequest."""
        of = {} if target is None else _of(target)
        return await self.call(operation, models.checked(operation.request, **of, **fields))

    # Sessions

    async def create_session(self, request: models.CreateSessionRequest) -> models.Session:
        """The live session of a thread, or a new one. Without thread_id, a thread of its own."""
        return await self.call(op.CREATE_SESSION, request)

    async def session(self, target: models.Target) -> models.SessionInfo:
        """The state of a session. Neither counts as a use of it, nor makes one."""
        return await self.call(op.SESSION, target)

    async def sessions(self, **wanted: Any) -> models.SessionList:
        """The live sessions, oldest first. wanted: fields of SessionsRequest."""
        return await self._call_with(op.SESSIONS, **wanted)

    async def set_lifetime(
        self, target: models.Target, lifetime_s: float, *, only_longer: bool = False
    ) -> models.SessionSummary:
        """End a session so many seconds from now, used or not; 0: as long as it is used."""
        return await self._call_with(
            op.SET_LIFETIME, target, lifetime_s=lifetime_s, only_longer=only_longer
        )

    async def set_egress(
        self, target: models.Target, *, allow: Sequence[str] = (), deny: Sequence[str] = ()
    ) -> models.SessionSummary:
        return await self._call_with(op.SET_EGRESS, target, allow=list(allow), deny=list(deny))

    async def pause(self, target: models.Target) -> models.SessionSummary:
        """Stop what runs in a session until it is used again."""
        return await self.call(op.PAUSE, target)

    async def unpause(self, target: models.Target) -> models.SessionSummary:
        """Let what runs in a paused session go on."""
        return await self.call(op.UNPAUSE, target)

    async def cleanup(self, target: models.Target) -> models.CleanupResult:
        """End a session, with its processes and files."""
        return await self.call(op.CLEANUP, target)

    async def health(self) -> models.Health:
        """The state of the server. Raises RuntimeUnavailable if none can be reached."""
        return await self._call_with(op.HEALTH)

    # Commands

    async def execute(self, request: models.ExecuteRequest) -> models.ExecuteResult:
        """Run a command to its end. It goes on if the caller leaves."""
        return await self.call(op.EXECUTE, to_run(request))

    def stream(self, request: models.ExecuteRequest) -> AsyncGenerator[CommandEvent]:
        """Run a command and yield its events as they happen."""
        return cast(AsyncGenerator[CommandEvent], self.events(to_run(request)))

    async def check(self, request: models.ExecuteRequest) -> models.Verdict:
        """What the policy says of a command. It is not run, and no session is made."""
        return await self.call(op.CHECK, models.CheckRequest(**{**dict(request), "dry_run": True}))

    def follow(
        self,
        target: models.Target,
        command_id: str,
        *,
        offset: int = 0,
        encoding: models.OutputEncoding = "utf-8",
    ) -> AsyncGenerator[CommandEvent]:
        """Follow a command that was started before, from an offset in its output on."""
        request = models.checked(
            models.FollowRequest,
            **_of(target),
            command_id=command_id,
            offset=offset,
            encoding=encoding,
        )
        return cast(AsyncGenerator[CommandEvent], self.events(request))

    async def result(self, target: models.Target, command_id: str) -> models.ExecuteResult:
        """The state of a command, with the output kept so far; `exit_code` is None while it runs.

        Neither counts as a use of the session, nor makes one. Raises NotFound for a command the box
        does not know.
        """
        return await self._call_with(op.RESULT, target, command_id=command_id)

    async def commands(self, target: models.Target) -> models.CommandList:
        """The commands of a session: running ones, and the newest of those that ended.

        Neither counts as a use of the session, nor makes one.
        """
        return await self.call(op.COMMANDS, target)

    async def signal(
        self, target: models.Target, command_id: str, *, signal: models.SignalName = "TERM"
    ) -> models.CommandInfo:
        """Send a signal to all processes of a command. KILL ends everything it has started,
        daemons included. Does nothing if the command has ended.

        Raises NotFound for a command the box does not know.
        """
        return await self._call_with(op.SIGNAL, target, command_id=command_id, signal=signal)

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

        offset is where in stdin the data belongs: what has arrived before is not written again, so
        the call may be repeated. Without it the data is appended. Raises StdinClosed, Capacity if
        the command does not read what was sent, InvalidRequest if offset leaves a hole, NotFound.
        """
        about = {**_of(target), "command_id": command_id}
        for request in _stdin_requests(about, data, eof=eof, offset=offset):
            receipt = await self.call(op.STDIN, request)
        return receipt

    async def resize(
        self, target: models.Target, command_id: str, *, rows: int, cols: int
    ) -> models.CommandInfo:
        """Set the size of the terminal of a command that was started with `pty`. Does nothing if
        the command has ended. Raises InvalidRequest if it has no terminal, NotFound."""
        return await self._call_with(op.RESIZE, target, command_id=command_id, rows=rows, cols=cols)

    # Code

    async def run_code(self, request: models.RunCodeRequest) -> models.CodeResult:
        """Run code to its end. It goes on if the caller leaves."""
        return await self.call(op.RUN_CODE, request)

    def stream_code(
        self, request: models.RunCodeRequest | models.FollowCodeRequest
    ) -> AsyncGenerator[CodeEvent]:
        """Run code, or follow a run, and yield its events as they happen."""
        return cast(AsyncGenerator[CodeEvent], self.events(request))

    async def contexts(self, target: models.Target) -> models.ContextList:
        """The contexts of a session. Neither counts as a use of it, nor makes one."""
        return await self.call(op.CONTEXTS, target)

    # Files

    async def upload_file(
        self,
        target: models.Target,
        path: str,
        chunks: AsyncIterable[bytes],
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> models.UploadResult:
        """Store a file. It appears once it is complete, or not at all."""
        request = models.checked(
            models.UploadRequest, **_of(target), path=path, metadata=dict(metadata or {})
        )
        return await self.upload(request, chunks)

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
        depth: int | None = None,
        limit: int = 1000,
    ) -> models.ListResult:
        """What is in a folder."""
        asked = {"path": path, "recursive": recursive, "depth": depth, "limit": limit}
        return await self._call_with(op.LIST_FILES, target, **asked)

    async def stat(
        self, target: models.Target, path: str, *, follow: bool = False
    ) -> models.FileEntry:
        """What is at a path. Raises FileMissing."""
        return await self._call_with(op.STAT, target, path=path, follow=follow)

    async def mkdir(self, target: models.Target, path: str) -> models.MkdirResult:
        """Make a folder, with those on the way. Raises InvalidPath where a file is in the way."""
        return await self._call_with(op.MKDIR, target, path=path)

    async def remove(
        self, target: models.Target, path: str, *, recursive: bool = True
    ) -> models.RemoveResult:
        """Remove a file, a link, or a folder with all in it. Raises FileMissing, InvalidPath."""
        return await self._call_with(op.REMOVE, target, path=path, recursive=recursive)

    # What the operator has declared

    async def registry(self) -> models.RegistryList:
        """The agents, tools and environments there are."""
        return await self._call_with(op.REGISTRY)

    async def call_tool(self, request: models.CallToolRequest) -> models.ToolAnswer:
        """Carry out a tool in the session of a thread, for its model."""
        return await self.call(op.CALL_TOOL, request)

    # What stays after the end of a session

    async def artifacts(
        self, *, thread_id: str | None = None, session_id: str | None = None, limit: int = 100
    ) -> models.ArtifactList:
        """The files that runs have made, newest first; of one thread or session, or of all."""
        return await self._call_with(
            op.ARTIFACTS, thread_id=thread_id, session_id=session_id, limit=limit
        )

    def download_artifact(self, artifact_id: str) -> AbstractAsyncContextManager[Download]:
        """Read an artifact. Raises NotFound."""
        return self.download(models.checked(models.ArtifactTarget, artifact_id=artifact_id))

    async def delete_artifact(self, artifact_id: str) -> models.ArtifactDeleted:
        """Delete an artifact. Raises NotFound."""
        return await self._call_with(op.DELETE_ARTIFACT, artifact_id=artifact_id)

    async def stored_sessions(self, **wanted: Any) -> models.StoredSessionList:
        """The sessions there were, newest first. wanted: fields of StoredSessionsRequest."""
        return await self._call_with(op.STORED_SESSIONS, **wanted)

    async def stored_session(self, session_id: str) -> models.StoredSessionDetail:
        """What is stored of a session, live or not. Raises SessionNotFound."""
        return await self._call_with(op.STORED_SESSION, session_id=session_id)

    # Checkpoints

    async def checkpoint(self, request: models.CheckpointRequest) -> models.Checkpoint:
        """Copy the files and the shell state of a session. Raises DiskFull, Conflict."""
        return await self.call(op.CHECKPOINT, request)

    async def checkpoints(
        self, *, thread_id: str | None = None, limit: int = 100
    ) -> models.CheckpointList:
        """The checkpoints of one thread or of all, newest first."""
        return await self._call_with(op.CHECKPOINTS, thread_id=thread_id, limit=limit)

    async def get_checkpoint(self, checkpoint_id: str) -> models.Checkpoint:
        """Raises CheckpointNotFound."""
        return await self._call_with(op.GET_CHECKPOINT, checkpoint_id=checkpoint_id)

    async def delete_checkpoint(self, checkpoint_id: str) -> models.CheckpointDeleted:
        """Raises CheckpointNotFound."""
        return await self._call_with(op.DELETE_CHECKPOINT, checkpoint_id=checkpoint_id)

    async def restore(self, request: models.RestoreRequest) -> models.Session:
        """Take a thread back to a checkpoint. Raises CheckpointNotFound, CheckpointDamaged."""
        return await self.call(op.RESTORE, request)

    async def fork(self, request: models.ForkRequest) -> models.ForkResult:
        """Begin threads from another one, or from a checkpoint. Raises Conflict."""
        return await self.call(op.FORK, request)

    async def history(self, thread_id: str, *, limit: int = 20) -> models.ThreadHistory:
        """The commands of a thread that was made with history, newest first."""
        return await self._call_with(op.HISTORY, thread_id=thread_id, limit=limit)

    async def changes(self, thread_id: str, number: int) -> models.CommandChanges:
        """What one of them did to the files in /workspace. Raises NotFound."""
        return await self._call_with(op.CHANGES, thread_id=thread_id, number=number)

    async def undo(self, request: models.UndoRequest) -> models.Undone:
        """Take a thread back to before a command. Raises NotFound."""
        return await self.call(op.UNDO, request)

    # Volumes

    async def volumes(self) -> models.VolumeList:
        """The volumes there are, by name."""
        return await self._call_with(op.VOLUMES)

    async def create_volume(self, name: str, *, size: int | str | None = None) -> models.Volume:
        """Make an empty volume. Raises Conflict if there is one of the name, DiskFull."""
        return await self._call_with(op.CREATE_VOLUME, name=name, size=size)

    async def delete_volume(self, name: str) -> models.VolumeDeleted:
        """Delete a volume. Raises VolumeNotFound, Conflict while a session has it."""
        return await self._call_with(op.DELETE_VOLUME, name=name)

    # Usage

    async def usage(
        self,
        *,
        by: models.UsageBy = "day",
        since: date | None = None,
        until: date | None = None,
        thread_id: str | None = None,
    ) -> models.UsageReport:
        """What was used, by day, thread or session. Raises InvalidRequest."""
        return await self._call_with(op.USAGE, by=by, since=since, until=until, thread_id=thread_id)

    # Events

    async def happenings(self, request: models.HappeningsRequest) -> models.HappeningList:
        """What has happened since a position. Raises InvalidRequest."""
        return await self.call(op.EVENTS, request)

    async def watch(
        self,
        *,
        thread_id: str | None = None,
        kind: models.HappeningKind | None = None,
        after: str | None = None,
    ) -> AsyncGenerator[models.Happening]:
        """What happens, without an end. after: the id of the last event that was seen."""
        first = models.checked(
            models.HappeningsRequest, after=after, thread_id=thread_id, kind=kind
        )
        position = (await self.happenings(first)).next if after is None else after
        while True:
            request = first.model_copy(update={"after": position, "wait": WATCH_S})
            found = await self.happenings(request)
            for event in found.events:
                yield event
            position = found.next

    # Previews

    async def expose(
        self, target: models.Target, port: int, *, public: bool = False
    ) -> models.Preview:
        """A URL for browsers of what listens at a port. Raises SessionNotFound, Capacity."""
        return await self._call_with(op.EXPOSE, target, port=port, public=public)

    async def previews(self, target: models.Target) -> models.PreviewList:
        """The ports of a session that are exposed, without their tokens."""
        return await self.call(op.PREVIEWS, target)

    async def unexpose(self, target: models.Target, port: int) -> models.Unexposed:
        """End a preview. Raises NotFound."""
        return await self._call_with(op.UNEXPOSE, target, port=port)


class Tenants(ABC):
    """The sandboxes of all tenants. The same thread_id of two tenants is two threads, and a tenant
    never sees those of another."""

    @abstractmethod
    def of(self, tenant: str) -> Sandboxes:
        """The sandboxes of one tenant."""

    @abstractmethod
    async def health(self) -> models.Health:
        """The state of the server. Raises RuntimeUnavailable if none can be reached."""


def to_run(request: models.ExecuteRequest) -> models.ExecuteRequest:
    """The request, unless it is a dry run. Raises InvalidRequest: a dry run is for check()."""
    if request.dry_run:
        raise InvalidRequest(
            "dry_run is true, so the command is not run; use check() for its verdict"
        )
    return request


def _of(target: models.Target) -> dict[str, str | None]:
    """The fields that name a sandbox, also of a request with more fields."""
    return {"thread_id": target.thread_id, "session_id": target.session_id}


def _stdin_requests(
    about: dict[str, Any], data: bytes, *, eof: bool, offset: int | None
) -> Iterator[models.StdinRequest]:
    """The requests that send data: at least one, also for no data."""
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
    """Data as text if it is UTF-8, otherwise in base64."""
    try:
        return {"data": piece.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"data": b64encode(piece).decode(), "encoding": "base64"}
