"""SandboxClient: AsyncSandboxClient for synchronous callers. It only forwards."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, Unpack

from sandbox_sdk.artifacts import ArtifactFile
from sandbox_sdk.background import background
from sandbox_sdk.client import METHODS, AsyncSandboxClient
from sandbox_sdk.documented import twin_of, with_contents
from sandbox_sdk.forwarding import BlockingChannel, Forward
from sandbox_sdk.mounts.asked import MountOptions
from sandbox_sdk.mounts.changes import MountChanges
from sandbox_sdk.options import CodeOptions, CommandOptions
from sandbox_sdk.process import Process
from sandbox_sdk.protocol.events import CodeEvent, CommandEvent
from sandbox_sdk.protocol.models import (
    TERM,
    WORKSPACE,
    Checkpoint,
    CleanupResult,
    CodeResult,
    CommandChanges,
    CommandList,
    Context,
    EgressOptions,
    ExecuteResult,
    FileChange,
    FileEntry,
    Happening,
    HappeningKind,
    Health,
    HistoryEntry,
    LimitOptions,
    ListResult,
    MkdirResult,
    NetworkMode,
    PortOptions,
    Preview,
    RegistryList,
    Session,
    SessionActivity,
    SessionInfo,
    SessionList,
    SessionSummary,
    ToolAnswer,
    Undone,
    UploadResult,
    UsageBy,
    UsageReport,
    Verdict,
    Volume,
    VolumeOptions,
)
from sandbox_sdk.protocol.sandboxes import Sandboxes

_Result = TypeVar("_Result")


@with_contents(METHODS)
@twin_of(AsyncSandboxClient)
class SandboxClient:
    """The sandbox of one thread. It is made at its first use.

        >>> with SandboxClient() as sandbox:
        ...     result = sandbox.execute("cd /tmp; export NAME=world")
        ...     sandbox.execute("echo hello $NAME from $PWD").output
        'hello world from /tmp\\n'

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

    Every method may raise any SandboxError. AsyncSandboxClient has the same methods for an event
    loop.

    Any number of threads may share one. It also works inside a running event loop, such as a
    notebook's, and blocks it like any synchronous call. One that is never closed is closed when it
    is garbage collected, or at the end of the process.
    """

    _kind = AsyncSandboxClient

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
        self._background = background()
        self._client = self._kind(
            thread_id,
            session_id=session_id,
            server_url=server_url,
            api_key=api_key,
            backend=backend,
            environment=environment,
            provider=provider,
            limits=limits,
            network=network,
            mounts=mounts,
            history=history,
            volumes=volumes,
        )
        self._background.close_when_unheld(self, self._client)

    def __repr__(self) -> str:
        return repr(self._client).replace("<Async", "<", 1)

    @property
    def thread_id(self) -> str | None:
        return self._client.thread_id

    def __enter__(self) -> Self:
        self._run(self._client.__aenter__)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._background.forget(self._client)
        self._background.run(lambda: self._client.__aexit__(*exc_info))

    def close(self) -> None:
        self._background.forget(self._client)
        self._background.run(self._client.close)

    def create_session(
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
        return self._run(
            lambda: self._client.create_session(
                environment=environment,
                agent=agent,
                env=env,
                idle_timeout_s=idle_timeout_s,
                lifetime_s=lifetime_s,
                pause_at_end=pause_at_end,
                metadata=metadata,
                provider=provider,
                limits=limits,
                network=network,
                egress_rules=egress_rules,
                ports=ports,
                checkpoint_id=checkpoint_id,
                persist=persist,
                checkpoint_every=checkpoint_every,
                history=history,
                volumes=volumes,
            )
        )

    def session(self) -> SessionInfo:
        return self._run(self._client.session)

    def sessions(
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
        return self._run(
            lambda: self._client.sessions(
                metadata=metadata,
                environment=environment,
                state=state,
                created_after=created_after,
                order=order,
                limit=limit,
                after=after,
            )
        )

    def pause(self) -> SessionSummary:
        return self._run(self._client.pause)

    def unpause(self) -> SessionSummary:
        return self._run(self._client.unpause)

    def set_lifetime(self, lifetime_s: float, *, only_longer: bool = False) -> SessionSummary:
        return self._run(lambda: self._client.set_lifetime(lifetime_s, only_longer=only_longer))

    def set_egress(self, *, allow: Sequence[str] = (), deny: Sequence[str] = ()) -> SessionSummary:
        return self._run(lambda: self._client.set_egress(allow=allow, deny=deny))

    def cleanup(self) -> CleanupResult:
        return self._run(self._client.cleanup)

    def restart(self, *, env: Mapping[str, str] | None = None) -> Session:
        return self._run(lambda: self._client.restart(env=env))

    def checkpoint(
        self,
        name: str | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        tmp: bool = True,
    ) -> Checkpoint:
        return self._run(lambda: self._client.checkpoint(name, metadata=metadata, tmp=tmp))

    def checkpoints(self, *, limit: int = 100) -> list[Checkpoint]:
        return self._run(lambda: self._client.checkpoints(limit=limit))

    def delete_checkpoint(self, checkpoint: str | Checkpoint) -> None:
        self._run(lambda: self._client.delete_checkpoint(checkpoint))

    def rewind(self, checkpoint: str | Checkpoint) -> Session:
        return self._run(lambda: self._client.rewind(checkpoint))

    def fork(
        self, into: int | Sequence[str] = 1, *, checkpoint: str | Checkpoint | None = None
    ) -> list[Self]:
        made = self._run(lambda: self._client.fork(into, checkpoint=checkpoint))
        backend = self._client._connection.backend
        return [type(self)(each.thread_id, backend=backend) for each in made]

    def history(self, *, limit: int = 20) -> list[HistoryEntry]:
        return self._run(lambda: self._client.history(limit=limit))

    def changes(self, number: int) -> CommandChanges:
        return self._run(lambda: self._client.changes(number))

    def undo(self, to: int | None = None) -> Undone:
        return self._run(lambda: self._client.undo(to))

    def usage(
        self,
        *,
        by: UsageBy = "day",
        since: date | None = None,
        until: date | None = None,
        thread_id: str | None = None,
    ) -> UsageReport:
        return self._run(
            lambda: self._client.usage(by=by, since=since, until=until, thread_id=thread_id)
        )

    def watch(
        self,
        *,
        thread_id: str | None = None,
        kind: HappeningKind | None = None,
        after: str | None = None,
    ) -> Generator[Happening]:
        self._close_at_exit()
        return self._background.iterate(
            lambda: self._client.watch(thread_id=thread_id, kind=kind, after=after)
        )

    def volumes(self) -> list[Volume]:
        return self._run(self._client.volumes)

    def create_volume(self, name: str, *, size: int | str | None = None) -> Volume:
        return self._run(lambda: self._client.create_volume(name, size=size))

    def delete_volume(self, name: str) -> None:
        self._run(lambda: self._client.delete_volume(name))

    def diff(self) -> MountChanges:
        return self._run(self._client.diff)

    def apply(self, *, force: bool = False, dry_run: bool = False) -> MountChanges:
        return self._run(lambda: self._client.apply(force=force, dry_run=dry_run))

    def health(self) -> Health:
        return self._run(self._client.health)

    def registry(self) -> RegistryList:
        return self._run(self._client.registry)

    def call_tool(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> ToolAnswer:
        return self._run(
            lambda: self._client.call_tool(tool, arguments, idempotency_key=idempotency_key)
        )

    def execute(
        self, command: str, *, check: bool = False, **options: Unpack[CommandOptions]
    ) -> ExecuteResult:
        return self._run(lambda: self._client.execute(command, check=check, **options))

    def check(self, command: str) -> Verdict:
        return self._run(lambda: self._client.check(command))

    def stream(
        self, command: str, *, stdin_open: bool = False, **options: Unpack[CommandOptions]
    ) -> Generator[CommandEvent]:
        self._close_at_exit()
        return self._background.iterate(
            lambda: self._client.stream(command, stdin_open=stdin_open, **options)
        )

    def start(
        self, command: str, *, stdin_open: bool = False, **options: Unpack[CommandOptions]
    ) -> Process:
        process = self._run(lambda: self._client.start(command, stdin_open=stdin_open, **options))
        return Process(process, self._background, client=self)

    def terminal(
        self,
        command: str = "",
        *,
        rows: int = 24,
        cols: int = 80,
        term: str = TERM,
        **options: Unpack[CommandOptions],
    ) -> Process:
        process = self._run(
            lambda: self._client.terminal(command, rows=rows, cols=cols, term=term, **options)
        )
        return Process(process, self._background, client=self)

    def process(self, command_id: str) -> Process:
        process = self._run(lambda: self._client.process(command_id))
        return Process(process, self._background, client=self)

    def commands(self) -> CommandList:
        return self._run(self._client.commands)

    def run_code(
        self,
        code: str,
        language: str | None = None,
        *,
        check: bool = False,
        **options: Unpack[CodeOptions],
    ) -> CodeResult:
        return self._run(lambda: self._client.run_code(code, language, check=check, **options))

    def stream_code(
        self,
        code: str,
        language: str | None = None,
        **options: Unpack[CodeOptions],
    ) -> Generator[CodeEvent]:
        self._close_at_exit()
        return self._background.iterate(lambda: self._client.stream_code(code, language, **options))

    def contexts(self) -> list[Context]:
        return self._run(self._client.contexts)

    def create_context(
        self, language: str = "python", *, cwd: str | None = None, context_id: str | None = None
    ) -> Context:
        return self._run(
            lambda: self._client.create_context(language, cwd=cwd, context_id=context_id)
        )

    def restart_context(self, context: str | Context = "python") -> Context:
        return self._run(lambda: self._client.restart_context(context))

    def remove_context(self, context: str | Context) -> Context:
        return self._run(lambda: self._client.remove_context(context))

    def interrupt_context(self, context: str | Context = "python") -> Context:
        return self._run(lambda: self._client.interrupt_context(context))

    def upload_file(
        self,
        local_path: str | os.PathLike[str],
        path: str | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> UploadResult:
        return self._run(lambda: self._client.upload_file(local_path, path, metadata=metadata))

    def upload_bytes(
        self, data: bytes, path: str, *, metadata: Mapping[str, str] | None = None
    ) -> UploadResult:
        return self._run(lambda: self._client.upload_bytes(data, path, metadata=metadata))

    def download_file(self, path: str, local_path: str | os.PathLike[str] | None = None) -> Path:
        return self._run(lambda: self._client.download_file(path, local_path))

    def download_bytes(self, path: str) -> bytes:
        return self._run(lambda: self._client.download_bytes(path))

    def list_files(
        self,
        path: str = WORKSPACE,
        *,
        recursive: bool = False,
        depth: int | None = None,
        limit: int = 1000,
    ) -> ListResult:
        return self._run(
            lambda: self._client.list_files(path, recursive=recursive, depth=depth, limit=limit)
        )

    def rename(self, path: str, to: str, *, replace: bool = False) -> FileEntry:
        return self._run(lambda: self._client.rename(path, to, replace=replace))

    def stat(self, path: str, *, follow: bool = False) -> FileEntry:
        return self._run(lambda: self._client.stat(path, follow=follow))

    def mkdir(self, path: str) -> MkdirResult:
        return self._run(lambda: self._client.mkdir(path))

    def remove(self, path: str, *, recursive: bool = True) -> None:
        self._run(lambda: self._client.remove(path, recursive=recursive))

    def watch_files(
        self, path: str = WORKSPACE, *, recursive: bool = False
    ) -> Generator[FileChange]:
        self._close_at_exit()
        return self._background.iterate(lambda: self._client.watch_files(path, recursive=recursive))

    def artifacts(self, *, limit: int = 100) -> list[ArtifactFile]:
        found = self._run(lambda: self._client.artifacts(limit=limit))
        return [ArtifactFile(each, self._background, client=self) for each in found]

    def read_text(self, path: str, *, encoding: str = "utf-8") -> str:
        return self._run(lambda: self._client.read_text(path, encoding=encoding))

    def write_text(self, path: str, text: str, *, encoding: str = "utf-8") -> UploadResult:
        return self._run(lambda: self._client.write_text(path, text, encoding=encoding))

    def exists(self, path: str) -> bool:
        return self._run(lambda: self._client.exists(path))

    @contextlib.contextmanager
    def connect(self, port: int | str) -> Iterator[BlockingChannel]:
        with self._open(self._client.connect(port)) as channel:
            yield BlockingChannel(channel, self._background)

    @contextlib.contextmanager
    def forward(
        self, port: int | str, *, local_port: int = 0, host: str = "127.0.0.1"
    ) -> Iterator[Forward]:
        with self._open(self._client.forward(port, local_port=local_port, host=host)) as forward:
            yield forward

    def expose(self, port: int, *, public: bool = False) -> Preview:
        return self._run(lambda: self._client.expose(port, public=public))

    def previews(self) -> list[Preview]:
        return self._run(self._client.previews)

    def unexpose(self, port: int) -> None:
        self._run(lambda: self._client.unexpose(port))

    @contextlib.contextmanager
    def _open(self, opening: contextlib.AbstractAsyncContextManager[_Result]) -> Iterator[_Result]:
        """Something that is open as long as the block lasts, in the background loop."""
        opened = self._run(opening.__aenter__)
        try:
            yield opened
        finally:
            self._run(lambda: opening.__aexit__(None, None, None))

    def _run(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        self._close_at_exit()
        return self._background.run(work)

    def _close_at_exit(self) -> None:
        self._background.at_exit(self._client, self._client.close)
