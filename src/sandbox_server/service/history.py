"""Handlers of the history of threads: what their commands did, and going back to before one."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import Conflict, NotFound
from sandbox_sdk.protocol.operations import Handlers
from sandbox_server.checkpoints.point_changes import changed_paths, command_changes
from sandbox_server.checkpoints.points import Point, ThreadPoints, as_unavailable
from sandbox_server.registry.live import LiveRegistry
from sandbox_server.service import answers
from sandbox_server.service.access import SessionAccess
from sandbox_server.service.agents import options_as_before
from sandbox_server.service.answers import ServiceFacts
from sandbox_server.service.points import keep_now, note_ends, restored_id
from sandbox_server.sessions.keeping import source_of
from sandbox_server.sessions.live import LiveSession


class HistoryHandlers:
    def __init__(self, access: SessionAccess, facts: ServiceFacts, registry: LiveRegistry) -> None:
        self._table = access.table
        self._access = access
        self._facts = facts
        self._registry = registry
        self.handlers: Handlers = {
            op.HISTORY: self._history,
            op.CHANGES: self._changes,
            op.UNDO: self._undo,
        }

    async def _history(self, tenant: str, request: models.HistoryRequest) -> models.ThreadHistory:
        live = self._table.live(tenant, request.thread_id)
        points = await self._points(tenant, request.thread_id, live)
        if live is not None:
            await note_ends(points, live)
        newest = list(points.points.values())[::-1]
        way = points.way()
        entries = [
            models.HistoryEntry(
                number=point.number,
                what=point.what,
                command=point.command,
                at=answers.at(point.at),
                session_id=point.session_id,
                command_id=point.command_id,
                exit_code=point.exit_code,
                duration_ms=point.duration_ms,
                undone=point.number not in way and point.what != "undo",
                files=await self._files(points, point, live),
            )
            for point in newest[: request.limit]
        ]
        return models.ThreadHistory(entries=entries, truncated=len(newest) > request.limit)

    async def _changes(self, tenant: str, request: models.ChangesRequest) -> models.CommandChanges:
        live = self._table.live(tenant, request.thread_id)
        points = await self._points(tenant, request.thread_id, live)
        point = points.get(request.number)
        async with self._after(points, point, live) as after:
            if after is None:
                raise NotFound(f"nothing is kept of what came after command {point.number}")
            with as_unavailable():
                return await asyncio.to_thread(
                    command_changes,
                    points.image(point.number),
                    after,
                    number=point.number,
                    command=point.command,
                )

    async def _undo(self, tenant: str, request: models.UndoRequest) -> models.Undone:
        live = self._table.live(tenant, request.thread_id)
        points = await self._points(tenant, request.thread_id, live)
        session_id = None
        if request.idempotency_key is not None:
            session_id = restored_id(tenant, request.thread_id, request.idempotency_key)
            if (done := _done(points, session_id)) is not None:
                return self._again(done, live, session_id)
        point = points.get(request.to)
        before = await self._table.newest(tenant, request.thread_id)
        wanted = options_as_before(before, self._registry.current(), tenant)
        session_id = session_id or str(uuid.uuid4())
        origin = self._table.keeper.origin_of_point(points, point)
        if live is not None:
            await keep_now(self._table.keeper, live, f"undo to before {point.number}", what="undo")
        points.go_back(point, session_id)
        session = await self._table.restore(
            tenant, request.thread_id, replace(wanted, origin=origin, session_id=session_id)
        )
        if session.keep.persist:  # Else a lost box would come back as it was before.
            await self._table.keeper.keep(session)
        return self._answer(session, point)

    def _again(self, done: Point, live: LiveSession | None, session_id: str) -> models.Undone:
        if live is None or live.record.session_id != session_id:
            raise Conflict("this undo was carried out, and the session that it made has ended")
        return self._answer(live, done)

    def _answer(self, session: LiveSession, point: Point) -> models.Undone:
        made = answers.session_answer(session, self._facts, status="created", now=time.monotonic())
        return models.Undone(**dict(made), to=point.number, command=point.command)

    async def _points(self, tenant: str, thread_id: str, live: LiveSession | None) -> ThreadPoints:
        keeper = self._table.keeper
        if live is not None and live.keep.history:
            return await keeper.points_of(live)
        newest = await self._table.newest(tenant, thread_id)
        session_id = None if newest is None else newest.session_id
        return await keeper.points.of(tenant, thread_id, session_id)

    async def _files(
        self, points: ThreadPoints, point: Point, live: LiveSession | None
    ) -> models.ChangedPaths | None:
        if point.files is not None:
            return point.files
        async with self._after(points, point, live) as after:
            if after is None:
                return None
            try:
                found = await asyncio.to_thread(changed_paths, points.image(point.number), after)
            except OSError:
                return None
        if points.after(point) is not None:
            points.note(point, files=found)
        return found

    @contextlib.asynccontextmanager
    async def _after(
        self, points: ThreadPoints, point: Point, live: LiveSession | None
    ) -> AsyncIterator[Path | None]:
        """A copy of the disk after the command of a point; None where there is none."""
        following = points.after(point)
        if following is not None:
            yield points.image(following.number)
        elif live is not None and live.keep.history and point.number == points.last:
            async with self._access.reporting_loss(live), points.now(source_of(live)) as image:
                yield image
        else:
            yield None


def _done(points: ThreadPoints, session_id: str) -> Point | None:
    every = points.points.values()
    return next((point for point in every if point.led_to == session_id), None)
