"""Quotas of sessions, and the commands in the background, which count in them until they end.

The ids of such commands are marked, so that the process that adopts a session knows which of its
commands they are; the ledger has which key began them. A command whose caller has left is none of
them: it does not count, and its caller may come back for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Self

from sandbox_sdk.protocol import calling_key
from sandbox_sdk.protocol.errors import RuntimeUnavailable, SandboxError, SessionLost
from sandbox_server.runtime.agent import BoxState
from sandbox_server.sessions.live import WATCHED, Key, LiveSession


class SessionQuota:
    """How many sessions and commands in the background a tenant and a key may have: what the table
    asks before there is one more. This one has no limit."""

    @contextlib.asynccontextmanager
    async def one_more(self, _key: Key, _made_by: str) -> AsyncIterator[None]:
        """While the session of a thread is made. made_by: the id of the caller's API key. Raises
        RateLimited."""
        yield

    def changed(self) -> None:
        """A session has ended."""

    async def begin_command(
        self,
        _tenant: str,
        _command_id: str,
        *,
        key_id: str,  # noqa: ARG002
        at_any_rate: bool = False,  # noqa: ARG002
    ) -> bool:
        """Whether a command in the background counts, until end_command(). Raises RateLimited,
        unless at_any_rate."""
        return False

    def end_command(self, command_id: str) -> None: ...

    def bounds_key(self, _key_id: str) -> bool:
        """Whether the commands of a key count."""
        return False


_MARK = "bg"
_KEYS = 10_000
"""Most idempotency keys that are remembered."""


def background_id() -> str:
    """The id of a command in the background; those of others are hexadecimal."""
    return _MARK + os.urandom(16).hex()


class Background:
    """Those of all sessions of a process."""

    def __init__(self, quota: SessionQuota, keep: Callable[[LiveSession], None]) -> None:
        """keep: writes down what a later process has to know of a session."""
        self._quota = quota
        self._keep = keep
        self._counted: set[str] = set()
        self._keys: dict[tuple[str, str], None] = {}

    def beginning(self, session: LiveSession, command_id: str, *, key: str | None) -> Beginning:
        """Around the start of a command. key: its idempotency key."""
        return Beginning(self, session, command_id, key)

    def counts(self, command_id: str) -> bool:
        return command_id in self._counted

    async def adopt(self, session: LiveSession, state: BoxState) -> None:
        """Count what a box reports as running, whatever the limit is."""
        found = [c for c in state.commands if c.running and c.command_id.startswith(_MARK)]
        for command in found[-WATCHED:]:
            self.remember(session, command.idempotency_key)
            if not self.counts(command.command_id):
                await self._count(
                    session,
                    command.command_id,
                    session.begun_by.get(command.command_id, ""),
                    at_any_rate=True,
                )
                self.watch(session, command.command_id)

    async def count(
        self, session: LiveSession, command_id: str, *, at_any_rate: bool = False
    ) -> None:
        """One that this call begins. Raises RateLimited, unless at_any_rate; RuntimeUnavailable if
        it cannot be written down which key begins it."""
        key_id = calling_key.current()
        await self._count(session, command_id, key_id, at_any_rate=at_any_rate)
        if self._quota.bounds_key(key_id):
            session.begun_by[command_id] = key_id
            try:
                self._keep(session)
            except RuntimeUnavailable:
                self.ended(session, command_id)
                raise

    async def _count(
        self, session: LiveSession, command_id: str, key_id: str, *, at_any_rate: bool
    ) -> None:
        tenant = session.record.tenant
        if await self._quota.begin_command(
            tenant, command_id, key_id=key_id, at_any_rate=at_any_rate
        ):
            self._counted.add(command_id)

    def ended(self, session: LiveSession, command_id: str) -> None:
        session.begun_by.pop(command_id, None)
        if command_id in self._counted:
            self._counted.discard(command_id)
            self._quota.end_command(command_id)

    def watch(self, session: LiveSession, command_id: str) -> None:
        """Wait for its end, without counting it as use."""
        if self.counts(command_id):
            over = partial(self.ended, session, command_id)
            session.watch(command_id, for_s=None, uses=False, over=over)

    def remember(self, session: LiveSession, key: str | None) -> None:
        if key is not None:
            self._keys[session.record.session_id, key] = None
            if len(self._keys) > _KEYS:
                del self._keys[next(iter(self._keys))]

    def is_known(self, session: LiveSession, key: str | None) -> bool:
        return key is not None and (session.record.session_id, key) in self._keys


class Beginning:
    """A command that is about to begin, and counts from here on. A call that repeats an earlier one
    begins nothing, so it is not refused."""

    def __init__(
        self, background: Background, session: LiveSession, command_id: str, key: str | None
    ) -> None:
        self._background = background
        self._session = session
        self._command_id = command_id
        self._key = key
        self._began: str | None = None

    async def __aenter__(self) -> Self:
        if not self._background.is_known(self._session, self._key):
            await self._background.count(self._session, self._command_id)
        return self

    def began(self, command_id: str) -> None:
        """command_id: another one if an earlier call has begun it. The caller watches it."""
        self._began = command_id
        self._background.remember(self._session, self._key)

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        background, session, ours = self._background, self._session, self._command_id
        if self._began is None and _may_have_begun(error):
            background.watch(session, ours)
        elif self._began != ours:
            background.ended(session, ours)
        elif not background.counts(ours):  # The box has forgotten the command of an earlier call.
            await background.count(session, ours, at_any_rate=True)


def _may_have_begun(error: BaseException | None) -> bool:
    unclear = (RuntimeUnavailable, SessionLost, asyncio.CancelledError)
    return isinstance(error, unclear) or not isinstance(error, SandboxError)
