"""The index of a fleet's sessions in Redis: who has which thread, and how that worker is.

Redis may forget: flushed, restarted without its last second, replaced by a replica. So what it does
not know counts as unknown, not as absent, until every worker has had the time to tell it again.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.fleet.store import Store
from sandbox_server.fleet.workers import KEEP_S, Presence, Worker, worker_from
from sandbox_server.sessions.registry import REMEMBER_S, Record, Status

_LISTED = 0.1
"""For how much of a lease a list of all workers is good enough."""


class SessionIndex:
    """Reading and changing records, one atomic step at a time."""

    def __init__(self, store: Store, *, lease_s: float, grace_s: float) -> None:
        self._store = store
        self._lease_s = lease_s
        self._grace_s = grace_s
        self._listing = asyncio.Lock()
        self._listed: list[Worker] = []
        self._list_again_at = 0.0

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
        # By then whoever knows something has told it again, or counts as gone.
        settle_s = self._lease_s + self._grace_s
        left_s = await self._store.settle(settle_s=settle_s, keep_s=REMEMBER_S)
        if left_s > 0:
            raise RuntimeUnavailable(
                "the registry was started anew and is learning what runs where; try again",
                retry_after_s=max(round(left_s), 1),
            )

    async def worker(self, worker_id: str) -> Worker | None:
        fields, now_ms = await self._store.describe(self._store.worker_key(worker_id))
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
        """All that were heard of lately, with or without a lease, as they were a moment ago.

        What they tell of themselves is up to a third of a lease old anyway, so a busy coordinator
        need not ask for each new thread.
        """
        async with self._listing:
            if time.monotonic() >= self._list_again_at:
                ids = await self._store.worker_ids()
                keys = [self._store.worker_key(worker_id) for worker_id in ids]
                cards, now_ms = await self._store.describe_all(keys)
                found = (worker_from(card, now_ms=now_ms) for card in cards)
                self._listed = [worker for worker in found if worker is not None]
                self._list_again_at = time.monotonic() + self._lease_s * _LISTED
            return self._listed


_FIELDS = frozenset(Record.__dataclass_fields__) - {"more"}


def encode(record: Record) -> str:
    known = asdict(record)
    more = known.pop("more")
    return json.dumps({**more, **known}, sort_keys=True, separators=(",", ":"))


def decode(text: str | None) -> Record | None:
    """The inverse, also for what a later version has written: swap() compares texts.

    Raises RuntimeUnavailable for a record that only a later version understands.
    """
    if text is None:
        return None
    fields = json.loads(text)
    more = {name: value for name, value in fields.items() if name not in _FIELDS}
    known = {name: value for name, value in fields.items() if name in _FIELDS}
    try:
        return Record(**{**known, "status": Status(known["status"])}, more=more)
    except (KeyError, TypeError, ValueError):
        raise RuntimeUnavailable(
            "the registry holds a session that this version does not understand; upgrade this one"
        ) from None
