"""The live sessions, looked at once for all who watch them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import structlog

from sandbox_sdk.protocol.errors import Internal, SandboxError
from sandbox_sdk.protocol.models import SessionList, SessionSummary
from sandbox_sdk.protocol.sandboxes import Tenants
from sandbox_server.api.errors import error_body
from sandbox_server.api.sse import KEEP_ALIVE

log = structlog.get_logger(__name__)

SHARE = 0.005
"""Of a core: what looking may take. With many sessions the list is looked at less often."""
FASTEST_S = 1.0
SLOWEST_S = 5.0
_AHEAD = 64
"""Messages that wait for a viewer. One that is slower is sent away, and comes back."""
_DRIFT_S = 1.5
"""Times are derived from durations: what differs by less is the same."""


class Row(TypedDict):
    """A session, with times as seconds since 1970."""

    session_id: str
    thread_id: str
    generation: int
    worker: str
    runtime: str
    environment: str | None
    state: str
    created_at: float
    used_at: float
    expires_at: float


Rows = Mapping[str, Row]
"""By session_id."""
Look = Callable[[], Awaitable[SessionList]]
Pause = Callable[[float], Awaitable[None]]


@dataclass(frozen=True)
class Changes:
    changed: list[Row]
    gone: list[str]


def row_of(session: SessionSummary, *, now: float) -> Row:
    return {
        "session_id": session.session_id,
        "thread_id": session.thread_id,
        "generation": session.generation,
        "worker": session.worker,
        "runtime": session.runtime,
        "environment": session.environment,
        "state": session.state,
        "created_at": round(session.created_at.timestamp(), 3),
        "used_at": round(now - session.idle_s, 1),
        "expires_at": round(session.expires_at.timestamp(), 1),
    }


def changes(before: Rows, after: Rows) -> Changes:
    changed = [row for name, row in after.items() if _differs(before.get(name), row)]
    return Changes(changed, [name for name in before if name not in after])


def _differs(before: Row | None, after: Row) -> bool:
    if before is None or before["state"] != after["state"]:
        return True
    # While it is busy, its times go with the clock.
    return after["state"] == "idle" and abs(before["used_at"] - after["used_at"]) > _DRIFT_S


def pause_s(cost_s: float) -> float:
    """How long to wait after looking for this much CPU time."""
    return min(max(cost_s / SHARE, FASTEST_S), SLOWEST_S)


class SessionWatches:
    """One watch for each tenant that somebody watches."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants
        self._watches: dict[str, SessionWatch] = {}

    def __len__(self) -> int:
        return len(self._watches)

    async def frames(self, tenant: str, *, keep_alive_s: float) -> AsyncGenerator[bytes]:
        """Server-sent events for one viewer: the list, and then what changes."""
        watch = self._watches.get(tenant)
        if watch is None:
            watch = self._watches[tenant] = SessionWatch(self._tenants.of(tenant).sessions)
        viewer = watch.join()
        try:
            async for frame in viewer.frames(keep_alive_s):
                yield frame
        finally:
            if watch.leave(viewer):
                self._watches.pop(tenant, None)

    def end(self) -> None:
        """Send all viewers away: the server stops."""
        for watch in self._watches.values():
            watch.end()


class Viewer:
    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(_AHEAD + 1)

    def send(self, frame: bytes) -> bool:
        """False if it is too slow, and sent away."""
        if self._queue.qsize() < _AHEAD:
            self._queue.put_nowait(frame)
            return True
        self.end()
        return False

    def end(self) -> None:
        with contextlib.suppress(asyncio.QueueFull):
            self._queue.put_nowait(None)

    async def frames(self, keep_alive_s: float) -> AsyncGenerator[bytes]:
        while True:
            try:
                async with asyncio.timeout(keep_alive_s):
                    frame = await self._queue.get()
            except TimeoutError:
                frame = KEEP_ALIVE
            if frame is None:
                return
            yield frame


class SessionWatch:
    """Looks while there are viewers."""

    def __init__(self, look: Look, *, pause: Pause = asyncio.sleep) -> None:
        self._look = look
        self._pause = pause
        self._viewers: set[Viewer] = set()
        self._rows: Rows | None = None
        self._unreachable: list[str] = []
        self._looking: asyncio.Task[None] | None = None

    def join(self) -> Viewer:
        viewer = Viewer()
        self._viewers.add(viewer)
        if self._rows is not None:
            viewer.send(self._whole())
        if self._looking is None:
            self._looking = asyncio.create_task(self._keep_looking())
        return viewer

    def leave(self, viewer: Viewer) -> bool:
        """Whether it was the last one."""
        self._viewers.discard(viewer)
        if not self._viewers and self._looking is not None:
            self._looking.cancel()
        return not self._viewers

    def end(self) -> None:
        for viewer in self._viewers:
            viewer.end()

    async def _keep_looking(self) -> None:
        while True:
            began = time.thread_time()
            if frame := await self._frame():
                self._viewers = {viewer for viewer in self._viewers if viewer.send(frame)}
            cost_s = time.thread_time() - began
            await self._pause(pause_s(cost_s))

    async def _frame(self) -> bytes | None:
        """What to tell all viewers, if anything."""
        try:
            found = await self._look()
        except SandboxError as exc:
            return _frame("error", error_body(exc, ""))
        except Exception as exc:
            log.warning("console.not_listed", why=repr(exc))
            return _frame("error", error_body(Internal("the sessions cannot be listed"), ""))
        now, before = time.time(), self._rows
        self._rows = {each.session_id: row_of(each, now=now) for each in found.sessions}
        known, self._unreachable = self._unreachable, found.unreachable
        if before is None:
            return self._whole()
        told = changes(before, self._rows)
        self._keep_times(before, told)
        if not (told.changed or told.gone or known != found.unreachable):
            return None
        return self._message("changes", changed=told.changed, gone=told.gone)

    def _keep_times(self, before: Rows, told: Changes) -> None:
        """What was not told stays as it was told: small differences must not add up."""
        assert self._rows is not None
        fresh = {row["session_id"] for row in told.changed}
        self._rows = {
            name: row if name in fresh else before[name] for name, row in self._rows.items()
        }

    def _whole(self) -> bytes:
        assert self._rows is not None
        return self._message("sessions", sessions=list(self._rows.values()))

    def _message(self, event: str, **fields: Any) -> bytes:
        about = {"now": round(time.time(), 1), "unreachable": self._unreachable}
        return _frame(event, {**about, **fields})


def _frame(event: str, data: dict[str, Any]) -> bytes:
    text = json.dumps(data, separators=(",", ":"), default=str)
    return f"event: {event}\ndata: {text}\n\n".encode()
