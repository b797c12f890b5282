"""ThreadSandboxClient: gives a SandboxAgent the sandbox of its conversation."""

from __future__ import annotations

import contextlib
import uuid
from typing import Literal

from agents.sandbox.manifest import Manifest
from agents.sandbox.session import (
    BaseSandboxClient,
    BaseSandboxClientOptions,
    SandboxSession,
    SandboxSessionState,
)
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot

from sandbox_sdk.client import AsyncSandboxClient
from sandbox_sdk.errors import SessionLost, SessionNotFound
from sandbox_sdk.integrations.openai_agents.failures import refuse_other
from sandbox_sdk.integrations.openai_agents.session import (
    ThreadSandboxSession,
    ThreadSandboxSessionState,
)
from sandbox_sdk.protocol.sandboxes import Sandboxes


class ThreadSandboxClientOptions(BaseSandboxClientOptions):
    """Whose sandbox; without thread_id, one for this session alone, which ends with it."""

    type: Literal["agent_sandbox"] = "agent_sandbox"
    thread_id: str | None = None


class ThreadSandboxClient(BaseSandboxClient[ThreadSandboxClientOptions | None]):
    """Makes sessions in the sandboxes of threads: of `backend`, or of the server at SANDBOX_URL, or
    without one of this process."""

    backend_id = "agent_sandbox"
    supports_default_options = True

    def __init__(self, *, backend: Sandboxes | None = None) -> None:
        self._backend = backend

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: ThreadSandboxClientOptions | None = None,
    ) -> SandboxSession:
        manifest = self._validate_manifest_for_create(manifest or Manifest())
        session_id, thread_id = uuid.uuid4(), options.thread_id if options else None
        state = ThreadSandboxSessionState(
            session_id=session_id,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            manifest=manifest,
            thread_id=thread_id or f"agents-{session_id.hex}",
            owned=thread_id is None,
        )
        return self._session(state)

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        assert isinstance(state, ThreadSandboxSessionState)
        state.assert_path_grants_rebound()
        return self._session(state)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Let go of a sandbox. Only one of the session's own is ended with it: that of a thread
        belongs to the conversation."""
        inner = session._inner
        assert isinstance(inner, ThreadSandboxSession)
        if inner.state.owned:
            with contextlib.suppress(SessionNotFound, SessionLost):
                await inner.client.cleanup()
        await inner.client.close()
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        return self._deserialize_session_state_payload(payload, ThreadSandboxSessionState)

    def _session(self, state: ThreadSandboxSessionState) -> SandboxSession:
        for name in (
            *(user.name for user in state.manifest.users),
            *(group.name for group in state.manifest.groups),
        ):
            refuse_other(name)
        client = AsyncSandboxClient(state.thread_id, backend=self._backend)
        return self._wrap_session(ThreadSandboxSession(state, client))
