"""BoxAgent: the interface between the service and one box, and the types of its answers.

The warden's client implements it. A box without a warden, such as a hosted sandbox, can have
another implementation, which lists in `lacks` what it cannot do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol, Required, Self, TypedDict, Unpack

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.channels import ByteChannel

OUTPUT_LIMIT = 1 << 20
Short = Annotated[str, StringConstraints(max_length=200)]
Ident = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,200}$")]
"""Printable ASCII: it is written into log lines and event streams."""
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""Written into a response header."""
PathText = Annotated[str, StringConstraints(max_length=8192)]
FileKey = Annotated[str, StringConstraints(min_length=1, max_length=255)]
Count = Annotated[int, Field(ge=0, le=1 << 62)]
Total = Annotated[int, Field(ge=0, le=1 << 50)]
"""A count that is added to others."""
Pid = Annotated[int, Field(ge=1, le=1 << 31)]
ExitCode = Annotated[int, Field(ge=0, le=255)]
StreamName = Literal["stdout", "stderr", "result"]
"""Results are those of code: JSON, one on each line."""
Ability = Literal[
    "replay", "stdin", "code", "pty", "tree", "tunnel", "files", "watch", "pause", "metadata"
]
"""What an agent may lack: replaying output from an offset; input to a running command; code on
Jupyter kernels; terminals; all files as a whole; connections to its sockets; folders made and
removed, and looked at to a depth; folders watched; standing still; metadata of files."""


class AgentAnswer(BaseModel):
    """Base of all answers of an agent. A box is hostile, so every field is typed and bounded."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class CommandSummary(AgentAnswer):
    command_id: Ident
    idempotency_key: Short | None
    running: bool
    exit_code: ExitCode | None
    age_s: float
    output_bytes: Count
    late_bytes: Count
    is_code: bool = False
    pty: tuple[Count, Count] | None = None
    """Rows and columns of its terminal."""
    pid: Pid | None = None
    """Of its shell, while it runs. None from an earlier warden."""
    text: PathText | None = None
    """The beginning of it, while it runs, as what follows."""
    cwd: PathText | None = None
    env: Annotated[dict[Short, PathText], Field(max_length=200)] | None = None


class BoxAbout(AgentAnswer):
    version: int
    """The protocol version both ends agreed on."""
    abilities: Annotated[list[Short], Field(max_length=64)] = []
    """What not every warden of that version has."""
    build: Short = ""
    """warden_version() of the server that made the box. Empty from the earliest wardens."""
    box: Short
    boot: Short
    epoch: Count
    uptime_s: float
    idle_s: Annotated[float, Field(ge=0)]
    ran: Count
    cwd: PathText
    state: dict[str, Any]


class BoxState(BoxAbout):
    commands: list[CommandSummary]
    commands_truncated: bool = False
    """Whether the warden knows more commands than are listed."""


class LinkEnd(AgentAnswer):
    path: PathText
    type: Literal["file", "directory", "symlink", "other"]
    mode: Short


class FileEntry(AgentAnswer):
    name: PathText
    path: PathText
    type: Literal["file", "directory", "symlink", "other"]
    size: Count
    mode: Short
    modified_at: float
    owner: Short = ""
    group: Short = ""
    target: PathText | None = None
    """Where a link leads. An earlier warden tells none of these three."""
    leads_to: LinkEnd | None = None
    """What is at the end of a link. None from an earlier warden, too."""
    metadata: Annotated[dict[FileKey, PathText], Field(max_length=500)] | None = None


class FolderMade(AgentAnswer):
    created: bool
    entry: FileEntry


class WatchStarted(AgentAnswer):
    watch_id: Ident
    position: Count
    path: PathText


class FileChange(AgentAnswer):
    position: Count
    kind: Literal["create", "write", "remove", "rename", "chmod", "gap"]
    path: PathText
    type: Literal["file", "directory", "symlink", "other"] | None = None


class FileChanges(AgentAnswer):
    events: Annotated[list[FileChange], Field(max_length=1000)]
    position: Count


class WatchEnded(AgentAnswer):
    ended: bool


class ListEnd(AgentAnswer):
    truncated: bool


class Uploaded(AgentAnswer):
    path: PathText
    size: Count


class DownloadAbout(AgentAnswer):
    path: PathText
    type: Literal["file", "directory"]
    size: Count | None
    modified_at: float
    mode: Short
    sha256: Sha256 | None


class LeftOut(AgentAnswer):
    path: PathText
    why: Short


class TreeCounts(AgentAnswer):
    files: Count
    folders: Count
    size: Count
    """Bytes of all files, with their holes."""


class TreeAbout(TreeCounts):
    left_out: Annotated[list[LeftOut], Field(max_length=100)]
    left_out_more: Count
    """How many are left out besides."""
    paused_ms: Annotated[float, Field(ge=0)]


class TreeStarted(AgentAnswer):
    running: Annotated[list[Short], Field(max_length=100)]


class Usage(AgentAnswer):
    cpu_s: Annotated[float, Field(ge=0)]
    memory_bytes: Count | None
    disk_bytes: Count | None
    pids: Count
    commands: Total | None = None
    """All that were run, and the following of all of them. None from an earlier warden."""
    command_ms: Total | None = None
    bytes_in: Total | None = None
    """Given to their stdin."""
    bytes_out: Total | None = None


@dataclass(frozen=True)
class Listing:
    entries: list[FileEntry]
    truncated: bool


class Fenced(errors.RuntimeUnavailable):
    """An owner with a higher epoch has taken this box over."""


# Commands


class RunOptions(TypedDict, total=False):
    """How a command is run."""

    timeout_s: float | None
    """Default 30 s; None for no limit."""
    cwd: str | None
    env: Mapping[str, str] | None
    stdin: bytes | None
    stdin_open: bool
    """Keep stdin open for send_stdin(), until that sends the end."""
    pty: tuple[int, int] | None
    """Rows and columns of a terminal, instead of pipes."""
    key: str | None
    """Idempotency key: a second run with the same key joins the first."""
    command_id: str | None
    output_limit: int
    own: bool
    """Whether it is the server's, and counts for nobody."""


class CodeOptions(TypedDict, total=False):
    """How code is run."""

    language: str | None
    context_id: str | None
    """None for the default context of the language."""
    kernels: Mapping[str, str]
    timeout_s: float
    env: Mapping[str, str]
    key: str | None
    command_id: str
    output_limit: int
    changes: bool
    """Whether its result has `unchanged`."""
    live: bool
    """Whether output comes as it is written, instead of at the end."""


class ContextRequest(TypedDict, total=False):
    """Something to do with the contexts of a box."""

    op: Required[Literal["list", "create", "restart", "remove", "interrupt", "warm", "env"]]
    context_id: str
    language: str | None
    languages: Sequence[str]
    cwd: str | None
    env: Mapping[str, str]
    kernels: Mapping[str, str]


class ContextAbout(AgentAnswer):
    context_id: Ident
    language: Short
    kernel: Short = ""
    cwd: PathText
    default: bool
    state: Literal["starting", "idle", "busy", "lost"]
    running: Ident | None = None
    waiting: Count = 0
    execution_count: Count = 0
    memory_bytes: Count | None = None


class ContextList(AgentAnswer):
    contexts: Annotated[list[ContextAbout], Field(max_length=100)]


class Started(AgentAnswer):
    command_id: Ident
    stdin_received: Count
    pid: Pid | None = None
    """None for code, and from an earlier warden."""


@dataclass(frozen=True)
class Output:
    """Bytes of a command's output; `offset` counts both streams together."""

    stream: StreamName
    offset: int
    data: bytes


class Gap(AgentAnswer):
    """Output that was dropped: bytes start to end, end excluded."""

    start: Count
    end: Count


_OF_STREAM: dict[StreamName, int] = {"stdout": 0, "stderr": 1, "result": 3}
_OF_BOTH = 2
_EMPTY_COSTS = 64
"""Bytes charged for an event without output, so that a box cannot send any number of them."""


class KeptOutput:
    """The retained output of a command, as bytes. It is decoded on demand: stdout, stderr and both
    as text would take three times the memory.

    most: how many bytes a box may send, which bounds this server's memory.
    """

    def __init__(self, most: int = 0) -> None:
        self.truncated = False
        """Whether the box dropped some of it."""
        self._most = most
        self._taken = 0
        self._data = bytearray()
        self._ends = array("Q")
        """For each run of bytes of one stream: where it ends, and the stream (end * 4 + of)."""

    def add(self, event: Output | Gap) -> None:
        """Raises RuntimeUnavailable if the box sends more than `most`."""
        data = b"" if isinstance(event, Gap) else event.data
        self._taken += len(data) or _EMPTY_COSTS
        if self._taken > self._most:
            raise errors.RuntimeUnavailable(
                f"the box sent more than the {self._most} bytes of output it may keep; run the"
                " command again"
            )
        if isinstance(event, Gap):
            self.truncated = True
            left_out = b"\n[%d bytes of output left out]\n" % (event.end - event.start)
            self._append(left_out, _OF_BOTH)
        else:
            self._append(data, _OF_STREAM[event.stream])

    def text(self, stream: StreamName | None = None) -> str:
        """One stream, or both interleaved in order of arrival."""
        wanted = (0, 1, _OF_BOTH) if stream is None else (_OF_STREAM[stream], _OF_BOTH)
        parts, start = [], 0
        for end in self._ends:
            if end & 3 in wanted:
                parts.append(self._data[start : end >> 2])
            start = end >> 2
        return b"".join(parts).decode("utf-8", "replace")

    def tail(self, size: int) -> str:
        """The last bytes of both streams."""
        return self._data[-size:].decode("utf-8", "replace")

    def _append(self, data: bytes, of: int) -> None:
        self._data += data
        end = len(self._data) << 2 | of
        if self._ends and self._ends[-1] & 3 == of:
            self._ends[-1] = end
        else:
            self._ends.append(end)


class CommandResult(AgentAnswer):
    """The result of a command, or its status while it runs (exit_code is None).

    As the last event of a stream it has no output: that was sent in earlier events.
    """

    command_id: Ident
    exit_code: ExitCode | None
    signal: Short | None
    reason: Short | None
    timed_out: bool
    duration_ms: Annotated[float, Field(ge=0)]
    output_bytes: Count
    cwd: PathText
    pid: Pid | None = None
    """That its shell had. None for code, and from an earlier warden."""
    marked: bool = False
    """Whether it marked files with save_artifact."""
    unchanged: bool = False
    """Whether it is known to have left all files as they were."""
    state_saved: bool
    """False if the shell could not save its state (killed, exec, too large): the next command
    starts with the state from before this one."""
    _kept: ClassVar[KeptOutput] = KeptOutput()

    def with_output(self, kept: KeptOutput) -> Self:
        # As cached_property does it: to read a private attribute of pydantic takes ten times as
        # long, and every command reads it five times.
        self.__dict__["_kept"] = kept
        return self

    @property
    def truncated(self) -> bool:
        return self._kept.truncated

    def tail(self, size: int) -> str:
        return self._kept.tail(size)

    @property
    def output(self) -> str:
        """stdout and stderr interleaved, in order of arrival."""
        return self._kept.text()

    @property
    def stdout(self) -> str:
        return self._kept.text("stdout")

    @property
    def stderr(self) -> str:
        return self._kept.text("stderr")


Event = Started | Output | Gap | CommandResult


# Files

Batch = list[FileEntry]


class Download(Protocol):
    """A file being downloaded: its metadata, then its bytes. A folder is sent as a tar."""

    about: DownloadAbout

    def __aiter__(self) -> AsyncIterator[bytes]: ...


class PackedTree(Protocol):
    """The files of a box and the state of its shell, in segments. Equal segments hold the same
    files, so that a store needs to keep them once."""

    running: Sequence[str]
    """Processes that are not in it."""
    about: TreeAbout | None
    """After the last segment."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...


class BoxAgent(ABC):
    """The owner's connection to one box. Every method may raise SessionLost (the box is gone),
    Fenced (another owner has it) and RuntimeUnavailable (it cannot be reached)."""

    lacks: frozenset[Ability] = frozenset()
    about: BoxAbout | None
    """The box's answer to the last HELLO."""

    def require(self, ability: Ability, purpose: str) -> None:
        """Raises InvalidRequest if this box lacks the ability."""
        if ability in self.lacks:
            raise errors.InvalidRequest(
                f"{purpose} needs {ability!r}, which sandboxes of this runtime do not have; "
                "use a thread on another runtime",
                ability=ability,
            )

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @abstractmethod
    async def connect(self) -> None:
        """Connect, unless connected."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect. The box and its commands keep running."""

    @abstractmethod
    async def ping(self) -> None:
        """Restart the box's dead-man timer."""

    async def pause(self) -> None:
        """Stop all that runs, and let commands wait. Pausing twice is harmless. Raises Conflict if
        it cannot be stopped."""
        raise _lacking("pause")

    async def unpause(self) -> None:
        """Let it go on. Harmless where nothing is paused."""
        raise _lacking("pause")

    @abstractmethod
    async def state(self) -> BoxState:
        """The state that set_state() stored, and the box's commands."""

    @abstractmethod
    async def set_state(self, state: Mapping[str, Any]) -> BoxState:
        """Store data in the box; the next owner reads it when it adopts the box."""

    @abstractmethod
    async def usage(self) -> Usage:
        """Current resource usage of the box."""

    async def counts(self) -> Usage:
        """The same, without what takes a while to find out."""
        return await self.usage()

    @abstractmethod
    async def run(self, command: str, **options: Unpack[RunOptions]) -> CommandResult:
        """Run a command to its end and return its result with the retained output."""

    @abstractmethod
    async def start(self, command: str, **options: Unpack[RunOptions]) -> str:
        """Start a command and return its id, without waiting for its end."""

    @abstractmethod
    def stream(self, command: str, **options: Unpack[RunOptions]) -> AsyncGenerator[Event]:
        """Run a command and yield its events. Closing the generator does not end the command."""

    @abstractmethod
    def attach(self, command_id: str, *, offset: int = 0) -> AsyncGenerator[Event]:
        """Follow a command that is already started, from an offset in its output."""

    @abstractmethod
    async def result(self, command_id: str, *, output_limit: int = OUTPUT_LIMIT) -> CommandResult:
        """A command's status and the output retained so far. output_limit: as given to run()."""

    @abstractmethod
    async def ended(self, command_id: str) -> CommandResult | None:
        """Wait until a command has ended; how, where the box tells."""

    @abstractmethod
    async def signal(self, command_id: str, number: int) -> CommandSummary:
        """Signal all processes of a command; 9 also kills everything it has started."""

    @abstractmethod
    async def send_stdin(
        self, command_id: str, data: bytes, *, end: bool = False, offset: int | None = None
    ) -> int:
        """Send input to a command started with `stdin_open`; returns all bytes received so far."""

    async def resize(self, command_id: str, *, rows: int, cols: int) -> CommandSummary:
        """Resize the terminal of a command."""
        raise _lacking("pty")

    def code(self, code: str, **options: Unpack[CodeOptions]) -> AsyncGenerator[Event]:
        """Run code in a context and yield its events: a command whose output has results."""
        raise _lacking("code")

    async def contexts(self, request: ContextRequest) -> list[ContextAbout]:
        """Do something with the contexts of the box."""
        raise _lacking("code")

    @abstractmethod
    async def put(
        self,
        path: str,
        chunks: AsyncIterable[bytes],
        *,
        mode: int = 0o644,
        limit: int = 1 << 62,
        metadata: Mapping[str, str] | None = None,
    ) -> Uploaded:
        """Store a file atomically: it appears under its name when it is complete, with the metadata
        and no other."""

    @abstractmethod
    def get(self, path: str, *, digest: bool = False) -> AbstractAsyncContextManager[Download]:
        """Read a file or a folder. With digest, `about` has the sha256 of a file."""

    @abstractmethod
    async def rename(self, path: str, to: str, *, replace: bool = False) -> FileEntry:
        """Move a file, a folder or a link; returns its new entry."""

    @abstractmethod
    def batches(
        self, path: str, *, recursive: bool = False, depth: int | None = None, limit: int = 1000
    ) -> AsyncGenerator[Batch | ListEnd]:
        """The entries of a folder in batches, up to limit in all, then ListEnd. depth: how many
        folders in folders, this one included; by default one, or all of them if recursive."""

    async def list(
        self, path: str, *, recursive: bool = False, depth: int | None = None, limit: int = 1000
    ) -> Listing:
        """The entries of a folder, sorted by name, each folder before its contents."""
        return await whole(self.batches(path, recursive=recursive, depth=depth, limit=limit))

    async def stat(self, path: str, *, follow: bool = False) -> FileEntry:
        """The entry of a file, a folder or a link; with follow, of what a link leads to."""
        raise _lacking("files")

    async def mkdir(self, path: str) -> FolderMade:
        """Make a folder, with those on the way."""
        raise _lacking("files")

    async def remove(self, path: str, *, recursive: bool = True) -> None:
        """Remove a file, a link, or a folder, with all in it if recursive."""
        raise _lacking("files")

    async def watch(self, path: str, *, recursive: bool = False) -> WatchStarted:
        """Watch a folder from now on. The box ends a watch that is not read for some minutes."""
        raise _lacking("watch")

    async def watched(self, watch_id: str, *, after: int, wait_s: float) -> FileChanges:
        """What has changed after a position, or changes within wait_s seconds. Raises NotFound."""
        raise _lacking("watch")

    async def unwatch(self, watch_id: str) -> bool:
        """End a watch. Whether there was one."""
        raise _lacking("watch")

    async def changes(
        self, command_id: str | None, *, marked_only: bool, age_s: float | None = None, limit: int
    ) -> Listing:
        """The files that a command marked with save_artifact, then, unless marked_only, those
        below /workspace that were made or changed since its start, or in the last age_s seconds.

        Hidden files are left out, and hidden folders, node_modules and the like are not looked
        into. Raises InvalidRequest if boxes of this kind cannot tell.
        """
        raise errors.InvalidRequest(
            "sandboxes of this runtime cannot tell which files a command has changed; download"
            " them instead"
        )

    def pack(
        self, roots: Sequence[str], *, pause_s: float, still: bool = False
    ) -> AbstractAsyncContextManager[PackedTree]:
        """All files below some of the writable places, and the state of the shell. The processes
        of the box are paused meanwhile, for at most pause_s: else Conflict is raised.

        still: nothing is written to its disk until the tree is iterated over, not even by uploads.
        """
        raise _lacking("tree")

    async def unpack(self, segments: AsyncIterable[bytes]) -> TreeCounts:
        """Replace all files, and the state of the shell, by those of a packed tree. If it raises,
        the box is of no more use."""
        raise _lacking("tree")

    def dial(
        self, *, port: int | None = None, path: str | None = None
    ) -> AbstractAsyncContextManager[ByteChannel]:
        """A connection to a port of the box's loopback, or to a unix socket in it. Raises
        NotListening."""
        raise _lacking("tunnel")

    def accept(self, port: int) -> AbstractAsyncContextManager[ByteChannel]:
        """The next connection that a process of the box makes to a port of its loopback, at which
        the box listens for us from the first call on. Waits for it. Raises Conflict if somebody
        else listens there."""
        raise _lacking("tunnel")


async def whole(batches: AsyncGenerator[Batch | ListEnd]) -> Listing:
    entries: Batch = []
    async with aclosing(batches):
        async for batch in batches:
            if isinstance(batch, ListEnd):
                return Listing(entries, batch.truncated)
            entries += batch
    raise AssertionError("a listing ends or raises")


async def put_files(agent: BoxAgent, files: Mapping[str, str]) -> None:
    """Write these contents, by path."""
    for path, text in files.items():
        await agent.put(path, _once(text.encode()))


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


_OTHERWISE = "sandboxes of this runtime cannot do this; use a command instead"
_LACKING: dict[Ability, str] = {
    "code": "sandboxes of this runtime do not run code in contexts; use execute, or another"
    " runtime",
    "files": _OTHERWISE,
    "pause": "sandboxes of this runtime cannot be paused",
    "pty": "this sandbox has no terminals",
    "tree": "sandboxes of this runtime cannot be checkpointed; download their files instead",
    "tunnel": "sandboxes of this runtime have no connections to their ports",
    "watch": _OTHERWISE,
}


def _lacking(ability: Ability) -> errors.InvalidRequest:
    return errors.InvalidRequest(_LACKING[ability])
