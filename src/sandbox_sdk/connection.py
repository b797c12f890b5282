"""Which sandbox a client uses, and when its backend is opened and closed."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

import anyio

from sandbox_sdk.mounts.asked import MountOptions, in_place, mounts_of
from sandbox_sdk.mounts.copying import Copies
from sandbox_sdk.protocol.errors import (
    InvalidRequest,
    SandboxError,
    SessionLost,
    SessionNotFound,
)
from sandbox_sdk.protocol.models import (
    Context,
    CreateSessionRequest,
    ExecuteRequest,
    RunCodeRequest,
    Session,
    Target,
    checked,
)
from sandbox_sdk.protocol.sandboxes import Sandboxes

log = logging.getLogger("sandbox.client")

CLOSE_S = 15.0
"""How long close() waits for a server that does not answer."""


class Connection:
    """A backend and one sandbox of it; the first use opens the one and makes the other.

    With neither thread_id nor session_id the sandbox belongs to the connection, and ends with it.
    """

    def __init__(
        self,
        backend: Sandboxes,
        *,
        thread_id: str | None,
        session_id: str | None,
        options: Mapping[str, Any] | None = None,
        mounts: MountOptions | None = None,
    ) -> None:
        """options: of the session, where this connection makes it. Raises InvalidRequest."""
        self._backend = backend
        self._options = {name: value for name, value in (options or {}).items() if value}
        if bound := in_place(mounts):
            if not backend.same_machine:
                raise InvalidRequest(
                    f"mounts: {bound[0]['source']} cannot be {bound[0]['mode']} in a sandbox of a"
                    " server, which does not see this machine; without that it gets a copy"
                )
            self._options["volumes"] = [*self._options.get("volumes", ()), *bound]
        checked(CreateSessionRequest, **self._options)
        self._copies = Copies(mounts_of(mounts))
        if session_id is not None and (self._options or mounts):
            given = " and ".join([*self._options, *(["mounts"] if mounts else [])])
            raise InvalidRequest(f"a session_id names a session that exists: it has its {given}")
        self._made = False
        """Whether the session has been asked for with its options, and has its mounts."""
        self.has_ended()
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

    async def ready(self, *, makes: bool = True) -> tuple[Sandboxes, Target]:
        """The open backend, and the sandbox to use; the connection's own is made if need be.
        makes: whether one of a thread that has options is made, too."""
        sandboxes = await self.opened()
        if self._target is None or (makes and not self._made):
            async with self._opening:
                if self._target is None:
                    await self._make_own(sandboxes, checked(CreateSessionRequest, **self._options))
                elif not self._made:
                    await self._make(sandboxes, self._target.thread_id, {})
        assert self._target is not None
        return sandboxes, self._target

    async def make(self, *, again: Session | None = None, **settings: Any) -> Session:
        """The session, made if there is none, with the options of this connection where the
        settings do not say. again: an ended session whose thread gets a new one."""
        sandboxes = await self.opened()
        settings = {name: value for name, value in settings.items() if value is not None}
        async with self._opening:
            if self._target is None:
                request = checked(CreateSessionRequest, **{**self._options, **settings})
                return await self._make_own(sandboxes, request)
            thread_id = self._target.thread_id
            if thread_id is None:
                thread_id = (again or await sandboxes.session(self._target)).thread_id
            session = await self._make(sandboxes, thread_id, settings)
            if self._target.session_id is not None:
                self._target = Target(session_id=session.session_id)
        return session

    async def _make(
        self, sandboxes: Sandboxes, thread_id: str | None, settings: Mapping[str, Any]
    ) -> Session:
        asked = {**self._options, **settings}
        request = checked(CreateSessionRequest, thread_id=thread_id, **asked)
        session = await self._create(sandboxes, request)
        self._made = True
        if session.not_applied:
            log.warning(
                "thread %s has a live session, made without this %s; cleanup() ends it, and"
                " the next create_session() has what it asks for",
                thread_id,
                ", ".join(session.not_applied),
            )
        return session

    @property
    def backend(self) -> Sandboxes:
        return self._backend

    async def thread(self) -> tuple[Sandboxes, str]:
        """The open backend, and the thread of the sandbox to use."""
        sandboxes, target = await self.ready()
        if target.thread_id is not None:
            return sandboxes, target.thread_id
        return sandboxes, (await sandboxes.session(target)).thread_id

    def has_moved(self, session: Session) -> None:
        """The thread has another session now."""
        if self._target is not None and self._target.session_id is not None:
            self._target = Target(session_id=session.session_id)

    def has_ended(self) -> None:
        """The next use makes another one, with the same options."""
        self._made = not self._options and not self._copies.mounts

    async def _create(self, sandboxes: Sandboxes, request: CreateSessionRequest) -> Session:
        """The session with its mounts. A new one ends again if they cannot be copied."""
        session = await sandboxes.create_session(request)
        try:
            await self._copies.bring(sandboxes, session)
        except BaseException:
            if session.status == "created":
                with anyio.move_on_after(CLOSE_S, shield=True), contextlib.suppress(SandboxError):
                    await sandboxes.cleanup(Target(session_id=session.session_id))
                self._copies.forget()
            raise
        return session

    async def _make_own(self, sandboxes: Sandboxes, request: CreateSessionRequest) -> Session:
        session = await self._create(sandboxes, request)
        self._target = Target(thread_id=session.thread_id)
        self._made = True
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
                    self._copies.forget()
            finally:
                await self._stack.aclose()


def command_request(target: Target, command: str, **options: Any) -> ExecuteRequest:
    given = {name: value for name, value in options.items() if value is not None}
    return checked(ExecuteRequest, **dict(target), command=command, **given)


def code_request(
    target: Target, code: str, *, context: str | Context | None = None, **options: Any
) -> RunCodeRequest:
    given = {name: value for name, value in options.items() if value is not None}
    context_id = None if context is None else context_id_of(context)
    return checked(RunCodeRequest, **dict(target), code=code, context_id=context_id, **given)


def context_id_of(context: str | Context) -> str:
    return context if isinstance(context, str) else context.context_id
