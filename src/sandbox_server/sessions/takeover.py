"""Takes over what a worker that is gone has left on boxes that belong to no machine.

Every worker looks for such boxes by itself, and takes the session of a thread at once when somebody
calls for it. Who gets a box is decided on the box: see SharedBox.claim.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping

import structlog

from sandbox_sdk.protocol.errors import Capacity, Misdirected, RuntimeUnavailable
from sandbox_server.runtime.base import SharedBox
from sandbox_server.sessions.adoption import AT_ONCE, Adoption, OthersBoxes
from sandbox_server.sessions.lease import Lease
from sandbox_server.sessions.ledger import Entry, entry_from
from sandbox_server.sessions.registry import Record, Registry
from sandbox_server.sessions.table import FULL_S, SessionTable

log = structlog.get_logger()

AGAIN_S = 300.0
"""How long a worker that is gone and has left nothing is not looked for: a box that it was making
may come late, and it is remembered for a day."""


class Takeover:
    """Adopts boxes of workers that are gone, as far as there is room."""

    def __init__(
        self,
        adoption: Adoption,
        table: SessionTable,
        registry: Registry,
        lease: Lease,
        sources: Mapping[str, OthersBoxes],
    ) -> None:
        """sources: by provider."""
        self._adoption = adoption
        self._table = table
        self._registry = registry
        self._lease = lease
        self._sources = {name: source for name, source in sources.items() if source.shared}
        self._next: dict[str, float] = {}
        """When to look again, for workers that have left nothing."""

    def __repr__(self) -> str:
        return f"<Takeover by {self._lease.worker} of {', '.join(self._sources) or 'nothing'}>"

    async def sweep(self) -> None:
        """Take over what there is. Raises RuntimeUnavailable."""
        if not self._sources or self._lease.draining:
            return
        gone = await self._registry.gone()
        now = time.monotonic()
        self._next = {worker: at for worker, at in self._next.items() if worker in gone}
        asked = [worker for worker in gone if self._next.get(worker, now) <= now]
        if not asked:
            return
        known = {box_id: record for held in gone.values() for box_id, record in held.items()}
        slots = asyncio.Semaphore(AT_ONCE)

        async def take(provider: str, box: SharedBox) -> None:
            async with slots:
                await self._take(provider, box, known.get(box.id))

        left: set[str] = set()
        for provider, source in self._sources.items():
            boxes = list(await source.of_others(asked))
            left |= {box.holding.owner for box in boxes}
            random.shuffle(boxes)  # Others take over at the same time.
            await asyncio.gather(*(take(provider, box) for box in boxes))
        self._next |= {worker: now + AGAIN_S for worker in asked if worker not in left}

    async def _take(self, provider: str, box: SharedBox, known: Record | None) -> None:
        """A failure does not affect the others: the box is found again with the next sweep."""
        owner = box.holding.owner
        try:
            if not await self._registry.is_gone(owner):
                return
            entry = entry_from(box.holding.note)
            if (state := None if entry is None else entry.state) is None:
                taken = await self._adoption.adopt(provider, box, None, known)
            else:
                async with self._table.taking(state["tenant"], state["thread_id"]) as is_free:
                    if not is_free or self._table.room <= 0:
                        return
                    taken = await self._adoption.adopt(provider, box, None, known)
        except RuntimeUnavailable as exc:
            log.warning("box.not_taken_over", box=box.id, owner=owner, why=exc.message)
        except Exception:
            log.exception("box.not_taken_over", box=box.id, owner=owner)
        else:
            self._log(box, owner, entry, taken=taken)

    def _log(self, box: SharedBox, owner: str, entry: Entry | None, *, taken: bool) -> None:
        state = None if entry is None else entry.state
        thread = None if state is None else state["thread_id"]
        log.info("box.taken_over", box=box.id, owner=owner, thread=thread, taken=taken)

    async def session(self, record: Record) -> None:
        """Take over one session now, under the lock of its thread. It is in the table afterwards if
        its box is there. Raises Capacity, Misdirected, RuntimeUnavailable."""
        source = self._sources.get(record.movable)
        if source is None or not await self._registry.is_gone(record.worker):
            return
        box = await source.one_of_others(record.box_id)
        if box is None:
            return
        owner = box.holding.owner
        ours_by_now = owner in (record.worker, self._lease.worker)
        if not ours_by_now and not await self._registry.is_gone(owner):
            raise Misdirected(
                f"worker {owner} is taking over thread {record.thread_id!r}", worker=owner
            )
        if self._lease.draining or self._table.room <= 0:
            raise Capacity(
                f"worker {self._lease.worker} has no room for thread {record.thread_id!r}, whose"
                f" worker is gone; retry in {FULL_S:g} s",
                retry_after_s=FULL_S,
            )
        taken = await self._adoption.adopt(record.movable, box, None, record)
        self._log(box, owner, entry_from(box.holding.note), taken=taken)
        if not taken and await source.one_of_others(record.box_id) is not None:
            raise Misdirected(f"another worker is taking over thread {record.thread_id!r}")
