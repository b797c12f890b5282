"""BoxAgent: what the service asks of a box, and in which shapes it answers.

The warden's client is one agent. A box without a warden, such as a sandbox in somebody's cloud, can
have another; what that cannot do, it says in `lacks`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, Self, TypedDict, Unpack

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

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


Ability = Literal["replay", "offsets", "stdin", "adoption"]
"""What an agent may lack: telling output again that was told before; from any offset on; input for
a command that runs; being found again by the next server."""


class Said(BaseModel):
    """Something an agent says. Checked: every field is typed and bounded before anyone relies on
    it, since a box is hostile."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class CommandStanding(Said):
    """How a command stands; exit_code is None while it runs."""

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


class CommandExit(CommandStanding):
    """How a command ended."""

    exit_code: ExitCode


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


@dataclass(frozen=True)
class Started:
    command_id: str
    stdin_received: int = 0


@dataclass(frozen=True)
class Output:
    """Bytes of a command's output; `offset` counts both streams together."""

    stream: StreamName
    offset: int
    data: bytes


@dataclass(frozen=True)
class Gap:
    """Output that is no longer kept: the bytes from start up to end."""

    start: int
    end: int


@dataclass(frozen=True)
class Exited:
    result: CommandExit


Event = Started | Output | Gap | Exited


OF_STREAM: dict[StreamName, int] = {"stdout": 0, "stderr": 1}
OF_BOTH = 2


@dataclass(frozen=True)
class CommandResult:
    """A command with the output kept of it. Texts are made when they are asked for: together they
    take three times as much as the bytes."""

    exit: CommandStanding
    truncated: bool
    _kept: bytearray
    _ends: array[int]
    """Where each run of one stream ends in what is kept, and of which it is: end * 4 + of."""

    @property
    def output(self) -> str:
        """Both streams as they came."""
        return self._kept.decode("utf-8", "replace")

    @property
    def stdout(self) -> str:
        return self._text(OF_STREAM["stdout"])

    @property
    def stderr(self) -> str:
        return self._text(OF_STREAM["stderr"])

    def _text(self, wanted: int) -> str:
        parts, start = [], 0
        for end in self._ends:
            if end & 3 in (wanted, OF_BOTH):
                parts.append(self._kept[start : end >> 2])
            start = end >> 2
        return b"".join(parts).decode("utf-8", "replace")


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
        """Run a command and yield what happens."""

    @abstractmethod
    def attach(self, command_id: str, *, offset: int = 0) -> AsyncGenerator[Event]:
        """Go on with a command that was started before, from an offset in its output on."""

    @abstractmethod
    async def result(self, command_id: str, *, output_limit: int = OUTPUT_LIMIT) -> CommandResult:
        """How a command stands, with the output kept so far."""

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
