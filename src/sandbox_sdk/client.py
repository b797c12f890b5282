"""AsyncSandboxClient: one conversation's sandbox, wherever it runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, Unpack
from urllib.parse import urlencode

from sandbox_sdk import transfer
from sandbox_sdk.artifacts import AsyncArtifactFile
from sandbox_sdk.checkpoints import CheckpointMethods
from sandbox_sdk.connection import Connection, code_request, command_request, context_id_of
from sandbox_sdk.documented import takes_options, with_contents
from sandbox_sdk.errors import CodeFailed, CommandFailed
from sandbox_sdk.file_methods import FileMethods
from sandbox_sdk.key_methods import KeyMethods
from sandbox_sdk.mounts.asked import MountOptions
from sandbox_sdk.mounts.methods import MountMethods
from sandbox_sdk.options import CodeOptions, CommandOptions
from sandbox_sdk.ports import PortMethods
from sandbox_sdk.process import AsyncProcess
from sandbox_sdk.protocol.errors import (
    FileMissing,
    RuntimeUnavailable,
    SandboxError,
    SessionLost,
    SessionNotFound,
)
from sandbox_sdk.protocol.events import CodeEvent, CommandEvent
from sandbox_sdk.protocol.models import (
    TERM,
    WORKSPACE,
    CallToolRequest,
    CleanupResult,
    CodeResult,
    CommandList,
    Context,
    ContextTarget,
    CreateContextRequest,
    EgressOptions,
    ExecuteResult,
    FileEntry,
    Health,
    LimitOptions,
    ListResult,
    NetworkMode,
    OutputEncoding,
    PortOptions,
    RegistryList,
    RenameRequest,
    Session,
    SessionActivity,
    SessionInfo,
    SessionList,
    SessionSummary,
    Target,
    ToolAnswer,
    UploadResult,
    Verdict,
    VolumeOptions,
    checked,
)
from sandbox_sdk.protocol.operations import (
    CREATE_CONTEXT,
    INTERRUPT_CONTEXT,
    REMOVE_CONTEXT,
    RENAME,
    RESTART_CONTEXT,
    Operation,
)
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_sdk.transfer import ByteChunks, FileChunks

METHODS = {
    "Sessions": (
        "create_session", "session", "sessions", "set_lifetime", "set_egress", "pause", "unpause",
        "cleanup", "restart", "health", "thread_id", "close",
    ),
    "Commands": ("execute", "stream", "start", "terminal", "process", "commands", "check"),
    "Code": (
        "run_code", "stream_code", "contexts", "create_context", "restart_context",
        "remove_context", "interrupt_context",
    ),
    "Files": (
        "upload_file", "upload_bytes", "download_file", "download_bytes", "read_text",
        "write_text", "list_files", "exists", "rename", "stat", "mkdir",
        "remove", "watch_files", "artifacts",
    ),
    "Mounts": ("diff", "apply"),
    "Checkpoints": (
        "checkpoint", "checkpoints", "delete_checkpoint", "rewind", "fork", "history", "changes",
        "undo",
    ),
    "Volumes": ("volumes", "create_volume", "delete_volume"),
    "Ports": ("connect", "forward", "expose", "previews", "unexpose"),
    "Usage": ("usage",),
    "Events": ("watch",),
    "Declared by the operator": ("registry", "call_tool"),
}  # fmt: skip
"""The methods of a client, as its docstring lists them."""


@with_contents(METHODS)
class AsyncSandboxClient(CheckpointMethods, FileMethods, KeyMethods, MountMethods, PortMethods):
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
    overrides all of these. A first argument with `://` in it is the server_url.

    A client with a `thread_id` (or a `session_id`) shares that sandbox with every other client that
    has the same, now and later; closing the client leaves the sandbox alone. A client without one
    has a sandbox of its own, which ends when the client is closed.

    `environment`, `provider`, `limits`, `network`, `history` and `volumes` are those of
    create_session(), for the sandbox that the first use makes. One that was there before keeps its
    own, and a warning names what differs. A new one after a loss or an expiry has the same.

    `mounts` are folders of this machine with their places in /workspace. The sandbox that the first
    use makes gets a copy of each; diff() tells what became of them there, and apply() brings it
    back. A sandbox that has its copies goes on with them, and a warning tells what is newer here.
    A place that ends with `:ro` or `:rw` has the folder itself, where this process makes the
    sandbox.

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
        environment: str | None = None,
        provider: str | None = None,
        limits: LimitOptions | None = None,
        network: NetworkMode | None = None,
        mounts: MountOptions | None = None,
        history: bool = False,
        volumes: Sequence[VolumeOptions] | None = None,
    ) -> None:
        if thread_id is not None and "://" in thread_id:
            if server_url is not None:
                raise ValueError(f"two servers are given: {thread_id} and {server_url}")
            thread_id, server_url = None, thread_id
        if backend is None:
            backend = default_backend(server_url, api_key)
        elif server_url is not None or api_key is not None:
            raise ValueError(
                "backend has a server_url and api_key of its own: give one or the other"
            )
        options = {
            "environment": environment,
            "provider": provider,
            "limits": limits,
            "network": network,
            "history": history,
            "volumes": volumes,
        }
        self._connection = Connection(
            backend, thread_id=thread_id, session_id=session_id, options=options, mounts=mounts
        )

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
        agent: str | None = None,
        env: Mapping[str, str] | None = None,
        idle_timeout_s: float | None = None,
        lifetime_s: float | None = None,
        pause_at_end: bool = False,
        metadata: Mapping[str, str] | None = None,
        provider: str | None = None,
        limits: LimitOptions | None = None,
        network: NetworkMode | None = None,
        egress_rules: EgressOptions | None = None,
        ports: PortOptions | None = None,
        checkpoint_id: str | None = None,
        persist: bool = False,
        checkpoint_every: str | float | None = None,
        history: bool = False,
        volumes: Sequence[VolumeOptions] | None = None,
    ) -> Session:
        """Make the sandbox now, with settings of its own: the first use makes one without them.

        environment: what the box has in it: Python3, Node, Data, or another name out of the
            server's registry or SANDBOX_ENVIRONMENTS; see docs/boxes/environments.md. By default
            the server's usual image.
        agent: a name out of the server's registry: the sandbox is as that agent has it, and the
            `agent` of the answer has its prompt and tools.
        env: variables of every command.
        idle_timeout_s: seconds without use after which it ends, at most a day; by default the
            server's, half an hour unless configured.
        lifetime_s: seconds after which it ends, used or not, with what runs in it, at most 30 days;
            by default it lasts as long as it is used. set_lifetime() changes it.
        pause_at_end: at the end of its lifetime it is paused, instead of ended; see pause().
        metadata: what sessions() can be searched for, such as {"user": "42"}.
        provider: the runtime that makes it, out of the server's SANDBOX_PROVIDERS; by default the
            first of them.
        limits: `memory` and `disk` in bytes or as "2g", `cpus` in cores, `pids` as a number,
            `command_timeout_s` in seconds or as "10m". What is left out is as usual, and nothing
            may be more than the server allows: InvalidRequest names the maximum.
        network: "none", "allowlist" (the hosts that the operator has named), "open" (any public
            host) or "bridge" (that of a Docker engine), up to what the server allows; by default
            that of the environment, or the server's. See docs/network.md.
        egress_rules: what it may not reach of that, as {"allow": […], "deny": ["0.0.0.0/0"]}:
            addresses and networks, and names in `allow`, which counts before `deny`;
            set_egress() changes it.
        ports: every port of it is a preview from the start, without expose(): {"public": True} for
            all who know the URL; see OpenPorts. By default those alone that are exposed.
        checkpoint_id: it begins with the files and the shell state of this checkpoint.
        persist: when it has been idle for too long it is kept as a checkpoint, and the next use
            goes on from there; so it does after its box is lost, from the last checkpoint.
        checkpoint_every: take a checkpoint besides: every so many seconds (300 or "5m"), or every
            so many commands ("20 commands"), if something happened since.
        history: keep a point before every command, for history() and undo(). Only where the disk
            of a box can be copied in a moment: else InvalidRequest says why not.
        volumes: folders that outlive it, as [{"name": "data", "path": "/workspace/data"}]; with
            "mode": "ro", any number of sandboxes can have one at the same time, otherwise one.

        `status` says whether it existed before, and `not_applied` which of these settings such a
        sandbox does not have: to have them, cleanup() first.
        """
        return await self._connection.make(
            environment=environment,
            agent=agent,
            env=env or {},
            idle_timeout_s=idle_timeout_s,
            lifetime_s=lifetime_s,
            pause_at_end=pause_at_end or None,
            metadata=None if metadata is None else dict(metadata),
            provider=provider,
            limits=limits,
            network=network,
            egress_rules=egress_rules,
            ports=ports,
            checkpoint_id=checkpoint_id,
            persist=persist or None,
            checkpoint_every=checkpoint_every,
            history=history or None,
            volumes=volumes,
        )

    async def session(self) -> SessionInfo:
        """The state of the sandbox. Neither counts as a use, nor makes the one of a thread."""
        sandboxes, target = await self._connection.ready(makes=False)
        return await sandboxes.session(target)

    async def sessions(
        self,
        *,
        metadata: Mapping[str, str] | None = None,
        environment: str | None = None,
        state: SessionActivity | None = None,
        created_after: datetime | None = None,
        order: Literal["oldest", "newest"] = "oldest",
        limit: int | None = None,
        after: str | None = None,
    ) -> SessionList:
        """The live sessions of this server and key, or of this machine's user: those that have all
        of `metadata`, and fit whatever else is given.

        With `limit`, `next` of the answer is the `after` of the call for those that follow.
        """
        return await (await self._connection.opened()).sessions(
            metadata=urlencode(metadata) if metadata else None,
            environment=environment,
            state=state,
            created_after=created_after,
            order=order,
            limit=limit,
            after=after,
        )

    async def pause(self) -> SessionSummary:
        """Stop all that runs in the sandbox until it is used again, for 24 hours at most. Time
        limits of its commands stand still, and its memory is taken back as far as that can be.

        Neither counts as a use, nor makes the sandbox of a thread.
        """
        sandboxes, target = await self._connection.ready(makes=False)
        return await sandboxes.pause(target)

    async def unpause(self) -> SessionSummary:
        """Let what runs in a paused sandbox go on. So does any use of it."""
        sandboxes, target = await self._connection.ready(makes=False)
        return await sandboxes.unpause(target)

    async def set_lifetime(self, lifetime_s: float, *, only_longer: bool = False) -> SessionSummary:
        """End the sandbox so many seconds from now, used or not, with what runs in it. 0: it lasts
        as long as it is used. only_longer: leave it alone where it lasts longer already.

        Neither counts as a use, nor makes the sandbox of a thread.
        """
        sandboxes, target = await self._connection.ready(makes=False)
        return await sandboxes.set_lifetime(target, lifetime_s, only_longer=only_longer)

    async def set_egress(
        self, *, allow: Sequence[str] = (), deny: Sequence[str] = ()
    ) -> SessionSummary:
        """Say what the sandbox may not reach of what its network allows: addresses and networks of
        `deny` (`0.0.0.0/0` is everything), unless `allow` has them, or the name that was asked for.
        These replace the ones before; without any, it reaches what its network allows.

        Neither counts as a use, nor makes the sandbox of a thread.
        """
        sandboxes, target = await self._connection.ready(makes=False)
        return await sandboxes.set_egress(target, allow=allow, deny=deny)

    async def cleanup(self) -> CleanupResult:
        """End the sandbox, with its files. The next use of its thread makes a new one."""
        sandboxes, target = await self._connection.ready(makes=False)
        ended = await sandboxes.cleanup(target)
        self._connection.has_ended()
        return ended

    async def restart(self, *, env: Mapping[str, str] | None = None) -> Session:
        """End the sandbox and make an empty one for its thread, with the next generation.

        Environment, agent, provider, limits, network, volumes, metadata, idle timeout and lifetime
        stay as they were; variables are those given here.
        """
        sandboxes, target = await self._connection.ready(makes=False)
        before = None if target.thread_id else await sandboxes.session(target)
        ended = CleanupResult()
        with contextlib.suppress(SessionNotFound, SessionLost):
            ended = await sandboxes.cleanup(target)
        return await self._connection.make(
            again=before,
            environment=ended.environment,
            agent=ended.agent,
            env=env or {},
            idle_timeout_s=ended.idle_timeout_s,
            lifetime_s=ended.lifetime_s,
            metadata=ended.metadata or None,
            provider=ended.provider,
            limits=ended.limits or None,
            network=ended.network,
            egress_rules=ended.egress_rules and ended.egress_rules.model_dump(),
            ports=ended.ports and ended.ports.model_dump(),
            volumes=[each.to_dict() for each in ended.volumes] or None,
        )

    async def health(self) -> Health:
        """The state of the server, or of the service in this process."""
        return await (await self._connection.opened()).health()

    # What the operator has declared

    async def registry(self) -> RegistryList:
        """The agents, tools and environments of the server's registry."""
        return await (await self._connection.opened()).registry()

    async def call_tool(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> ToolAnswer:
        """Call a tool by its name, one of ours or a declared one. `text` is for the model.

        With the same idempotency_key it is carried out once, however often it is called.
        """
        sandboxes, target = await self._connection.ready()
        request = checked(
            CallToolRequest,
            **dict(target),
            tool=tool,
            arguments=dict(arguments or {}),
            idempotency_key=idempotency_key,
        )
        return await sandboxes.call_tool(request)

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
        sandboxes, target = await self._connection.ready(makes=False)
        return await sandboxes.check(command_request(target, command))

    @takes_options()
    async def stream(
        self,
        command: str,
        *,
        stdin_open: bool = False,
        encoding: OutputEncoding = "utf-8",
        **options: Unpack[CommandOptions],
    ) -> AsyncGenerator[CommandEvent]:
        """Run a command and yield what happens: its start, its output as it comes, its exit.

        Leaving early does not end it. With stdin_open it takes input while it runs, from the
        process() of its command_id. With the encoding "bytes", raw() of an output event is exactly
        what the command wrote; as text, what is not UTF-8 is replaced.
        """
        sandboxes, target = await self._connection.ready()
        request = command_request(
            target, command, **options, stdin_open=stdin_open, encoding=encoding
        )
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

    @takes_options()
    async def terminal(
        self,
        command: str = "",
        *,
        rows: int = 24,
        cols: int = 80,
        term: str = TERM,
        **options: Unpack[CommandOptions],
    ) -> AsyncProcess:
        """Run a command on a terminal, in the background. Its output is what a screen shows, and
        its input what is typed: send_stdin("\\x03") is Ctrl-C.

        Without a command it is an interactive bash that goes on from the last command, and leaves
        its directory and variables to the next one.
        """
        sandboxes, target = await self._connection.ready()
        pty = {"rows": rows, "cols": cols, "term": term}
        request = command_request(target, command, **options, background=True, pty=pty)
        started = await sandboxes.execute(request)
        return AsyncProcess(sandboxes, target, started.command_id)

    async def process(self, command_id: str) -> AsyncProcess:
        """A command that was started before, by this client or another. Raises NotFound."""
        sandboxes, target = await self._connection.ready(makes=False)
        await sandboxes.result(target, command_id)
        return AsyncProcess(sandboxes, target, command_id)

    async def commands(self) -> CommandList:
        """The commands that run in the sandbox, and the newest of those that ended."""
        sandboxes, target = await self._connection.ready(makes=False)
        return await sandboxes.commands(target)

    # Code

    @takes_options(CodeOptions)
    async def run_code(
        self,
        code: str,
        language: str | None = None,
        *,
        check: bool = False,
        **options: Unpack[CodeOptions],
    ) -> CodeResult:
        """Run code to its end. Variables and imports stay in its context.

        language: `python` by default; `bash`, or any that the environment has a Jupyter kernel for.

        What the code raises is in `error` of the result. With check it raises CodeFailed.
        """
        sandboxes, target = await self._connection.ready()
        request = code_request(target, code, language=language, **options)
        result = await sandboxes.run_code(request)
        if check and result.error is not None:
            raise CodeFailed(result)
        return result

    @takes_options(CodeOptions)
    async def stream_code(
        self,
        code: str,
        language: str | None = None,
        **options: Unpack[CodeOptions],
    ) -> AsyncGenerator[CodeEvent]:
        """Run code and yield what happens: its start, output and results as they come, its end.

        Leaving early does not end it.
        """
        sandboxes, target = await self._connection.ready()
        request = code_request(target, code, language=language, **options)
        async with aclosing(sandboxes.stream_code(request)) as events:
            async for event in events:
                yield event

    async def contexts(self) -> list[Context]:
        """The contexts of the sandbox. Neither counts as a use, nor makes the sandbox."""
        sandboxes, target = await self._connection.ready(makes=False)
        return (await sandboxes.contexts(target)).contexts

    async def create_context(
        self, language: str = "python", *, cwd: str | None = None, context_id: str | None = None
    ) -> Context:
        """Make a context with variables of its own. context_id: a name for it.

        cwd: where its code runs, by default /workspace.
        """
        sandboxes, target = await self._connection.ready()
        request = checked(
            CreateContextRequest,
            **dict(target), language=language, cwd=cwd, context_id=context_id,
        )  # fmt: skip
        return await sandboxes.call(CREATE_CONTEXT, request)

    async def restart_context(self, context: str | Context = "python") -> Context:
        """Begin anew in a context: its variables are gone, and what runs there is ended."""
        return await self._context(RESTART_CONTEXT, context)

    async def remove_context(self, context: str | Context) -> Context:
        """End a context, with what runs there."""
        return await self._context(REMOVE_CONTEXT, context)

    async def interrupt_context(self, context: str | Context = "python") -> Context:
        """Interrupt what runs in a context, as Ctrl-C does. It keeps its variables."""
        return await self._context(INTERRUPT_CONTEXT, context)

    async def _context(
        self, operation: Operation[ContextTarget, Context], context: str | Context
    ) -> Context:
        sandboxes, target = await self._connection.ready(makes=False)
        request = checked(ContextTarget, **dict(target), context_id=context_id_of(context))
        return await sandboxes.call(operation, request)

    # Files

    async def upload_file(
        self,
        local_path: str | os.PathLike[str],
        path: str | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> UploadResult:
        """Store a file of this machine; path is relative to /workspace, by default its own name.

        metadata: kept with the file, and told by stat() and list_files().
        """
        sandboxes, target = await self._connection.ready()
        local = Path(local_path)
        name = path or local.name
        return await sandboxes.upload_file(target, name, FileChunks(local), metadata=metadata)

    async def upload_bytes(
        self, data: bytes, path: str, *, metadata: Mapping[str, str] | None = None
    ) -> UploadResult:
        """Store a file; metadata as for upload_file()."""
        sandboxes, target = await self._connection.ready()
        return await sandboxes.upload_file(target, path, ByteChunks(data), metadata=metadata)

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
        self,
        path: str = WORKSPACE,
        *,
        recursive: bool = False,
        depth: int | None = None,
        limit: int = 1000,
    ) -> ListResult:
        """What is in a folder; of a file, the file itself.

        recursive: also what is in folders below; depth: down to so many folders. limit: the most
        entries, at most 100,000; the answer's `truncated` says whether there are more.
        """
        sandboxes, target = await self._connection.ready()
        return await sandboxes.list_files(
            target, path=path, recursive=recursive, depth=depth, limit=limit
        )

    async def rename(self, path: str, to: str, *, replace: bool = False) -> FileEntry:
        """Move a file or a folder, and return its new entry. Missing parent folders are made.

        replace: whether a file that is there already goes; a folder never does.
        """
        sandboxes, target = await self._connection.ready()
        request = checked(RenameRequest, **dict(target), path=path, to=to, replace=replace)
        return await sandboxes.call(RENAME, request)

    async def artifacts(self, *, limit: int = 100) -> list[AsyncArtifactFile]:
        """The files that runs of this thread have left, newest first, also of ended sessions.

        Those of execute(artifacts=True), and those marked with save_artifact in the sandbox.
        """
        sandboxes, target = await self._connection.ready()
        found = await sandboxes.artifacts(
            thread_id=target.thread_id, session_id=target.session_id, limit=limit
        )
        return [AsyncArtifactFile(sandboxes, artifact) for artifact in found.artifacts]

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
