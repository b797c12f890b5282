"""A thread's sandbox, as the OpenAI Agents SDK sees a session."""

from __future__ import annotations

import io
import shlex
import tarfile
import uuid
from pathlib import Path, PurePosixPath
from typing import Literal

from agents.sandbox.errors import ExecTimeoutError
from agents.sandbox.session import BaseSandboxSession, SandboxSessionState
from agents.sandbox.session.pty_types import PtyExecUpdate
from agents.sandbox.types import ExecResult, User

from sandbox_sdk.client import AsyncSandboxClient
from sandbox_sdk.errors import CommandRejected, InvalidPath, SessionLost, SessionNotFound
from sandbox_sdk.integrations.openai_agents.failures import (
    reading,
    refuse_other,
    running_command,
    start_error,
    writing,
)
from sandbox_sdk.integrations.openai_agents.processes import Processes
from sandbox_sdk.integrations.openai_agents.snapshot import CheckpointSnapshot
from sandbox_sdk.integrations.presenting import RECREATED, explain
from sandbox_sdk.protocol.models import MAX_TIMEOUT_S, WORKSPACE

_PREPARED = "/tmp/openai-agents/prepared"
"""Marks a box that has its manifest: it is not applied again, unless the box was lost and the new
one has no such file."""
NOT_RUN = 126
"""The exit code of a rejected command: in bash, of one that cannot be executed."""


class ThreadSandboxSessionState(SandboxSessionState):
    type: Literal["agent_sandbox"] = "agent_sandbox"
    thread_id: str
    owned: bool = False
    generation: int | None = None


class ThreadSandboxSession(BaseSandboxSession):
    """A thread's sandbox, as the Agents SDK sees one.

    Commands run in a shell of their own in the workspace; one that takes longer than the model
    waits goes on, and the model may look at it and write to it.
    """

    state: ThreadSandboxSessionState

    def __init__(self, state: ThreadSandboxSessionState, client: AsyncSandboxClient) -> None:
        self.state = state
        self.client = client
        self._processes = Processes(client)
        self._untold = False
        """Whether the box replaced a lost one and the model does not know it yet."""
        self._restored = False
        """Whether the box has begun with the snapshot."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.state.thread_id}, {self._processes!r}>"

    async def _ensure_backend_started(self) -> None:
        snapshot = self.state.snapshot
        if isinstance(snapshot, CheckpointSnapshot) and not await self.running():
            session, self._restored = await snapshot.begin(self.client)
        else:
            session, self._restored = await self.client.create_session(), False
        new = session.status == "created" and session.generation > 1
        self._untold |= new and not self._restored
        self.state.generation = session.generation
        prepared = await self.client.exists(_PREPARED)
        self._set_start_state_preserved(prepared)
        self.state.workspace_root_ready = prepared

    async def _after_start(self) -> None:
        await self.client.write_text(_PREPARED, "")

    def _wrap_start_error(self, error: Exception) -> Exception:
        return start_error(error, Path(self.state.manifest.root))

    async def running(self) -> bool:
        try:
            await self.client.session()
        except (SessionNotFound, SessionLost):
            return False
        return True

    def _prepare_exec_command(
        self, *command: str | Path, shell: bool | list[str], user: str | User | None
    ) -> list[str]:
        refuse_other(user)
        return super()._prepare_exec_command(*command, shell=shell, user=None)

    async def _exec_internal(
        self, *command: str | Path, timeout: float | None = None
    ) -> ExecResult:
        # `exec` replaces the shell, so the thread's directory and variables stay as they are.
        line = f"exec {shlex.join(map(str, command))}"
        limit_s = MAX_TIMEOUT_S if timeout is None else min(max(timeout, 0.001), MAX_TIMEOUT_S)
        with running_command(*command):
            try:
                result = await self.client.execute(
                    line, timeout=limit_s, cwd=self._cwd(), env=await self._env()
                )
            except CommandRejected as exc:
                return ExecResult(stdout=b"", stderr=explain(exc).encode(), exit_code=NOT_RUN)
        if result.timed_out:
            raise ExecTimeoutError(command=command, timeout_s=timeout)
        assert result.exit_code is not None
        return ExecResult(
            stdout=result.stdout.encode(), stderr=result.stderr.encode(), exit_code=result.exit_code
        )

    def supports_pty(self) -> bool:
        return True

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        words = self._prepare_exec_command(*command, shell=shell, user=user)
        with running_command(*words):
            try:
                update = await self._processes.start(
                    words,
                    terminal=tty,
                    cwd=self._cwd(),
                    env=await self._env(),
                    timeout=min(timeout, MAX_TIMEOUT_S) if timeout else None,
                    wait_s=yield_time_s,
                    max_tokens=max_output_tokens,
                )
            except CommandRejected as exc:
                return PtyExecUpdate(None, explain(exc).encode(), NOT_RUN, None)
        told = self._told(self._processes.generation).encode()
        return PtyExecUpdate(
            update.process_id, told + update.output, update.exit_code, update.original_token_count
        )

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        with running_command("write_stdin"):
            return await self._processes.write(
                session_id, chars, wait_s=yield_time_s, max_tokens=max_output_tokens
            )

    async def pty_terminate_all(self) -> None:
        await self._processes.end_all()

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        refuse_other(user)
        place = str(await self._validate_path_access(path))
        with reading(path):
            listed = await self.client.list_files(place, limit=1)
            if [entry.path for entry in listed.entries] != [listed.path]:
                raise InvalidPath(f"{path} is a folder, not a file; name a file in it")
            return io.BytesIO(await self.client.download_bytes(place))

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        refuse_other(user)
        place = str(await self._validate_path_access(path, for_write=True))
        payload = data.read()
        if isinstance(payload, str):
            payload = payload.encode()
        with writing(path):
            await self.client.upload_bytes(bytes(payload), place)

    async def _persist_snapshot(self) -> None:
        if isinstance(self.state.snapshot, CheckpointSnapshot):
            self.state.snapshot = await self.state.snapshot.taken(self.client)
        else:
            await super()._persist_snapshot()

    async def _restore_snapshot_into_workspace_on_resume(self) -> None:
        if self._restored:
            return
        if isinstance(self.state.snapshot, CheckpointSnapshot):
            session = await self.state.snapshot.rewind(self.client)
            self._untold, self.state.generation = False, session.generation
        else:
            await super()._restore_snapshot_into_workspace_on_resume()

    async def persist_workspace(self) -> io.IOBase:
        root = self.state.manifest.root
        with reading(Path(root)):
            whole = await self.client.download_bytes(root)
        skipped = {path.as_posix() for path in self._persist_workspace_skip_relpaths()}
        return _without(whole, skipped)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        archive = Path(self.state.manifest.root) / f".hydrate-{uuid.uuid4().hex}.tar"
        await self.mkdir(archive.parent, parents=True)
        await self.write(archive, data)
        try:
            await self._exec_checked_nonzero("tar", "-C", str(archive.parent), "-xf", str(archive))
        finally:
            await self.rm(archive)

    def _cwd(self) -> str:
        return self.state.manifest.root if self.state.workspace_root_ready else WORKSPACE

    async def _env(self) -> dict[str, str]:
        return await self.state.manifest.environment.resolve()

    def _told(self, generation: int) -> str:
        """A note for the model if its box is a new one, once."""
        untold = self._untold or self.state.generation not in (None, generation)
        self._untold, self.state.generation = False, generation
        return f"{RECREATED}\n" if untold else ""


def _without(archive: bytes, skipped: set[str]) -> io.BytesIO:
    """An archive without some of its paths and what is below them."""
    if not skipped:
        return io.BytesIO(archive)
    kept = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as source,
        tarfile.open(fileobj=kept, mode="w") as target,
    ):
        for member in source:
            path = PurePosixPath(member.name)
            if not skipped & {str(place) for place in (path, *path.parents)}:
                target.addfile(member, source.extractfile(member) if member.isreg() else None)
    kept.seek(0)
    return kept
