"""Every operation of the wire contract, declared once.

The HTTP routes, the OpenAPI document, the client's retries and the coordinator's routing are all
read from this table. Events, uploads and downloads are more than one request and one answer: they
have methods of their own in sandboxes.py.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass
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
OF_ENVIRONMENT = (errors.Capacity, errors.EnvironmentBuilding, errors.EnvironmentFailed)
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


def has_key(request: _Keyed) -> bool:
    """See keyed()."""
    return request.idempotency_key is not None


def keyed(request: _Keyed) -> _Keyed:
    """The request with an idempotency key: sent any number of times, the command runs once."""
    if request.idempotency_key is not None:
        return request
    return request.model_copy(update={"idempotency_key": os.urandom(16).hex()})  # type: ignore[return-value]


@dataclass(frozen=True, eq=False)
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
    _: KW_ONLY
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

# A table: formatted, every field would have a line of its own.
# fmt: off
CREATE_SESSION = Operation(
    "create_session", "POST", "/create_session", models.CreateSessionRequest, models.Session,
    creates=True, status=lambda session: 201 if session.status == "created" else 200,
    errors=(*OF_ENVIRONMENT, *OF_CHECKPOINT, *OF_VOLUMES),
    # Without a thread_id each call makes another.
    repeatable=lambda request: request.thread_id is not None,
    summary="Make a session, or find the live one",
    description="The live session of a thread, or a new one. Without a thread_id the session is a "
    "thread of its own, named like the session.",
)
EXECUTE = Operation(
    "execute", "POST", "/execute", models.ExecuteRequest, models.ExecuteResult,
    creates=True, repeatable=has_key, prepare=keyed, errors=OF_EXECUTE,
    summary="Run a command",
    description="Run bash source in the session of a thread, which is made where there is none. "
    "Working directory, variables, functions and options carry over to the next command.",
)
CHECK = Operation(
    "check", "POST", "/execute", models.CheckRequest, models.Verdict,
    creates=True, errors=OF_EXECUTE,
    summary="See what the policy says of a command",
    description="What the policy says of a command. It is not run, and no session is made.",
)
RESULT = Operation(
    "command", "GET", "/command", models.CommandTarget, models.ExecuteResult,
    tag="commands", scope="read", errors=OF_COMMAND,
    summary="See how a command stands",
    description="How a command stands, with the output kept so far; `exit_code` is null while it "
    "runs. Asking does not count as use of the session.",
)
COMMANDS = Operation(
    "commands", "GET", "/commands", models.Target, models.CommandList,
    tag="commands", scope="read", errors=OF_SESSION,
    summary="See which commands a session knows",
    description="The commands a session knows: those that run, and the newest of those that ended. "
    "Asking does not count as use of the session.",
)
SIGNAL = Operation(
    "signal", "POST", "/command/signal", models.SignalRequest, models.CommandInfo,
    tag="commands", errors=OF_COMMAND,
    # A handler must not run twice. There is none for KILL.
    repeatable=lambda request: request.signal == "KILL",
    summary="Send a signal to a command",
    description="Send a signal to all processes of a command. `KILL` ends everything it has "
    "started, daemons included. A command that has ended is left alone, and answered as it is.",
)
STDIN = Operation(
    "stdin", "POST", "/command/stdin", models.StdinRequest, models.StdinReceipt,
    tag="commands", repeatable=lambda request: request.offset is not None,
    errors=(*OF_COMMAND, errors.StdinClosed, errors.Capacity),
    summary="Send input to a command",
    description="Send input to a command that was started with `stdin_open`. With an `offset` the "
    "call may be repeated: what has come before is not written again.",
)
RESIZE = Operation(
    "resize", "POST", "/command/resize", models.ResizeRequest, models.CommandInfo,
    tag="commands", errors=OF_COMMAND,
    summary="Resize the terminal of a command",
    description="Set the rows and columns of a command that was started with `pty`. A command that "
    "has ended is left alone, and answered as it is.",
)
RUN_CODE = Operation(
    "run_code", "POST", "/run_code", models.RunCodeRequest, models.CodeResult,
    tag="code", creates=True, repeatable=has_key, prepare=keyed, errors=OF_CODE,
    summary="Run code",
    description="Run code in a context of a thread's session, which is made where there is none. "
    "Variables and imports stay in the context.",
)
CONTEXTS = Operation(
    "contexts", "GET", "/contexts", models.Target, models.ContextList,
    tag="code", scope="read", errors=OF_SESSION,
    summary="See which contexts a session has",
    description="The contexts of a session. Asking does not count as use of it.",
)
CREATE_CONTEXT = Operation(
    "create_context", "POST", "/contexts", models.CreateContextRequest, models.Context,
    tag="code", creates=True, repeatable=lambda request: request.context_id is not None,
    errors=(*OF_CONTEXT, errors.KernelMissing, errors.FileMissing, errors.Capacity),
    summary="Make a context",
    description="Start a kernel with variables of its own, beside the default context.",
)
RESTART_CONTEXT = Operation(
    "restart_context", "POST", "/contexts/restart", models.ContextTarget, models.Context,
    tag="code", errors=(*OF_CONTEXT, errors.KernelMissing, errors.Capacity),
    # The second time could end what was begun since.
    repeatable=never,
    summary="Restart a context",
    description="End the kernel of a context, with what runs there, and start a new one. Its "
    "variables are gone.",
)
REMOVE_CONTEXT = Operation(
    "remove_context", "POST", "/contexts/remove", models.ContextTarget, models.Context,
    tag="code", repeatable=never, errors=OF_CONTEXT,
    summary="Remove a context",
    description="End a context, with what runs there.",
)
INTERRUPT_CONTEXT = Operation(
    "interrupt_context", "POST", "/contexts/interrupt", models.ContextTarget, models.Context,
    tag="code", repeatable=never, errors=OF_CONTEXT,
    summary="Interrupt what runs in a context",
    description="As Ctrl-C does: the run ends with an error, and the context keeps its variables. "
    "A kernel that does not end the run within 3 s is killed.",
)
LIST_FILES = Operation(
    "list_files", "GET", "/list_files", models.ListRequest, models.ListResult,
    creates=True, errors=(*OF_SESSION, *OF_FILE, errors.Capacity),
    summary="See what is in a folder",
    description="What is in a folder. The session is made where there is none.",
)
RENAME = Operation(
    "rename", "POST", "/rename", models.RenameRequest, models.FileEntry,
    tag="files", errors=(*OF_SESSION, *OF_FILE, errors.DiskFull, errors.Capacity),
    # The second time there is nothing left to move.
    repeatable=never,
    summary="Move a file or a folder",
    description="Move a file or a folder inside the sandbox, also to another disk of it. Folders "
    "on the way are made; a file that is there already is replaced only if told, a folder never.",
)
STAT = Operation(
    "stat", "GET", "/stat", models.StatRequest, models.FileEntry,
    tag="files", creates=True, errors=(*OF_SESSION, *OF_FILE, errors.Capacity),
    summary="See what is at a path",
    description="The entry of a file, a folder or a link. The session is made where there is none.",
)
MKDIR = Operation(
    "mkdir", "POST", "/mkdir", models.MkdirRequest, models.MkdirResult,
    tag="files", creates=True,
    errors=(*OF_SESSION, errors.InvalidPath, errors.DiskFull, errors.Capacity),
    summary="Make a folder",
    description="Make a folder, with those on the way. One that is there already stays as it is. "
    "The session is made where there is none.",
)
REMOVE = Operation(
    "remove", "POST", "/remove", models.RemoveRequest, models.RemoveResult,
    tag="files", errors=(*OF_SESSION, *OF_FILE, errors.Conflict, errors.Capacity),
    # The second time there is nothing left to remove.
    repeatable=never,
    summary="Remove a file or a folder",
    description="Remove a file, a link (not what it leads to), or a folder with all in it.",
)
WATCH = Operation(
    "watch", "POST", "/watch", models.WatchFilesRequest, models.FileWatch,
    tag="files", creates=True, errors=(*OF_SESSION, *OF_FILE, errors.Capacity),
    summary="Watch a folder",
    description="From now on, keep what changes in a folder for `GET /watch/events`. A watch ends "
    "with its session, and when it is not read for 5 minutes. The session is made where there is "
    "none.",
)
WATCH_EVENTS = Operation(
    "watch_events", "GET", "/watch/events", models.FileChangesRequest, models.FileChangeList,
    tag="files", scope="read", errors=(*OF_SESSION, errors.NotFound, errors.Capacity),
    summary="See what changes in a watched folder",
    description="What has changed since a position, or what changes within `wait` seconds. Changes "
    "that are missing are told by one of the kind `gap`. Asking does not count as use of the "
    "session.",
)
UNWATCH = Operation(
    "unwatch", "POST", "/unwatch", models.FileWatchTarget, models.FileWatchEnded,
    tag="files", errors=OF_SESSION,
    summary="End a watch",
    description="Keep no more of what changes in a folder. A watch that has ended is no error.",
)
SESSION = Operation(
    "session", "GET", "/session", models.Target, models.SessionInfo,
    scope="read", errors=OF_SESSION,
    summary="See how a session is doing",
    description="How a session is doing. Asking does not count as use of it, and never makes one.",
)
SESSIONS = Operation(
    "sessions", "GET", "/sessions", models.SessionsRequest, models.SessionList,
    tag="sessions", scope="read",
    summary="See which sessions there are",
    description="The live sessions of whoever asks that fit what is given, oldest first. No box is "
    "asked.",
)
PAUSE = Operation(
    "pause", "POST", "/session/pause", models.Target, models.SessionSummary,
    tag="sessions", errors=(*OF_SESSION, errors.Conflict),
    summary="Pause a session",
    description="Nothing runs in it until it is used again, or for 24 hours, after which it ends; "
    "time limits of its commands stand still, and its files stay. A paused one is left as it is.",
)
UNPAUSE = Operation(
    "unpause", "POST", "/session/unpause", models.Target, models.SessionSummary,
    tag="sessions", errors=OF_SESSION,
    summary="Let a paused session go on",
    description="What runs in it goes on. So it does by itself when the session is used.",
)
SET_LIFETIME = Operation(
    "set_lifetime", "POST", "/session/lifetime", models.LifetimeRequest, models.SessionSummary,
    tag="sessions", errors=OF_SESSION,
    summary="Say how much longer a session may last",
    description="The session ends so many seconds from now, used or not, with what runs in it. "
    "Asking does not count as use of it.",
)
SET_EGRESS = Operation(
    "set_egress", "POST", "/session/egress", models.EgressRequest, models.SessionSummary,
    tag="sessions", errors=OF_SESSION,
    summary="Say what a session may not reach",
    description="From now on its connections are judged by these rules besides those of the "
    "operator, which they never add to. They replace the ones before: without any, the session "
    "reaches what its network allows. What is open and may not be any more is cut. Asking does not "
    "count as use of it.",
)
CLEANUP = Operation(
    "cleanup", "POST", "/cleanup", models.Target, models.CleanupResult,
    errors=(errors.SessionNotFound,),
    # The second time it would say that there is no such session.
    repeatable=never,
    summary="End a session",
    description="End a session: its processes and its files are gone.",
)
HEALTH = Operation(
    "health", "GET", "/health", models.EmptyRequest, models.Health,
    scope="public", status=lambda health: 503 if health.status == "unhealthy" else 200,
    summary="See how the server is doing",
    description="How the server is doing. Needs no key.",
)
REGISTRY = Operation(
    "registry", "GET", "/registry", models.EmptyRequest, models.RegistryList,
    tag="registry", scope="read",
    summary="See which agents, tools and environments there are",
    description="What the operator has declared and the caller may use.",
)
CALL_TOOL = Operation(
    "call_tool", "POST", "/tools/call", models.CallToolRequest, models.ToolAnswer,
    tag="registry", creates=True, repeatable=has_key, prepare=keyed,
    errors=(*OF_EXECUTE, *OF_FILE, *OF_KERNEL, errors.DiskFull),
    summary="Call a tool",
    description="Carry out a tool in the session of a thread, which is made where there is none, "
    "and answer what to tell the model. A session that was made for an agent has the tools of that "
    "agent, any other all of them.",
)
ARTIFACTS = Operation(
    "artifacts", "GET", "/artifacts", models.ArtifactsRequest, models.ArtifactList,
    tag="artifacts", scope="read",
    summary="See which artifacts there are",
    description="The files that runs have made, of live sessions and ended ones, newest first.",
)
DELETE_ARTIFACT = Operation(
    "delete_artifact", "POST", "/artifact/delete", models.ArtifactTarget, models.ArtifactDeleted,
    tag="artifacts", errors=(errors.NotFound,),
    # The second time it would say that there is no such artifact.
    repeatable=never,
    summary="Delete an artifact",
    description="Delete an artifact. The file in the sandbox stays.",
)
STORED_SESSIONS = Operation(
    "stored_sessions", "GET", "/api/sessions", models.StoredSessionsRequest,
    models.StoredSessionList,
    tag="platform", scope="read",
    summary="Search the sessions there were",
    description="Live sessions and ended ones, newest first, as far back as they are stored.",
)
STORED_SESSION = Operation(
    "stored_session", "GET", "/api/sessions/{session_id}", models.StoredSessionTarget,
    models.StoredSessionDetail,
    tag="platform", scope="read", errors=(errors.SessionNotFound,),
    summary="See what is stored of a session",
    description="A session with its commands and artifacts, also after its end. Asking does not "
    "count as use of it.",
)
CHECKPOINT = Operation(
    "checkpoint", "POST", "/checkpoints", models.CheckpointRequest, models.Checkpoint,
    tag="checkpoints", repeatable=has_key, prepare=keyed,
    errors=(*OF_SESSION, errors.Conflict, errors.IdempotencyMismatch, errors.DiskFull),
    summary="Take a checkpoint",
    description="Copy the files and the shell state of a session. What runs is paused meanwhile, "
    "goes on afterwards, and is not in the copy. The session is not made where there is none.",
)
CHECKPOINTS = Operation(
    "checkpoints", "GET", "/checkpoints", models.CheckpointsRequest, models.CheckpointList,
    tag="checkpoints", scope="read",
    summary="See which checkpoints there are",
    description="The checkpoints of one thread or of all, newest first; also of threads whose "
    "session has ended.",
)
GET_CHECKPOINT = Operation(
    "get_checkpoint", "GET", "/checkpoints/{checkpoint_id}", models.CheckpointTarget,
    models.Checkpoint,
    tag="checkpoints", scope="read", errors=OF_CHECKPOINT,
    summary="See what a checkpoint is",
    description="One checkpoint.",
)
DELETE_CHECKPOINT = Operation(
    "delete_checkpoint", "POST", "/checkpoint/delete", models.CheckpointTarget,
    models.CheckpointDeleted,
    tag="checkpoints", errors=(errors.CheckpointNotFound,),
    # The second time it would say that there is no such checkpoint.
    repeatable=never,
    summary="Delete a checkpoint",
    description="Delete a checkpoint. Threads that began with it, and other checkpoints, stay as "
    "they are.",
)
RESTORE = Operation(
    "restore", "POST", "/restore", models.RestoreRequest, models.Session,
    tag="checkpoints", creates=True, repeatable=has_key, prepare=keyed,
    errors=(*OF_CHECKPOINT, *OF_VOLUMES, errors.IdempotencyMismatch, errors.Capacity),
    summary="Take a thread back to a checkpoint",
    description="The thread gets a new session with the files and the shell state of a "
    "checkpoint. The session it has ends, with its processes, once the new one is there; if that "
    "fails, nothing has changed.",
)
FORK = Operation(
    "fork", "POST", "/fork", models.ForkRequest, models.ForkResult,
    tag="checkpoints", repeatable=has_key, prepare=keyed,
    errors=(*OF_SESSION, *OF_CHECKPOINT, errors.Conflict, errors.DiskFull, errors.Capacity),
    summary="Begin threads from another one",
    description="New threads that begin with the files and the shell state of a thread as it is "
    "now, or of a checkpoint. A thread that was made by the same call before is answered as it is.",
)
HISTORY = Operation(
    "history", "GET", "/history", models.HistoryRequest, models.ThreadHistory,
    # The worker that had the thread's last session can tell.
    tag="checkpoints", scope="read", creates=True,
    summary="See what a thread has done",
    description="The commands of a thread that was made with `history`, newest first, with the "
    "files that each has made, changed and removed in /workspace.",
)
CHANGES = Operation(
    "changes", "GET", "/history/changes", models.ChangesRequest, models.CommandChanges,
    tag="checkpoints", scope="read", creates=True, errors=(errors.NotFound,),
    summary="See what a command has changed",
    description="The difference that one command of a thread has made to the files in /workspace.",
)
UNDO = Operation(
    "undo", "POST", "/undo", models.UndoRequest, models.Undone,
    tag="checkpoints", creates=True, repeatable=has_key, prepare=keyed,
    errors=(errors.NotFound, errors.Capacity),
    summary="Take a thread back to before a command",
    description="The thread gets a new session with the files and the shell state from before a "
    "command, where it was made with `history`. What runs in it ends. If that fails, nothing has "
    "changed; an undo can be undone.",
)
VOLUMES = Operation(
    "volumes", "GET", "/volumes", models.EmptyRequest, models.VolumeList,
    tag="volumes", scope="read",
    summary="See which volumes there are",
    description="The volumes of whoever asks, by name, with the threads that have them now.",
)
CREATE_VOLUME = Operation(
    "create_volume", "POST", "/volumes", models.CreateVolumeRequest, models.Volume,
    tag="volumes", errors=(errors.Conflict, errors.DiskFull),
    # The second time it would say that the volume is there.
    repeatable=never,
    summary="Make a volume",
    description="Make an empty volume of a size of its own. A session that names one which is not "
    "there makes it, too.",
)
DELETE_VOLUME = Operation(
    "delete_volume", "POST", "/volume/delete", models.VolumeTarget, models.VolumeDeleted,
    tag="volumes", errors=(errors.VolumeNotFound, errors.Conflict),
    # The second time it would say that there is no such volume.
    repeatable=never,
    summary="Delete a volume",
    description="Delete a volume with its files. Not while a session has it.",
)
EXPOSE = Operation(
    "expose", "POST", "/expose", models.ExposeRequest, models.Preview,
    tag="previews", errors=(*OF_SESSION, errors.Capacity),
    summary="Make a port of a sandbox a preview",
    description="A URL at which browsers reach what listens at a port of the sandbox, now or "
    "later. The same port again: the same preview. The session is not made where there is none.",
)
PREVIEWS = Operation(
    "previews", "GET", "/previews", models.Target, models.PreviewList,
    tag="previews", scope="read", errors=OF_SESSION,
    summary="See which previews a session has",
    description="The ports of a session that are exposed, without their tokens. Asking does not "
    "count as use of it.",
)
UNEXPOSE = Operation(
    "unexpose", "POST", "/unexpose", models.PreviewTarget, models.Unexposed,
    tag="previews", errors=(*OF_SESSION, errors.NotFound),
    # The second time it would say that the port is not exposed.
    repeatable=never,
    summary="End a preview",
    description="From now on nobody gets in with its token. What is open through it is cut.",
)
USAGE = Operation(
    "usage", "GET", "/usage", models.UsageRequest, models.UsageReport,
    tag="platform", scope="read",
    summary="See what was used",
    description="What the sandboxes of whoever asks have used, by day of UTC, thread or session, "
    "up to now. A thread of somebody else has used nothing, as one that never was.",
)
EVENTS = Operation(
    "events", "GET", "/events", models.HappeningsRequest, models.HappeningList,
    tag="platform", scope="read",
    summary="See what happens",
    description="Sessions that begin and end, commands that end, checkpoints, limits: what has "
    "happened since a position, or what happens within `wait` seconds. With `Accept: "
    "text/event-stream`, a stream of server-sent events without an end, which goes on from "
    "`Last-Event-ID`. Events that are missing are told by one of the kind `gap`.",
)
# fmt: on

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
