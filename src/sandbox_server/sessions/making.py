"""Making sessions: a record, and a box that gets the session's state."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from sandbox_sdk.protocol.errors import RuntimeUnavailable, SandboxError
from sandbox_sdk.protocol.models import WORKSPACE
from sandbox_server.runtime.agent import BoxAgent
from sandbox_server.runtime.base import Box
from sandbox_server.sessions.lease import Lease
from sandbox_server.sessions.ledger import Ledger
from sandbox_server.sessions.live import Key, LiveSession, digest, state_of
from sandbox_server.sessions.registry import Record, Status


class BoxSource(Protocol):
    """Where boxes for new sessions come from."""

    async def claim(
        self, environment: str | None, state: Mapping[str, Any]
    ) -> tuple[Box, BoxAgent]:
        """An unused box whose warden has stored this state. Raises Capacity."""


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """Options of a new session. None and empty mean the configured default."""

    environment: str | None = None
    env: Mapping[str, str] | None = None
    idle_timeout_s: float | None = None
    session_id: str | None = None

    def not_applied(self, session: LiveSession) -> list[str]:
        """The options that a live session does not have."""
        differ = {
            "environment": self.environment not in (None, session.environment),
            "env": bool(self.env) and digest(self.env) != session.env_digest,
            "idle_timeout_s": self.idle_timeout_s not in (None, session.idle_timeout_s),
        }
        return [name for name, differs in differ.items() if differs]


class SessionMaker:
    """Makes sessions with their boxes, and destroys the boxes afterwards."""

    def __init__(
        self, source: BoxSource, lease: Lease, ledger: Ledger, *, idle_timeout_s: float
    ) -> None:
        self._source = source
        self._lease = lease
        self._ledger = ledger
        self._idle_timeout_s = idle_timeout_s

    async def make(self, key: Key, options: SessionOptions, before: Record | None) -> LiveSession:
        """A session that follows `before`, in a box set up as the caller wants. It is not in the
        registry yet. Raises Capacity, RuntimeUnavailable."""
        record = Record(
            tenant=key[0],
            thread_id=key[1],
            generation=1 if before is None else before.generation + 1,
            session_id=options.session_id or str(uuid.uuid4()),
            box_id="",
            status=Status.LIVE,
            created_at=time.time(),
            worker=self._lease.worker,
            epoch=self._lease.epoch,
        )
        idle_timeout_s = options.idle_timeout_s or self._idle_timeout_s
        env_digest = digest(options.env)
        state = state_of(
            record,
            idle_timeout_s=idle_timeout_s,
            environment=options.environment,
            env_digest=env_digest,
        )
        box, agent = await self._source.claim(options.environment, state)
        if options.env:
            exports = "; ".join(f"export {k}={shlex.quote(v)}" for k, v in options.env.items())
            try:
                await agent.run(exports)
            except BaseException:
                await asyncio.shield(self.discard(box, agent))
                raise
        return LiveSession(
            replace(record, box_id=box.id),
            box,
            agent,
            idle_timeout_s,
            time.monotonic(),
            environment=options.environment,
            env_digest=env_digest,
            cwd=WORKSPACE,
        )

    async def discard(self, box: Box, agent: BoxAgent) -> None:
        """Destroy a box. An unreachable one ends by its dead-man's switch."""
        await agent.close()
        with contextlib.suppress(SandboxError):
            await box.destroy()
        with contextlib.suppress(RuntimeUnavailable):
            self._ledger.forget(box.id)
