"""How handlers find or make a session, and report the loss of its box."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import TracebackType

from sandbox_sdk.protocol.errors import RuntimeUnavailable, SessionLost
from sandbox_sdk.protocol.models import SessionState, Target
from sandbox_server.sessions.live import LiveSession
from sandbox_server.sessions.making import SessionOptions
from sandbox_server.sessions.table import AsBefore, SessionTable


class SessionAccess:
    def __init__(self, table: SessionTable, as_before: Callable[[str], AsBefore]) -> None:
        """as_before: the options of a session that nobody asked for, by tenant."""
        self.table = table
        self._as_before = as_before

    async def open(self, tenant: str, target: Target) -> tuple[LiveSession, SessionState]:
        """Find the session. A thread_id without one gets a new session; a session_id has to
        exist."""
        if target.thread_id is not None:
            return await self.table.open(tenant, target.thread_id, self._as_before(tenant))
        session = await self.table.find(tenant, target)
        async with self.reporting_loss(session):
            await session.meet()
        return session, "live"

    async def expected(self, tenant: str, target: Target) -> LiveSession | SessionOptions:
        """The session, or what the one will have that a call begins. Raises SessionNotFound for an
        unknown session_id."""
        if target.thread_id is None:
            return await self.table.find(tenant, target)
        live = self.table.live(tenant, target.thread_id)
        if live is not None:
            return live
        return self._as_before(tenant)(await self.table.newest(tenant, target.thread_id))

    def using(self, session: LiveSession, *, for_s: float = 0.0) -> _Reporting:
        """Mark the session as used. for_s: how long the work may go on after the caller has
        disconnected."""
        return _Reporting(self.table, session, use=session.use(for_s=for_s))

    def reporting_loss(self, session: LiveSession, *, unpause: bool = False) -> _Reporting:
        """unpause: a process of the box is asked, so that it must not stand still."""
        return _Reporting(self.table, session, unpause=unpause)


class _Reporting:
    """A session in use. If its box is lost, the table ends the session and the caller gets
    SessionLost.

    Not an @asynccontextmanager: an event loop that shuts down closes generators in any order.
    """

    def __init__(
        self,
        table: SessionTable,
        session: LiveSession,
        *,
        use: contextlib.AbstractContextManager[None] | None = None,
        unpause: bool = False,
    ) -> None:
        self._table = table
        self._session = session
        self._unpause = unpause or use is not None
        self._use = use or contextlib.nullcontext()

    async def __aenter__(self) -> None:
        self._use.__enter__()
        if self._session.paused_at is not None and self._unpause:
            try:
                await self._table.unpause(self._session)
            except BaseException as exc:
                await self.__aexit__(type(exc), exc, exc.__traceback__)
                raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._use.__exit__(kind, exc, trace)
        # A box that is being destroyed may stop answering before it is gone.
        ended = isinstance(exc, RuntimeUnavailable) and self._session.ended is not None
        if isinstance(exc, SessionLost) or ended:
            raise await self._table.lose(self._session) from exc
