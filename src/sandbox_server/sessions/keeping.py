"""Keeping threads beyond their boxes: checkpoints of sessions, and sessions from checkpoints."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from sandbox_sdk.protocol.errors import InvalidRequest, SandboxError, SessionLost
from sandbox_sdk.protocol.models import Resumed, SessionState, every_of
from sandbox_server.checkpoints.checkpoints import Checkpoints, Source, Subject
from sandbox_server.checkpoints.manifest import DiskCopy, Manifest
from sandbox_server.checkpoints.points import Point, Points, ThreadPoints, as_unavailable
from sandbox_server.events.log import EventLog
from sandbox_server.metrics.recorder import NO_METRICS, CheckpointOperation, Metrics
from sandbox_server.runtime.base import DiskImage
from sandbox_server.sessions.live import KeepRules, LiveSession
from sandbox_server.sessions.registry import Record, Status

log = structlog.get_logger()

AGAIN_S = 30.0
"""After a checkpoint has failed, until the next attempt."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What a new session begins with: a checkpoint, or a point of the history."""

    checkpoint_id: str | None
    segments: Callable[[], AsyncIterator[bytes]]
    state: SessionState
    """How the session is told to have begun."""
    resumed: Resumed | None = None
    cwd: str | None = None
    image: DiskImage | None = None
    """Of /workspace; without, it is in the segments."""
    disk: DiskCopy | None = None

    def image_for(self, provider: str, size: int) -> DiskImage | None:
        """The disk that a box of a provider can begin with."""
        fits = self.disk is not None and (self.disk.provider, self.disk.size) == (provider, size)
        return self.image if fits else None


def rules_from(asked: Mapping[str, Any]) -> KeepRules:
    """What a session was asked to keep, by the fields of its request."""
    every_s, every_commands = every_of(asked.get("checkpoint_every"))
    return KeepRules(
        persist=bool(asked.get("persist")),
        every_s=every_s,
        every_commands=every_commands,
        history=bool(asked.get("history")),
    )


class Keeper:
    """Without checkpoints, nothing can be kept."""

    def __init__(
        self,
        checkpoints: Checkpoints | None,
        points: Points | None = None,
        metrics: Metrics = NO_METRICS,
        events: EventLog | None = None,
    ) -> None:
        self._metrics = metrics
        self._events = events or EventLog()
        self._checkpoints = checkpoints
        self.points = points or Points()
        self._opening = asyncio.Lock()

    @property
    def checkpoints(self) -> Checkpoints:
        """Raises InvalidRequest."""
        if self._checkpoints is None:
            raise InvalidRequest("this server keeps no checkpoints: SANDBOX_CHECKPOINTS is off")
        return self._checkpoints

    async def take(
        self, session: LiveSession, *, automatic: bool = False, **options: Any
    ) -> Manifest:
        """A checkpoint of a session; options as of Checkpoints.take. Raises SessionLost."""
        of = session.record
        changed, commands = session.changed, session.commands
        if automatic:
            session.changed, session.commands = False, 0
        try:
            with timed(self._metrics, "take"):
                manifest = await self.checkpoints.take(
                    source_of(session), _subject(session), automatic=automatic, **options
                )
        except BaseException:
            if automatic:
                session.changed = session.changed or changed
                session.commands += commands
            raise
        self._events.publish(
            "checkpoint.created",
            of.tenant,
            thread_id=of.thread_id,
            session_id=of.session_id,
            checkpoint_id=manifest.checkpoint_id,
            automatic=automatic,
        )
        if manifest.running:
            session.changed = True  # It goes on changing.
        session.checkpoint_id = manifest.checkpoint_id
        session.kept_at = time.monotonic()
        session.problem = None
        return manifest

    async def keep(self, session: LiveSession) -> bool:
        """An automatic checkpoint, unless nothing has changed since the last. Whether the session
        is kept as it is; if not, the reason is told with it. Raises SessionLost."""
        if not session.changed and not session.busy:
            return True
        try:
            await self.take(session, automatic=True)
        except SessionLost:
            raise
        except SandboxError as exc:
            session.problem = exc.message
            session.keep_again_at = time.monotonic() + AGAIN_S
            log.warning("session.not_kept", thread=session.record.thread_id, why=exc.message)
            return False
        return True

    def origin(self, manifest: Manifest, state: SessionState = "restored") -> Origin:
        checkpoints = self.checkpoints
        return Origin(
            checkpoint_id=manifest.checkpoint_id,
            segments=lambda: checkpoints.read(manifest),
            state=state,
            cwd=manifest.cwd,
            image=checkpoints.image(manifest),
            disk=manifest.disk,
        )

    def origin_of_point(self, points: ThreadPoints, point: Point) -> Origin:
        return Origin(
            checkpoint_id=None,
            segments=lambda: points.segments(point),
            state="restored",
            cwd=point.cwd,
            image=points.disk_image(point),
            disk=point.disk,
        )

    async def resume(self, before: Record) -> Origin | None:
        """The last checkpoint of a thread that is to go on after its session has ended. Raises
        CheckpointDamaged."""
        if self._checkpoints is None or not rules_from(before.asked).persist:
            return None
        if before.status == Status.CLEANED:
            return None
        found = await self._last(self._checkpoints, before)
        if found is None:
            return None
        whole = before.status == Status.EXPIRED and found.session_id == before.session_id
        age_s = round(max(time.time() - found.created_at, 0.0), 3)
        resumed = Resumed(checkpoint_id=found.checkpoint_id, age_s=age_s, complete=whole)
        return replace(self.origin(found, "resumed"), resumed=resumed)

    async def _last(self, checkpoints: Checkpoints, before: Record) -> Manifest | None:
        """The last one of a session, or else the one that it began with: others of its thread may
        be newer, of a time that it went back from."""
        every = await checkpoints.of(before.tenant)
        for each in every:
            if each.session_id == before.session_id:
                return each
        began_with = before.asked.get("checkpoint_id")
        for each in every:
            if each.checkpoint_id == began_with:
                return each
        return next((each for each in every if each.thread_id == before.thread_id), None)

    async def points_of(self, session: LiveSession) -> ThreadPoints:
        """Raises InvalidRequest where there is no history."""
        async with self._opening:
            if session.points is None:
                points = await self.points.of(*session.key, session.record.session_id)
                with as_unavailable():
                    await asyncio.to_thread(points.settle)
                session.points = points
        return session.points

    async def forget(self, session: LiveSession) -> None:
        """Delete what was kept of a thread that is ended on purpose."""
        await self.forget_points(session)
        if self._checkpoints is None or session.checkpoint_id is None:
            return
        try:
            await self._checkpoints.forget(session.record.tenant, session.record.thread_id)
        except SandboxError as exc:
            log.warning("checkpoints.not_deleted", thread=session.record.thread_id,
                        why=exc.message)  # fmt: skip

    async def forget_points(self, session: LiveSession) -> None:
        """Delete the history of a thread that has ended."""
        if session.keep.history:
            await self.points.forget(*session.key)


@contextlib.contextmanager
def timed(metrics: Metrics, operation: CheckpointOperation) -> Iterator[None]:
    """Report how long something with a checkpoint took, and whether it worked."""
    began, ok = time.perf_counter(), False
    try:
        yield
        ok = True
    finally:
        metrics.checkpoint(operation, time.perf_counter() - began, ok=ok)


def _subject(session: LiveSession) -> Subject:
    of = session.record
    return Subject(
        tenant=of.tenant, thread_id=of.thread_id, session_id=of.session_id,
        generation=of.generation, environment=session.environment, asked=of.asked,
        parent=session.checkpoint_id, cwd=session.cwd,
    )  # fmt: skip


def source_of(session: LiveSession) -> Source:
    return Source(
        box=session.box,
        agent=session.agent,
        provider=session.provider,
        disk_bytes=0 if session.limits is None else session.limits["disk"],
    )
