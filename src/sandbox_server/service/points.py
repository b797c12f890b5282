"""A point before each command of a session that has a history."""

from __future__ import annotations

import contextlib
import uuid
from types import TracebackType
from typing import Self

from sandbox_sdk.protocol.errors import RuntimeUnavailable, SandboxError, SessionLost
from sandbox_sdk.protocol.models import PointOf
from sandbox_server.checkpoints.points import TEXT, Point, ThreadPoints
from sandbox_server.runtime.agent import CommandResult
from sandbox_server.sessions.keeping import Keeper, source_of
from sandbox_server.sessions.live import LiveSession

_MAY_HAVE_RUN = (SessionLost, RuntimeUnavailable)


class Before:
    """Keeps a point on entry, if the session has a history. What is told of the command afterwards
    is noted with it; if it turns out that nothing was run, the point goes."""

    def __init__(
        self,
        keeper: Keeper,
        session: LiveSession,
        text: str,
        command_id: str | None = None,
        *,
        what: PointOf = "command",
        wanted: bool = True,
    ) -> None:
        """wanted: False for a call that begins nothing."""
        self._wanted = wanted and session.keep.history
        self._keeper = keeper
        self._session = session
        self._text = text if len(text) <= TEXT else f"{text[: TEXT - 1]}…"
        self._command_id = command_id
        self._what: PointOf = what
        self._points: ThreadPoints | None = None
        self._point: Point | None = None

    async def __aenter__(self) -> Self:
        """Raises RuntimeUnavailable, SessionLost: then nothing was run."""
        session = self._session
        if self._wanted:
            try:
                self._points = await self._keeper.points_of(session)
                self._point = await self._points.take(
                    source_of(session),
                    session_id=session.record.session_id,
                    what=self._what,
                    command=self._text,
                    command_id=self._command_id,
                    cwd=session.cwd,
                )
            except RuntimeUnavailable as exc:
                raise RuntimeUnavailable(
                    f"nothing was run, because no point could be kept before it: {exc.message}"
                ) from exc
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(exc, SandboxError) and not isinstance(exc, _MAY_HAVE_RUN):
            self._drop()

    def began(self, command_id: str) -> None:
        """If the id is another, an earlier call has run the command."""
        if command_id != self._command_id:
            self._drop()

    def ended(self, result: CommandResult) -> None:
        self.began(result.command_id)
        if self._points is not None and self._point is not None:
            self._points.note(
                self._point, exit_code=result.exit_code, duration_ms=result.duration_ms
            )

    def _drop(self) -> None:
        if self._points is not None and self._point is not None:
            self._points.drop(self._point)
        self._points = self._point = None


async def keep_now(keeper: Keeper, session: LiveSession, text: str, what: PointOf) -> None:
    """A point before a thread goes back, so that this can be undone too. A box that is gone keeps
    nobody from going back."""
    with contextlib.suppress(SessionLost):
        async with Before(keeper, session, text, what=what):
            if session.points is not None:
                await note_ends(session.points, session)


async def note_ends(points: ThreadPoints, session: LiveSession) -> None:
    """Note how commands ended that ran in the background: the box knows, while it lives."""
    open_ended = {p.command_id: p for p in points.points.values() if p.exit_code is None}
    if open_ended.keys() - {None}:
        with contextlib.suppress(SessionLost, RuntimeUnavailable):
            for each in (await session.agent.state()).commands:
                if each.exit_code is not None and each.command_id in open_ended:
                    points.note(open_ended[each.command_id], exit_code=each.exit_code)


def restored_id(tenant: str, thread_id: str, key: str) -> str:
    """The session_id of the session with which a thread goes back: that of an earlier call with the
    same key."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{tenant}\0{thread_id}\0{key}"))
