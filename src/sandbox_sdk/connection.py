"""Which sandbox a client uses, and when its backend is opened and closed."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import anyio

from sandbox_sdk.protocol.errors import SessionLost, SessionNotFound
from sandbox_sdk.protocol.models import (
    CreateSessionRequest,
    ExecuteRequest,
    Session,
    Target,
    checked,
)
from sandbox_sdk.protocol.sandboxes import Sandboxes

log = logging.getLogger("sandbox")

CLOSE_S = 15.0
"""How long close() waits for a server that does not answer."""


class Connection:
    """A backend and one sandbox of it; the first use opens the one and makes the other.

    With neither thread_id nor session_id the sandbox belongs to the connection, and ends with it.
    """

    def __init__(
        self, backend: Sandboxes, *, thread_id: str | None, session_id: str | None
    ) -> None:
        self._backend = backend
        self._owned = thread_id is None and session_id is None
        self._target: Target | None = None
        if not self._owned:
            self._target = checked(Target, thread_id=thread_id, session_id=session_id)
        self._stack = contextlib.AsyncExitStack()
        self._opening = anyio.Lock()
        self._opened = self._closed = False

    def __str__(self) -> str:
        state = "closed" if self._closed else "open" if self._opened else "not yet used"
        whose = "its own" if self._owned else ""
        if self._target is not None:
            whose = " ".join(self._target.model_dump(exclude_none=True).values())
        return f"{whose}, {state}, {self._backend!r}"

    @property
    def thread_id(self) -> str | None:
        return None if self._target is None else self._target.thread_id

    async def opened(self) -> Sandboxes:
        """The backend, open."""
        if self._closed:
            raise RuntimeError("this client is closed; make a new one")
        if not self._opened:
            async with self._opening:
                if not self._opened:
                    if isinstance(self._backend, contextlib.AbstractAsyncContextManager):
                        await self._stack.enter_async_context(self._backend)
                    self._opened = True
        return self._backend

    async def ready(self) -> tuple[Sandboxes, Target]:
        """The open backend, and the sandbox to use; the connection's own is made if need be."""
        sandboxes = await self.opened()
        if self._target is None:
            async with self._opening:
                if self._target is None:
                    await self._make_own(sandboxes, CreateSessionRequest())
        assert self._target is not None
        return sandboxes, self._target

    async def make(self, *, again: Session | None = None, **settings: Any) -> Session:
        """The session, made if there is none. again: an ended session whose thread gets a new
        one."""
        sandboxes = await self.opened()
        async with self._opening:
            if self._target is None:
                return await self._make_own(sandboxes, checked(CreateSessionRequest, **settings))
            thread_id = self._target.thread_id
            if thread_id is None:
                thread_id = (again or await sandboxes.session(self._target)).thread_id
            request = checked(CreateSessionRequest, thread_id=thread_id, **settings)
            session = await sandboxes.create_session(request)
            if session.not_applied:
                log.warning(
                    "thread %s has a live session, made without this %s; cleanup() ends it, and"
                    " the next create_session() has what it asks for",
                    thread_id,
                    ", ".join(session.not_applied),
                )
            if self._target.session_id is not None:
                self._target = Target(session_id=session.session_id)
        return session

    async def _make_own(self, sandboxes: Sandboxes, request: CreateSessionRequest) -> Session:
        session = await sandboxes.create_session(request)
        self._target = Target(thread_id=session.thread_id)
        return session

    async def close(self, *, cleanup: bool = True) -> None:
        """Close the backend, and with cleanup end the connection's own sandbox."""
        closed, self._closed = self._closed, True
        if closed or not self._opened:
            return
        with anyio.move_on_after(CLOSE_S, shield=True):
            try:
                if self._owned and cleanup and self._target is not None:
                    with contextlib.suppress(SessionNotFound, SessionLost):
                        await self._backend.cleanup(self._target)
            finally:
                await self._stack.aclose()


def command_request(target: Target, command: str, **options: Any) -> ExecuteRequest:
    given = {name: value for name, value in options.items() if value is not None}
    return checked(ExecuteRequest, **dict(target), command=command, **given)
