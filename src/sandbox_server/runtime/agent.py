"""BoxAgent: what the service asks of a box, and in which shapes it answers.

The warden's client is one agent. A box without a warden, such as a sandbox in somebody's cloud, can
have another, and says in `lacks` what that cannot do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, Self, TypedDict, Unpack

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, StringConstraints

from sandbox_sdk.protocol import errors

OUTPUT_LIMIT = 1 << 20
Short = Annotated[str, StringConstraints(max_length=200)]
Ident = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,200}$")]
"""Goes into lines of logs and of streams of events."""
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""Goes into a header."""
PathText = Annotated[str, StringConstraints(max_length=8192)]
Count = Annotated[int, Field(ge=0, le=1 << 62)]
ExitCode = Annotated[int, Field(ge=0, le=255)]
StreamName = Literal["stdout", "stderr"]
Ability = Literal["replay", "stdin"]
"""What an agent may lack: sending output again from an offset on; input for a running command."""


class Said(BaseModel):
    """Something an agent says. Checked: every field is typed and bounded before anyone relies on
    it, since a box is hostile."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class CommandSummary(Said):
    command_id: Ident
    idempotency_key: Short | None
    running: bool
    exit_code: ExitCode | None
    age_s: float
    output_bytes: Count
    late_bytes: Count


class BoxAbout(Said):
    version: int
    """Of the protocol, as both ends speak it."""
    build: Short = ""
    """Which warden it is, by zipapp.warden_version() of the server that made the box. The first
    ones did not tell."""
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
    """Whether more are remembered than are told."""


class FileEntry(Said):
    name: PathText
    path: PathText
    type: Literal["file", "directory", "symlink", "other"]
    size: Count
    mode: Short
    modified_at: float


class ListEnd(Said):
    truncated: bool


class Uploaded(Said):
    path: PathText
    size: Count


class DownloadAbout(Said):
    path: PathText
    type: Literal["file", "directory"]
    size: Count | None
    modified_at: float
    mode: Short
    sha256: Sha256 | None


class Usage(Said):
    cpu_s: Annotated[float, Field(ge=0)]
    memory_bytes: Count | None
    disk_bytes: Count | None
    pids: Count


@dataclass(frozen=True)
class Listing:
    entries: list[FileEntry]
    truncated: bool


class Fenced(errors.RuntimeUnavailable):
    """Another owner with a higher epoch has taken this box over."""


# Commands


class RunOptions(TypedDict, total=False):
    """How a command is run."""

    timeout_s: float | None
    """30 s unless told; None for no limit."""
    cwd: str | None
    env: Mapping[str, str] | None
    stdin: bytes | None
    stdin_open: bool
    """Whether more input may be sent later, until its end is."""
    key: str | None
    """A second run under the same key joins the first instead."""
    command_id: str | None
    output_limit: int


class Started(Said):
    command_id: Ident
    stdin_received: Count


@dataclass(frozen=True)
class Output:
    """Bytes of a command's output; `offset` counts both streams together."""

    stream: StreamName
    offset: int
    data: bytes


class Gap(Said):
    """Output that is no longer kept: the bytes from start up to end."""

    start: Count
    end: Count


_OF_STREAM: dict[StreamName, int] = {"stdout": 0, "stderr": 1}
_OF_BOTH = 2
_EMPTY_COSTS = 64
"""What an event without output counts for: a box could send any number of them."""


class KeptOutput:
    """What is kept of a command's output. Texts are made when they are asked for: together they
    take three times as much as the bytes.

    most: how many bytes a box may send. One that sends more would fill this server's memory.
    """

    def __init__(self, most: int = 0) -> None:
        self.truncated = False
        """Whether the box dropped some of it."""
        self._most = most
        self._taken = 0
        self._data = bytearray()
        self._ends = array("Q")
        """Where each run of one stream ends in the data, and of which it is: end * 4 + of."""

    def add(self, event: Output | Gap) -> None:
        """Raises RuntimeUnavailable where it is too much."""
        data = b"" if isinstance(event, Gap) else event.data
        self._taken += len(data) or _EMPTY_COSTS
        if self._taken > self._most:
            raise errors.RuntimeUnavailable(
                f"the box sent more than {self._most} bytes of output, which is more than it was"
                " told to keep; run the command again"
            )
        if isinstance(event, Gap):
            self.truncated = True
            left_out = b"\n[%d bytes of output left out]\n" % (event.end - event.start)
            self._append(left_out, _OF_BOTH)
        else:
            self._append(data, _OF_STREAM[event.stream])

    def text(self, stream: StreamName | None = None) -> str:
        """One stream, or both as they came."""
        if stream is None:
            return self._data.decode("utf-8", "replace")
        parts, start = [], 0
        for end in self._ends:
            if end & 3 in (_OF_STREAM[stream], _OF_BOTH):
                parts.append(self._data[start : end >> 2])
            start = end >> 2
        return b"".join(parts).decode("utf-8", "replace")

    def _append(self, data: bytes, of: int) -> None:
        self._data += data
        end = len(self._data) << 2 | of
        if self._ends and self._ends[-1] & 3 == of:
            self._ends[-1] = end
        else:
            self._ends.append(end)


class CommandResult(Said):
    """How a command ended, or stands while it runs: then exit_code is None.

    The one shape of it between a frame of the warden and an answer on the wire. In a stream of
    events it has no output: that was told before.
    """

    command_id: Ident
    exit_code: ExitCode | None
    signal: Short | None
    reason: Short | None
    timed_out: bool
    duration_ms: Annotated[float, Field(ge=0)]
    output_bytes: Count
    cwd: PathText
    state_saved: bool
    """False where the shell could not hand on its state (killed, exec, too large): the state from
    before the command is in force."""
    _kept: KeptOutput = PrivateAttr(default_factory=KeptOutput)

    def with_output(self, kept: KeptOutput) -> Self:
        self._kept = kept
        return self

    @property
    def truncated(self) -> bool:
        return self._kept.truncated

    @property
    def output(self) -> str:
        """Both streams as they came."""
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
    """A file on its way out: what it is, then its bytes. A folder comes as a tar."""

    about: DownloadAbout

    def __aiter__(self) -> AsyncIterator[bytes]: ...


class BoxAgent(ABC):
    """Speaks to one box for its owner. Every method may raise SessionLost where the box is gone,
    Fenced where it is another owner's, and RuntimeUnavailable where it cannot be reached."""

    lacks: frozenset[Ability] = frozenset()
    about: BoxAbout | None
    """What the box said of itself when it was reached last."""

    def require(self, ability: Ability, purpose: str) -> None:
        """Raises InvalidRequest where this box cannot do what a call needs."""
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
        """Make sure that the box is there."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of it. The box and what runs in it live on."""

    @abstractmethod
    async def ping(self) -> None:
        """Tell the box that its owner lives."""

    @abstractmethod
    async def state(self) -> BoxState:
        """What the owner left in the box, and the commands it knows."""

    @abstractmethod
    async def set_state(self, state: Mapping[str, Any]) -> BoxState:
        """Leave something in the box for whoever owns it next."""

    @abstractmethod
    async def usage(self) -> Usage:
        """What the box uses now."""

    @abstractmethod
    async def run(self, command: str, **options: Unpack[RunOptions]) -> CommandResult:
        """Run a command to its end and return what is kept of its output."""

    @abstractmethod
    async def start(self, command: str, **options: Unpack[RunOptions]) -> str:
        """Run a command without waiting for its end; its id."""

    @abstractmethod
    def stream(self, command: str, **options: Unpack[RunOptions]) -> AsyncGenerator[Event]:
        """Run a command and yield its output as it comes. Leaving early does not end it."""

    @abstractmethod
    def attach(self, command_id: str, *, offset: int = 0) -> AsyncGenerator[Event]:
        """Go on with a command that was started before, from an offset in its output on."""

    @abstractmethod
    async def result(self, command_id: str, *, output_limit: int = OUTPUT_LIMIT) -> CommandResult:
        """How a command stands, with the output kept so far. output_limit: as it was run with."""

    @abstractmethod
    async def ended(self, command_id: str) -> None:
        """Returns when a command has ended."""

    @abstractmethod
    async def signal(self, command_id: str, number: int) -> CommandSummary:
        """Send a signal to all processes of a command; 9 ends everything it has started."""

    @abstractmethod
    async def send_stdin(
        self, command_id: str, data: bytes, *, end: bool = False, offset: int | None = None
    ) -> int:
        """Input for a command that was started with `stdin_open`; how much has come so far."""

    @abstractmethod
    async def put(
        self, path: str, chunks: AsyncIterable[bytes], *, mode: int = 0o644, limit: int = 1 << 62
    ) -> Uploaded:
        """Store a file. It appears under its name when it is whole, or not at all."""

    @abstractmethod
    def get(self, path: str, *, digest: bool = False) -> AbstractAsyncContextManager[Download]:
        """Read a file or a folder. With digest, its sha256 is known before the first byte."""

    @abstractmethod
    async def rename(self, path: str, to: str, *, replace: bool = False) -> FileEntry:
        """Move a file, a folder or a link; what it is where it is then."""

    @abstractmethod
    def batches(
        self, path: str, *, recursive: bool = False, limit: int = 1000
    ) -> AsyncGenerator[Batch | ListEnd]:
        """The entries of a folder, up to limit, some at a time; then whether there are more."""
