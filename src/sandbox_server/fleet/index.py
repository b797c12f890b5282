"""The index of a fleet's sessions in Redis: who has which thread, and how that worker is.

Redis may forget: flushed, restarted without its last second, replaced by a replica. So what it does
not know counts as unknown, not as absent, until every worker has had the time to tell it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace

import structlog

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.fleet.store import Restored, Store
from sandbox_server.fleet.workers import KEEP_S, Presence, Worker, worker_from
from sandbox_server.sessions.registry import REMEMBER_S, Record, Status

log = structlog.get_logger()

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

    # A live session is remembered until it ends, and for a while after that. What its worker holds
    # is written first and dropped last, so that whatever is written of a session can be found.

    async def begin(self, record: Record, *, before: Record | None) -> bool:
        """Write the record of a new session, unless another than `before` is there by now."""
        key = self._store.held_key(record.worker)
        await self._store.set_field(key, record.session_id, encode(record))
        after = (before.session_id, before.epoch, before.status.value) if before else ("", 0, "")
        thread = self._store.thread_key(record.tenant, record.thread_id)
        if not await self._store.begin(thread, encode(record), after=after):
            await self._let_go(record)
            return False
        await self.note(record)
        return True

    async def restore_all(self, records: Sequence[Record]) -> list[bool]:
        """Write live sessions of one worker again; of each, whether its thread is not another's."""
        if not records:
            return []
        held_key = self._store.held_key(records[0].worker)
        return await self._store.restore(held_key, [self._restored(each) for each in records])

    def _restored(self, record: Record) -> Restored:
        return Restored(
            thread_key=self._store.thread_key(record.tenant, record.thread_id),
            session_key=self._store.session_key(record.tenant, record.session_id),
            session_id=record.session_id,
            record=encode(record),
        )

    async def end(self, record: Record) -> None:
        """Write down how a session has ended, unless it had ended before."""
        thread = self._store.thread_key(record.tenant, record.thread_id)
        remembered = await self._store.end(thread, encode(record), ttl_s=REMEMBER_S)
        key = self._store.session_key(record.tenant, record.session_id)
        await self._store.set(key, remembered, ttl_s=REMEMBER_S)
        await self._let_go(record)

    async def note(self, record: Record) -> None:
        """Keep a record under its session_id."""
        key = self._store.session_key(record.tenant, record.session_id)
        ttl_s = None if record.status == Status.LIVE else REMEMBER_S
        await self._store.set(key, encode(record), ttl_s=ttl_s)

    async def drop(self, record: Record) -> None:
        """Undo a record that should not have been written."""
        await self._store.delete(self._store.thread_key(record.tenant, record.thread_id))
        await self._store.delete(self._store.session_key(record.tenant, record.session_id))
        await self._let_go(record)

    async def _let_go(self, record: Record) -> None:
        await self._store.drop_field(self._store.held_key(record.worker), record.session_id)

    async def reap(self, *, after_s: float = KEEP_S) -> None:
        """End the sessions of workers that have been silent for so long, and forget those workers.

        Raises RuntimeUnavailable while Redis may not have heard of everybody who lives.
        """
        await self.make_sure()
        for worker_id in await self._store.silent_workers(for_s=after_s):
            lost = await self.held(worker_id)
            for record in lost:
                await self.end(replace(record, status=Status.LOST))
            await self._store.forget_worker(worker_id)
            log.info("worker.forgotten", worker=worker_id, sessions=len(lost))

    async def held(self, worker_id: str) -> list[Record]:
        fields = await self._store.many_fields(self._store.held_key(worker_id))
        found = []
        for text in fields.values():
            with contextlib.suppress(RuntimeUnavailable):  # One of a later version is none of ours.
                found.append(decode(text))
        return [record for record in found if record is not None]

    async def make_sure(self) -> None:
        """Raises RuntimeUnavailable while Redis may have forgotten what workers know."""
        # By then whoever knows something has told it again, or counts as gone.
        settle_s = self._lease_s + self._grace_s
        left_s = await self._store.settle(settle_s=settle_s, keep_s=REMEMBER_S)
        if left_s > 0:
            retry_s = max(round(left_s), 1)
            raise RuntimeUnavailable(
                "the registry was started anew, and workers still tell it which sessions they have;"
                f" retry in {retry_s} s",
                retry_after_s=retry_s,
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
    known = dict(vars(record))
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
            f"session {fields.get('session_id')!r} in the registry was written by a later version,"
            " which this one cannot read: upgrade this server"
        ) from None
