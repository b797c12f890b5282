"""How handlers get at a session: found or made, and watched while something is done with it."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any

from sandbox_sdk.protocol.errors import RuntimeUnavailable, SessionLost
from sandbox_sdk.protocol.models import SessionState, Target
from sandbox_sdk.protocol.operations import Operation
from sandbox_server.sessions.live import LiveSession
from sandbox_server.sessions.table import SessionTable

Handlers = Mapping[Operation[Any, Any], Callable[[str, Any], Awaitable[Any]]]
"""What carries out operations: a function for each, which takes the tenant and the request."""


class SessionAccess:
    def __init__(self, table: SessionTable) -> None:
        self.table = table

    async def open(self, tenant: str, target: Target) -> tuple[LiveSession, SessionState]:
        """By thread_id a session is made where there is none, by session_id it has to exist."""
        if target.thread_id is not None:
            return await self.table.open(tenant, target.thread_id)
        session = await self.table.find(tenant, target)
        async with self.reporting_loss(session):
            await session.meet()
        return session, "live"

    async def existing(self, tenant: str, target: Target) -> LiveSession | None:
        """The session meant, where there is one. Raises SessionNotFound for a session_id."""
        if target.thread_id is not None:
            return self.table.live(tenant, target.thread_id)
        return await self.table.find(tenant, target)

    def using(self, session: LiveSession, *, for_s: float = 0.0) -> _Reporting:
        """for_s: how long what is begun may go on after its caller has left."""
        return _Reporting(self.table, session, use=session.use(for_s=for_s))

    def reporting_loss(self, session: LiveSession) -> _Reporting:
        return _Reporting(self.table, session)


class _Reporting:
    """A session while something is done with it. If its box goes, the table ends the session and
    the caller gets the error that says so.

    A class: a loop that shuts down closes generators in any order, also those of decorators.
    """

    def __init__(
        self,
        table: SessionTable,
        session: LiveSession,
        *,
        use: contextlib.AbstractContextManager[None] | None = None,
    ) -> None:
        self._table = table
        self._session = session
        self._use = use or contextlib.nullcontext()

    async def __aenter__(self) -> None:
        self._use.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._use.__exit__(kind, exc, trace)
        # A box that is being ended may go silent before it is gone.
        ended = isinstance(exc, RuntimeUnavailable) and self._session.ended is not None
        if isinstance(exc, SessionLost) or ended:
            raise await self._table.lose(self._session) from exc
