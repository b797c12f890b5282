"""Every operation of the wire contract, declared once.

The HTTP routes, the OpenAPI document, the client's retries and the coordinator's routing are all
read from this table. Events, uploads and downloads are more than one request and one answer: they
have methods of their own in sandboxes.py.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from sandbox_sdk.protocol import errors, models
from sandbox_sdk.protocol.errors import SandboxError

Req = TypeVar("Req", bound=models.Request)
Ans = TypeVar("Ans", bound=models.Model)

Scope = Literal["use", "read", "public"]
Tag = Literal[
    "sandboxes", "code", "commands", "sessions", "files", "registry", "artifacts", "platform",
    "checkpoints", "volumes", "previews",
]  # fmt: skip

OF_SESSION = (errors.SessionNotFound, errors.SessionLost)
OF_COMMAND = (*OF_SESSION, errors.NotFound)
OF_FILE = (errors.InvalidPath, errors.FileMissing)
OF_EXECUTE = (
    *OF_SESSION,
    errors.CommandRejected,
    errors.IdempotencyMismatch,
    errors.InvalidPath,
    errors.Capacity,
)

OF_KERNEL = (errors.KernelMissing, errors.KernelFailed, errors.ContextLost)
OF_CODE = (
    *OF_SESSION,
    errors.CommandRejected,
    errors.IdempotencyMismatch,
    *OF_KERNEL,
    errors.ContextNotFound,
    errors.Capacity,
)
OF_CHECKPOINT = (errors.CheckpointNotFound, errors.CheckpointDamaged)
OF_VOLUMES = (errors.VolumeNotFound, errors.Conflict, errors.DiskFull)
OF_CONTEXT = (*OF_SESSION, errors.ContextNotFound, errors.ContextLost)


def always(_request: Any) -> bool:
    return True


def never(_request: Any) -> bool:
    return False


_Keyed = TypeVar(
    "_Keyed",
    bound=models.ExecuteRequest
    | models.RunCodeRequest
    | models.CallToolRequest
    | models.CheckpointRequest
    | models.RestoreRequest
    | models.ForkRequest
    | models.UndoRequest,
)


def keyed(request: _Keyed) -> _Keyed:
    """The request with an idempotency key: sent any number of times, the command runs once."""
    if request.idempotency_key is not None:
        return request
    return request.model_copy(update={"idempotency_key": os.urandom(16).hex()})  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True, eq=False)
class Operation(Generic[Req, Ans]):
    """One operation: all there is to it except the handler that carries it out."""

    name: str
    """Also the operation id in the OpenAPI document."""
    method: Literal["GET", "POST"]
    path: str
    """May have names of the request in braces, such as `/api/sessions/{session_id}`."""
    request: type[Req]
    """The JSON body of a POST, the query of a GET; without what is in the path."""
    answer: type[Ans]
    summary: str
    description: str
    tag: Tag = "sandboxes"
    scope: Scope = "use"
    """What an API key has to allow: to use sandboxes, or to read about them. Public: no key."""
    creates: bool = False
    """Whether any worker may serve it if the thread has no session yet."""
    repeatable: Callable[[Req], bool] = always
    """Whether it may be carried out twice, so that it is retried after a broken connection."""
    prepare: Callable[[Req], Req] | None = None
    """Makes a request repeatable before it is first sent."""
    status: Callable[[Ans], int] | None = None
    """The HTTP status of an answer, where it is not always 200."""
    errors: tuple[type[SandboxError], ...] = ()
    """Besides those that every operation may raise."""

    def __repr__(self) -> str:
        return f"<Operation {self.name}>"


Handlers = Mapping[Operation[Any, Any], Callable[[str, Any], Awaitable[Any]]]
"""The function for each operation; it takes the tenant and the request."""

CREATE_SESSION = Operation(
    name="create_session",
    method="POST",
    path="/create_session",
    request=models.CreateSessionRequest,
    answer=models.Session,
    summary="Make a session, or find the live one",
    description="The live session of a thread, or a new one. Without a thread_id the session is a "
    "thread of its own, named like the session.",
    creates=True,
    # Without a thread_id each call makes another.
    repeatable=lambda request: request.thread_id is not None,
    status=lambda session: 201 if session.status == "created" else 200,
    errors=(
        errors.Capacity,
        errors.EnvironmentBuilding,
        errors.EnvironmentFailed,
        *OF_CHECKPOINT,
        *OF_VOLUMES,
    ),
)
EXECUTE = Operation(
    name="execute",
    method="POST",
    path="/execute",
    request=models.ExecuteRequest,
    answer=models.ExecuteResult,
    summary="Run a command",
    description="Run bash source in the session of a thread, which is made where there is none. "
    "Working directory, variables, functions and options carry over to the next command.",
    creates=True,
    repeatable=lambda request: request.idempotency_key is not None,
    prepare=keyed,
    errors=OF_EXECUTE,
)
CHECK = Operation(
    name="check",
    method="POST",
    path="/execute",
    request=models.CheckRequest,
    answer=models.Verdict,
    summary="See what the policy says of a command",
    description="What the policy says of a command. It is not run, and no session is made.",
    creates=True,
    errors=OF_EXECUTE,
)
RESULT = Operation(
    name="command",
    method="GET",
    path="/command",
    request=models.CommandTarget,
    answer=models.ExecuteResult,
    summary="See how a command stands",
    description="How a command stands, with the output kept so far; `exit_code` is null while it "
    "runs. Asking does not count as use of the session.",
    tag="commands",
    scope="read",
    errors=OF_COMMAND,
)
COMMANDS = Operation(
    name="commands",
    method="GET",
    path="/commands",
    request=models.Target,
    answer=models.CommandList,
    summary="See which commands a session knows",
    description="The commands a session knows: those that run, and the newest of those that ended. "
    "Asking does not count as use of the session.",
    tag="commands",
    scope="read",
    errors=OF_SESSION,
)
SIGNAL = Operation(
    name="signal",
    method="POST",
    path="/command/signal",
    request=models.SignalRequest,
    answer=models.CommandInfo,
    summary="Send a signal to a command",
    description="Send a signal to all processes of a command. `KILL` ends everything it has "
    "started, daemons included. A command that has ended is left alone, and answered as it is.",
    tag="commands",
    # A handler must not run twice. There is none for KILL.
    repeatable=lambda request: request.signal == "KILL",
    errors=OF_COMMAND,
)
STDIN = Operation(
    name="stdin",
    method="POST",
    path="/command/stdin",
    request=models.StdinRequest,
    answer=models.StdinReceipt,
    summary="Send input to a command",
    description="Send input to a command that was started with `stdin_open`. With an `offset` the "
    "call may be repeated: what has come before is not written again.",
    tag="commands",
    repeatable=lambda request: request.offset is not None,
    errors=(*OF_COMMAND, errors.StdinClosed, errors.Capacity),
)
RESIZE = Operation(
    name="resize",
    method="POST",
    path="/command/resize",
    request=models.ResizeRequest,
    answer=models.CommandInfo,
    summary="Resize the terminal of a command",
    description="Set the rows and columns of a command that was started with `pty`. A command that "
    "has ended is left alone, and answered as it is.",
    tag="commands",
    errors=OF_COMMAND,
)
RUN_CODE = Operation(
    name="run_code",
    method="POST",
    path="/run_code",
    request=models.RunCodeRequest,
    answer=models.CodeResult,
    summary="Run code",
    description="Run code in a context of a thread's session, which is made where there is none. "
    "Variables and imports stay in the context.",
    tag="code",
    creates=True,
    repeatable=lambda request: request.idempotency_key is not None,
    prepare=keyed,
    errors=OF_CODE,
)
CONTEXTS = Operation(
    name="contexts",
    method="GET",
    path="/contexts",
    request=models.Target,
    answer=models.ContextList,
    summary="See which contexts a session has",
    description="The contexts of a session. Asking does not count as use of it.",
    tag="code",
    scope="read",
    errors=OF_SESSION,
)
CREATE_CONTEXT = Operation(
    name="create_context",
    method="POST",
    path="/contexts",
    request=models.CreateContextRequest,
    answer=models.Context,
    summary="Make a context",
    description="Start a kernel with variables of its own, beside the default context.",
    tag="code",
    creates=True,
    repeatable=lambda request: request.context_id is not None,
    errors=(*OF_CONTEXT, errors.KernelMissing, errors.FileMissing, errors.Capacity),
)
RESTART_CONTEXT = Operation(
    name="restart_context",
    method="POST",
    path="/contexts/restart",
    request=models.ContextTarget,
    answer=models.Context,
    summary="Restart a context",
    description="End the kernel of a context, with what runs there, and start a new one. Its "
    "variables are gone.",
    tag="code",
    # The second time could end what was begun since.
    repeatable=never,
    errors=(*OF_CONTEXT, errors.KernelMissing, errors.Capacity),
)
REMOVE_CONTEXT = Operation(
    name="remove_context",
    method="POST",
    path="/contexts/remove",
    request=models.ContextTarget,
    answer=models.Context,
    summary="Remove a context",
    description="End a context, with what runs there.",
    tag="code",
    repeatable=never,
    errors=OF_CONTEXT,
)
INTERRUPT_CONTEXT = Operation(
    name="interrupt_context",
    method="POST",
    path="/contexts/interrupt",
    request=models.ContextTarget,
    answer=models.Context,
    summary="Interrupt what runs in a context",
    description="As Ctrl-C does: the run ends with an error, and the context keeps its variables. "
    "A kernel that does not end the run within 3 s is killed.",
    tag="code",
    repeatable=never,
    errors=OF_CONTEXT,
)
LIST_FILES = Operation(
    name="list_files",
    method="GET",
    path="/list_files",
    request=models.ListRequest,
    answer=models.ListResult,
    summary="See what is in a folder",
    description="What is in a folder. The session is made where there is none.",
    creates=True,
    errors=(*OF_SESSION, *OF_FILE, errors.Capacity),
)
RENAME = Operation(
    name="rename",
    method="POST",
    path="/rename",
    request=models.RenameRequest,
    answer=models.FileEntry,
    summary="Move a file or a folder",
    description="Move a file or a folder inside the sandbox, also to another disk of it. Folders "
    "on the way are made; a file that is there already is replaced only if told, a folder never.",
    tag="files",
    # The second time there is nothing left to move.
    repeatable=never,
    errors=(*OF_SESSION, *OF_FILE, errors.DiskFull, errors.Capacity),
)
STAT = Operation(
    name="stat",
    method="GET",
    path="/stat",
    request=models.StatRequest,
    answer=models.FileEntry,
    summary="See what is at a path",
    description="The entry of a file, a folder or a link. The session is made where there is none.",
    tag="files",
    creates=True,
    errors=(*OF_SESSION, *OF_FILE, errors.Capacity),
)
MKDIR = Operation(
    name="mkdir",
    method="POST",
    path="/mkdir",
    request=models.MkdirRequest,
    answer=models.MkdirResult,
    summary="Make a folder",
    description="Make a folder, with those on the way. One that is there already stays as it is. "
    "The session is made where there is none.",
    tag="files",
    creates=True,
    errors=(*OF_SESSION, errors.InvalidPath, errors.DiskFull, errors.Capacity),
)
REMOVE = Operation(
    name="remove",
    method="POST",
    path="/remove",
    request=models.RemoveRequest,
    answer=models.RemoveResult,
    summary="Remove a file or a folder",
    description="Remove a file, a link (not what it leads to), or a folder with all in it.",
    tag="files",
    # The second time there is nothing left to remove.
    repeatable=never,
    errors=(*OF_SESSION, *OF_FILE, errors.Conflict, errors.Capacity),
)
WATCH = Operation(
    name="watch",
    method="POST",
    path="/watch",
    request=models.WatchFilesRequest,
    answer=models.FileWatch,
    summary="Watch a folder",
    description="From now on, keep what changes in a folder for `GET /watch/events`. A watch ends "
    "with its session, and when it is not read for 5 minutes. The session is made where there is "
    "none.",
    tag="files",
    creates=True,
    errors=(*OF_SESSION, *OF_FILE, errors.Capacity),
)
WATCH_EVENTS = Operation(
    name="watch_events",
    method="GET",
    path="/watch/events",
    request=models.FileChangesRequest,
    answer=models.FileChangeList,
    summary="See what changes in a watched folder",
    description="What has changed since a position, or what changes within `wait` seconds. Changes "
    "that are missing are told by one of the kind `gap`. Asking does not count as use of the "
    "session.",
    tag="files",
    scope="read",
    errors=(*OF_SESSION, errors.NotFound, errors.Capacity),
)
UNWATCH = Operation(
    name="unwatch",
    method="POST",
    path="/unwatch",
    request=models.FileWatchTarget,
    answer=models.FileWatchEnded,
    summary="End a watch",
    description="Keep no more of what changes in a folder. A watch that has ended is no error.",
    tag="files",
    errors=OF_SESSION,
)
SESSION = Operation(
    name="session",
    method="GET",
    path="/session",
    request=models.Target,
    answer=models.SessionInfo,
    summary="See how a session is doing",
    description="How a session is doing. Asking does not count as use of it, and never makes one.",
    scope="read",
    errors=OF_SESSION,
)
SESSIONS = Operation(
    name="sessions",
    method="GET",
    path="/sessions",
    request=models.SessionsRequest,
    answer=models.SessionList,
    summary="See which sessions there are",
    description="The live sessions of whoever asks that fit what is given, oldest first. No box is "
    "asked.",
    tag="sessions",
    scope="read",
)
PAUSE = Operation(
    name="pause",
    method="POST",
    path="/session/pause",
    request=models.Target,
    answer=models.SessionSummary,
    summary="Pause a session",
    description="Nothing runs in it until it is used again, or for 24 hours, after which it ends; "
    "time limits of its commands stand still, and its files stay. A paused one is left as it is.",
    tag="sessions",
    errors=(*OF_SESSION, errors.Conflict),
)
UNPAUSE = Operation(
    name="unpause",
    method="POST",
    path="/session/unpause",
    request=models.Target,
    answer=models.SessionSummary,
    summary="Let a paused session go on",
    description="What runs in it goes on. So it does by itself when the session is used.",
    tag="sessions",
    errors=OF_SESSION,
)
SET_LIFETIME = Operation(
    name="set_lifetime",
    method="POST",
    path="/session/lifetime",
    request=models.LifetimeRequest,
    answer=models.SessionSummary,
    summary="Say how much longer a session may last",
    description="The session ends so many seconds from now, used or not, with what runs in it. "
    "Asking does not count as use of it.",
    tag="sessions",
    errors=OF_SESSION,
)
SET_EGRESS = Operation(
    name="set_egress",
    method="POST",
    path="/session/egress",
    request=models.EgressRequest,
    answer=models.SessionSummary,
    summary="Say what a session may not reach",
    description="From now on its connections are judged by these rules besides those of the "
    "operator, which they never add to. They replace the ones before: without any, the session "
    "reaches what its network allows. What is open and may not be any more is cut. Asking does not "
    "count as use of it.",
    tag="sessions",
    errors=OF_SESSION,
)
CLEANUP = Operation(
    name="cleanup",
    method="POST",
    path="/cleanup",
    request=models.Target,
    answer=models.CleanupResult,
    summary="End a session",
    description="End a session: its processes and its files are gone.",
    # The second time it would say that there is no such session.
    repeatable=never,
    errors=(errors.SessionNotFound,),
)
HEALTH = Operation(
    name="health",
    method="GET",
    path="/health",
    request=models.EmptyRequest,
    answer=models.Health,
    summary="See how the server is doing",
    description="How the server is doing. Needs no key.",
    scope="public",
    status=lambda health: 503 if health.status == "unhealthy" else 200,
)
REGISTRY = Operation(
    name="registry",
    method="GET",
    path="/registry",
    request=models.EmptyRequest,
    answer=models.RegistryList,
    summary="See which agents, tools and environments there are",
    description="What the operator has declared and the caller may use.",
    tag="registry",
    scope="read",
)
CALL_TOOL = Operation(
    name="call_tool",
    method="POST",
    path="/tools/call",
    request=models.CallToolRequest,
    answer=models.ToolAnswer,
    summary="Call a tool",
    description="Carry out a tool in the session of a thread, which is made where there is none, "
    "and answer what to tell the model. A session that was made for an agent has the tools of that "
    "agent, any other all of them.",
    tag="registry",
    creates=True,
    repeatable=lambda request: request.idempotency_key is not None,
    prepare=keyed,
    errors=(*OF_EXECUTE, *OF_FILE, *OF_KERNEL, errors.DiskFull),
)
ARTIFACTS = Operation(
    name="artifacts",
    method="GET",
    path="/artifacts",
    request=models.ArtifactsRequest,
    answer=models.ArtifactList,
    summary="See which artifacts there are",
    description="The files that runs have made, of live sessions and ended ones, newest first.",
    tag="artifacts",
    scope="read",
)
DELETE_ARTIFACT = Operation(
    name="delete_artifact",
    method="POST",
    path="/artifact/delete",
    request=models.ArtifactTarget,
    answer=models.ArtifactDeleted,
    summary="Delete an artifact",
    description="Delete an artifact. The file in the sandbox stays.",
    tag="artifacts",
    # The second time it would say that there is no such artifact.
    repeatable=never,
    errors=(errors.NotFound,),
)
STORED_SESSIONS = Operation(
    name="stored_sessions",
    method="GET",
    path="/api/sessions",
    request=models.StoredSessionsRequest,
    answer=models.StoredSessionList,
    summary="Search the sessions there were",
    description="Live sessions and ended ones, newest first, as far back as they are stored.",
    tag="platform",
    scope="read",
)
STORED_SESSION = Operation(
    name="stored_session",
    method="GET",
    path="/api/sessions/{session_id}",
    request=models.StoredSessionTarget,
    answer=models.StoredSessionDetail,
    summary="See what is stored of a session",
    description="A session with its commands and artifacts, also after its end. Asking does not "
    "count as use of it.",
    tag="platform",
    scope="read",
    errors=(errors.SessionNotFound,),
)
CHECKPOINT = Operation(
    name="checkpoint",
    method="POST",
    path="/checkpoints",
    request=models.CheckpointRequest,
    answer=models.Checkpoint,
    summary="Take a checkpoint",
    description="Copy the files and the shell state of a session. What runs is paused meanwhile, "
    "goes on afterwards, and is not in the copy. The session is not made where there is none.",
    tag="checkpoints",
    repeatable=lambda request: request.idempotency_key is not None,
    prepare=keyed,
    errors=(*OF_SESSION, errors.Conflict, errors.IdempotencyMismatch, errors.DiskFull),
)
CHECKPOINTS = Operation(
    name="checkpoints",
    method="GET",
    path="/checkpoints",
    request=models.CheckpointsRequest,
    answer=models.CheckpointList,
    summary="See which checkpoints there are",
    description="The checkpoints of one thread or of all, newest first; also of threads whose "
    "session has ended.",
    tag="checkpoints",
    scope="read",
)
GET_CHECKPOINT = Operation(
    name="get_checkpoint",
    method="GET",
    path="/checkpoints/{checkpoint_id}",
    request=models.CheckpointTarget,
    answer=models.Checkpoint,
    summary="See what a checkpoint is",
    description="One checkpoint.",
    tag="checkpoints",
    scope="read",
    errors=OF_CHECKPOINT,
)
DELETE_CHECKPOINT = Operation(
    name="delete_checkpoint",
    method="POST",
    path="/checkpoint/delete",
    request=models.CheckpointTarget,
    answer=models.CheckpointDeleted,
    summary="Delete a checkpoint",
    description="Delete a checkpoint. Threads that began with it, and other checkpoints, stay as "
    "they are.",
    tag="checkpoints",
    # The second time it would say that there is no such checkpoint.
    repeatable=never,
    errors=(errors.CheckpointNotFound,),
)
RESTORE = Operation(
    name="restore",
    method="POST",
    path="/restore",
    request=models.RestoreRequest,
    answer=models.Session,
    summary="Take a thread back to a checkpoint",
    description="The thread gets a new session with the files and the shell state of a "
    "checkpoint. The session it has ends, with its processes, once the new one is there; if that "
    "fails, nothing has changed.",
    tag="checkpoints",
    creates=True,
    repeatable=lambda request: request.idempotency_key is not None,
    prepare=keyed,
    errors=(*OF_CHECKPOINT, *OF_VOLUMES, errors.IdempotencyMismatch, errors.Capacity),
)
FORK = Operation(
    name="fork",
    method="POST",
    path="/fork",
    request=models.ForkRequest,
    answer=models.ForkResult,
    summary="Begin threads from another one",
    description="New threads that begin with the files and the shell state of a thread as it is "
    "now, or of a checkpoint. A thread that was made by the same call before is answered as it is.",
    tag="checkpoints",
    repeatable=lambda request: request.idempotency_key is not None,
    prepare=keyed,
    errors=(*OF_SESSION, *OF_CHECKPOINT, errors.Conflict, errors.DiskFull, errors.Capacity),
)
HISTORY = Operation(
    name="history",
    method="GET",
    path="/history",
    request=models.HistoryRequest,
    answer=models.ThreadHistory,
    summary="See what a thread has done",
    description="The commands of a thread that was made with `history`, newest first, with the "
    "files that each has made, changed and removed in /workspace.",
    tag="checkpoints",
    scope="read",
    creates=True,  # The worker that had the thread's last session can tell.
)
CHANGES = Operation(
    name="changes",
    method="GET",
    path="/history/changes",
    request=models.ChangesRequest,
    answer=models.CommandChanges,
    summary="See what a command has changed",
    description="The difference that one command of a thread has made to the files in /workspace.",
    tag="checkpoints",
    scope="read",
    creates=True,
    errors=(errors.NotFound,),
)
UNDO = Operation(
    name="undo",
    method="POST",
    path="/undo",
    request=models.UndoRequest,
    answer=models.Undone,
    summary="Take a thread back to before a command",
    description="The thread gets a new session with the files and the shell state from before a "
    "command, where it was made with `history`. What runs in it ends. If that fails, nothing has "
    "changed; an undo can be undone.",
    tag="checkpoints",
    creates=True,
    repeatable=lambda request: request.idempotency_key is not None,
    prepare=keyed,
    errors=(errors.NotFound, errors.Capacity),
)
VOLUMES = Operation(
    name="volumes",
    method="GET",
    path="/volumes",
    request=models.EmptyRequest,
    answer=models.VolumeList,
    summary="See which volumes there are",
    description="The volumes of whoever asks, by name, with the threads that have them now.",
    tag="volumes",
    scope="read",
)
CREATE_VOLUME = Operation(
    name="create_volume",
    method="POST",
    path="/volumes",
    request=models.CreateVolumeRequest,
    answer=models.Volume,
    summary="Make a volume",
    description="Make an empty volume of a size of its own. A session that names one which is not "
    "there makes it, too.",
    tag="volumes",
    # The second time it would say that the volume is there.
    repeatable=never,
    errors=(errors.Conflict, errors.DiskFull),
)
DELETE_VOLUME = Operation(
    name="delete_volume",
    method="POST",
    path="/volume/delete",
    request=models.VolumeTarget,
    answer=models.VolumeDeleted,
    summary="Delete a volume",
    description="Delete a volume with its files. Not while a session has it.",
    tag="volumes",
    # The second time it would say that there is no such volume.
    repeatable=never,
    errors=(errors.VolumeNotFound, errors.Conflict),
)
EXPOSE = Operation(
    name="expose",
    method="POST",
    path="/expose",
    request=models.ExposeRequest,
    answer=models.Preview,
    summary="Make a port of a sandbox a preview",
    description="A URL at which browsers reach what listens at a port of the sandbox, now or "
    "later. The same port again: the same preview. The session is not made where there is none.",
    tag="previews",
    errors=(*OF_SESSION, errors.Capacity),
)
PREVIEWS = Operation(
    name="previews",
    method="GET",
    path="/previews",
    request=models.Target,
    answer=models.PreviewList,
    summary="See which previews a session has",
    description="The ports of a session that are exposed, without their tokens. Asking does not "
    "count as use of it.",
    tag="previews",
    scope="read",
    errors=OF_SESSION,
)
UNEXPOSE = Operation(
    name="unexpose",
    method="POST",
    path="/unexpose",
    request=models.PreviewTarget,
    answer=models.Unexposed,
    summary="End a preview",
    description="From now on nobody gets in with its token. What is open through it is cut.",
    tag="previews",
    # The second time it would say that the port is not exposed.
    repeatable=never,
    errors=(*OF_SESSION, errors.NotFound),
)

USAGE = Operation(
    name="usage",
    method="GET",
    path="/usage",
    request=models.UsageRequest,
    answer=models.UsageReport,
    summary="See what was used",
    description="What the sandboxes of whoever asks have used, by day of UTC, thread or session, "
    "up to now. A thread of somebody else has used nothing, as one that never was.",
    tag="platform",
    scope="read",
)

EVENTS = Operation(
    name="events",
    method="GET",
    path="/events",
    request=models.HappeningsRequest,
    answer=models.HappeningList,
    summary="See what happens",
    description="Sessions that begin and end, commands that end, checkpoints, limits: what has "
    "happened since a position, or what happens within `wait` seconds. With `Accept: "
    "text/event-stream`, a stream of server-sent events without an end, which goes on from "
    "`Last-Event-ID`. Events that are missing are told by one of the kind `gap`.",
    tag="platform",
    scope="read",
)

OPERATIONS: tuple[Operation[Any, Any], ...] = (
    CREATE_SESSION, EXECUTE, CHECK, LIST_FILES, SESSION, CLEANUP, HEALTH,
    RUN_CODE, CONTEXTS, CREATE_CONTEXT, RESTART_CONTEXT, REMOVE_CONTEXT, INTERRUPT_CONTEXT,
    RESULT, COMMANDS, SIGNAL, STDIN, RESIZE, SESSIONS, SET_LIFETIME, SET_EGRESS, PAUSE,
    UNPAUSE, RENAME, REGISTRY, CALL_TOOL,
    ARTIFACTS, DELETE_ARTIFACT,
    CHECKPOINT, CHECKPOINTS, GET_CHECKPOINT, DELETE_CHECKPOINT, RESTORE, FORK,
    HISTORY, CHANGES, UNDO,
    STAT, MKDIR, REMOVE, WATCH, WATCH_EVENTS, UNWATCH,
    VOLUMES, CREATE_VOLUME, DELETE_VOLUME,
    EXPOSE, PREVIEWS, UNEXPOSE,
    STORED_SESSIONS, STORED_SESSION, USAGE, EVENTS,
)  # fmt: skip
