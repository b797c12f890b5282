"""The newest events of a server, kept in memory for whoever listens.

Each has a number; a position is the number of the last event that a caller has seen, with a name
for the run of the server, since numbers begin anew with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.models import Happening, HappeningKind, HappeningList, HappeningsRequest

MOST = 10_000
_LOOKED_AT = 2_000
"""Events of others that are passed over before other tasks get their turn."""


@dataclass(frozen=True, slots=True)
class Event:
    number: int
    kind: HappeningKind
    tenant: str
    at: float
    thread_id: str | None
    session_id: str | None
    data: dict[str, Any]


Listener = Callable[[Event], None]
"""Called with every event, at once. It does not raise and does not wait."""


class EventLog:
    def __init__(self, worker: str = "", *, most: int = MOST) -> None:
        self.worker = worker
        self._run = os.urandom(4).hex()
        self._kept: deque[Event] = deque(maxlen=most)
        self._number = 0
        self._changed = asyncio.Event()
        self.listeners: list[Listener] = []

    def __repr__(self) -> str:
        return f"<EventLog {len(self._kept)} of {self._number}>"

    def publish(
        self,
        kind: HappeningKind,
        tenant: str,
        *,
        thread_id: str | None = None,
        session_id: str | None = None,
        **data: Any,
    ) -> None:
        self._number += 1
        event = Event(self._number, kind, tenant, time.time(), thread_id, session_id, data)
        self._kept.append(event)
        self._changed.set()
        self._changed = asyncio.Event()
        for listener in self.listeners:
            listener(event)

    async def since(self, tenant: str, request: HappeningsRequest) -> HappeningList:
        """Waits for one, if the request says so. Raises InvalidRequest for a wrong position."""
        seen, missing = self._seen(request.after)
        deadline = asyncio.get_running_loop().time() + request.wait
        while True:
            found, seen = await self._found(tenant, request, seen)
            if missing:
                found.insert(0, self._gap(found[0].id if found else self.position(seen)))
            if found or not await self._waited(deadline):
                return HappeningList(events=found, next=self.position(seen))

    def position(self, number: int) -> str:
        return f"{self._run}.{number}"

    def told(self, event: Event) -> Happening:
        return Happening(
            id=self.position(event.number),
            kind=event.kind,
            at=datetime.fromtimestamp(event.at, UTC),
            thread_id=event.thread_id,
            session_id=event.session_id,
            worker=self.worker,
            data=event.data,
        )

    def _seen(self, after: str | None) -> tuple[int, bool]:
        """The number of the last event seen, and whether some that followed are gone."""
        oldest = self._kept[0].number - 1 if self._kept else self._number
        if after is None:
            return self._number, False
        if after == "":
            return oldest, False
        run, _, number = after.partition(".")
        if not number.isascii() or not number.isdecimal() or len(number) > 18:
            raise InvalidRequest("after: not a position; use `next` of an answer, or nothing")
        if run != self._run:
            return oldest, True
        seen = min(int(number), self._number)
        return (seen, False) if seen >= oldest else (oldest, True)

    async def _found(
        self, tenant: str, request: HappeningsRequest, seen: int
    ) -> tuple[list[Happening], int]:
        found: list[Happening] = []
        passed = 0
        for event in list(self._kept):
            if event.number <= seen:
                continue
            seen = event.number
            if _is_wanted(event, tenant, request):
                found.append(self.told(event))
                if len(found) == request.limit:
                    break
            passed += 1
            if passed % _LOOKED_AT == 0:
                await asyncio.sleep(0)
        return found, seen

    def _gap(self, before: str) -> Happening:
        return Happening(
            id=before, kind="gap", at=datetime.now(UTC), worker=self.worker,
            data={"message": "events are missing here"},
        )  # fmt: skip

    async def _waited(self, deadline: float) -> bool:
        """Whether something came before the deadline."""
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            return False
        changed = self._changed
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left):
                await changed.wait()
                return True
        return False


def _is_wanted(event: Event, tenant: str, request: HappeningsRequest) -> bool:
    return (
        event.tenant == tenant
        and request.thread_id in (None, event.thread_id)
        and request.kind in (None, event.kind)
    )


def budget_teller(events: EventLog) -> Callable[[str, str, float, str], None]:
    """For Usage."""

    def told(tenant: str, name: str, share: float, key_id: str) -> None:
        of = {"key": key_id} if key_id else {}
        events.publish("budget.near", tenant, budget=name, share=round(share, 3), **of)

    return told


def limit_teller(events: EventLog) -> Callable[[str, str, str, str], None]:
    """For a Limiter."""

    def told(tenant: str, limit: str, rule: str, key_id: str) -> None:
        of = {"key": key_id} if key_id else {}
        events.publish("limit.reached", tenant, limit=limit, rule=rule, **of)

    return told
