"""The index of a fleet's sessions in Redis: who has which thread, and how that worker is.

Redis may forget: flushed, restarted without its last second, replaced by a replica. So what it does
not know counts as unknown, not as absent, until every worker has had the time to tell it again.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.fleet.store import Store
from sandbox_server.fleet.workers import KEEP_S, Presence, Worker, worker_from
from sandbox_server.sessions.registry import REMEMBER_S, Record, Status


class SessionIndex:
    """Reading and changing records, one atomic step at a time."""

    def __init__(self, store: Store, *, lease_s: float, grace_s: float) -> None:
        self._store = store
        self._lease_s = lease_s
        self._grace_s = grace_s

    async def newest(self, tenant: str, thread_id: str) -> Record | None:
        """Raises RuntimeUnavailable while a miss may be forgetfulness."""
        return await self._read(self._store.thread_key(tenant, thread_id))

    async def by_session(self, tenant: str, session_id: str) -> Record | None:
        """Raises RuntimeUnavailable while a miss may be forgetfulness."""
        return await self._read(self._store.session_key(tenant, session_id))

    async def peek(self, tenant: str, thread_id: str) -> Record | None:
        """What is written now, believed or not."""
        return decode(await self._store.get(self._store.thread_key(tenant, thread_id)))

    async def _read(self, key: str) -> Record | None:
        record = decode(await self._store.get(key))
        if record is None:
            await self.make_sure()
        return record

    async def swap(self, old: Record | None, new: Record) -> bool:
        """Put a record in the place of another, unless that has changed meanwhile."""
        key = self._store.thread_key(new.tenant, new.thread_id)
        swapped = await self._store.compare_and_set(
            key, encode(old) if old else None, encode(new), ttl_s=REMEMBER_S
        )
        if swapped:
            await self.note(new)
        return swapped

    async def note(self, record: Record) -> None:
        """Keep a record under its session_id."""
        key = self._store.session_key(record.tenant, record.session_id)
        await self._store.set(key, encode(record), ttl_s=REMEMBER_S)

    async def drop(self, record: Record) -> None:
        """Undo a record that should not have been written."""
        await self._store.delete(self._store.thread_key(record.tenant, record.thread_id))
        await self._store.delete(self._store.session_key(record.tenant, record.session_id))

    async def hold(self, record: Record) -> None:
        """Keep in mind that a worker has a session: one that ends or is lost too much is harmless,
        its thread's record has the last word."""
        key = self._store.held_key(record.worker)
        await self._store.set_field(key, record.session_id, encode(record), ttl_s=KEEP_S)

    async def let_go(self, record: Record) -> None:
        await self._store.drop_field(self._store.held_key(record.worker), record.session_id)

    async def held(self, worker_id: str) -> list[Record]:
        fields = await self._store.fields(self._store.held_key(worker_id))
        return [record for record in map(decode, fields.values()) if record is not None]

    async def make_sure(self) -> None:
        """Raises RuntimeUnavailable while Redis may have forgotten what workers know."""
        run_id, now_ms = await asyncio.gather(self._store.run_id(), self._store.now_ms())
        marker = await self._store.get(self._store.marker_key)
        known_run, _, since_ms = (marker or "").partition(" ")
        if known_run != run_id:
            fresh = f"{run_id} {now_ms}"
            await self._store.compare_and_set(
                self._store.marker_key, marker, fresh, ttl_s=REMEMBER_S
            )
            since_ms = str(now_ms)
        left_s = self._lease_s - (now_ms - int(since_ms)) / 1000
        if left_s > 0:
            raise RuntimeUnavailable(
                "the registry was started anew and is learning what runs where; try again",
                retry_after_s=max(round(left_s), 1),
            )
        await self._store.touch(self._store.marker_key, ttl_s=REMEMBER_S)

    async def worker(self, worker_id: str) -> Worker | None:
        fields, now_ms = await asyncio.gather(
            self._store.fields(self._store.worker_key(worker_id)), self._store.now_ms()
        )
        return worker_from(fields, now_ms=now_ms)

    async def presence(self, worker_id: str) -> Presence:
        """Whether a worker is there. One that nobody remembers is gone."""
        worker = await self.worker(worker_id)
        if worker is not None:
            return worker.presence(grace_s=self._grace_s)
        try:
            await self.make_sure()
        except RuntimeUnavailable:
            return Presence.AWAY
        return Presence.GONE

    async def workers(self) -> list[Worker]:
        """All that were heard of lately, with or without a lease."""
        ids = await self._store.worker_ids()
        found = await asyncio.gather(*(self.worker(worker_id) for worker_id in ids))
        return [worker for worker in found if worker is not None]


def encode(record: Record) -> str:
    return json.dumps(asdict(record), sort_keys=True, separators=(",", ":"))


def decode(text: str | None) -> Record | None:
    if text is None:
        return None
    fields = json.loads(text)
    return Record(**{**fields, "status": Status(fields["status"])})
