"""The index of a fleet's sessions in Redis: which worker has which thread, and its state.

Redis may lose data: a flush, a restart without the last second, a failover. So after a restart a
missing key counts as unknown, not as absent, until every worker has had time to vouch again. And
after an outage every lease has lapsed, so every worker has a whole lease and grace to come back.
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
from sandbox_server.fleet.store import Restored, Store, Uptime
from sandbox_server.fleet.workers import KEEP_S, Presence, Worker, outage_s, worker_from
from sandbox_server.sessions.previews import SessionPreviews
from sandbox_server.sessions.previews import decode as decode_previews
from sandbox_server.sessions.previews import encode as encode_previews
from sandbox_server.sessions.registry import REMEMBER_S, Record, Status, remember_s

log = structlog.get_logger()

_PREVIEWS_S = 7 * 86400.0
"""How long previews that nobody looks at are found, if no worker removes them."""
_LISTED = 0.1
"""How long the list of workers is cached, as a fraction of the lease."""


class SessionIndex:
    """Reads and changes records, each in one atomic step."""

    def __init__(self, store: Store, *, lease_s: float, grace_s: float) -> None:
        self._store = store
        self._lease_s = lease_s
        self._grace_s = grace_s
        self._listing = asyncio.Lock()
        self._listed: list[Worker] = []
        self._list_again_at = 0.0

    async def newest(self, tenant: str, thread_id: str) -> Record | None:
        """Raises RuntimeUnavailable while Redis may lack data, unless it has a live session."""
        record = decode(await self._store.get(self._store.thread_key(tenant, thread_id)))
        if record is None or record.status != Status.LIVE:
            await self.make_sure()  # A later session may have begun.
        return record

    async def by_session(self, tenant: str, session_id: str) -> Record | None:
        """Raises RuntimeUnavailable for a miss while Redis may lack data."""
        record = decode(await self._store.get(self._store.session_key(tenant, session_id)))
        if record is None:
            await self.make_sure()
        return record

    async def peek(self, tenant: str, thread_id: str) -> Record | None:
        """The current record, without the check for lost data."""
        return decode(await self._store.get(self._store.thread_key(tenant, thread_id)))

    # Live records have no ttl; ended ones have. The worker's `held` entry is written first and
    # deleted last, so that no record of a session is ever orphaned.

    async def begin(self, record: Record, *, before: Record | None) -> bool:
        """Write the record of a new session. False if the thread's record is no longer `before`."""
        key = self._store.held_key(record.worker)
        await self._store.set_field(key, record.session_id, encode(record))
        after = (before.session_id, before.epoch, before.status.value) if before else ("", 0, "")
        thread = self._store.thread_key(record.tenant, record.thread_id)
        await self._keep_asked([record])
        if not await self._store.begin(thread, encode(record), after=after):
            await self._store.delete(self._asked_key(record))
            await self.unhold(record)
            return False
        await self.note(record)
        return True

    async def restore_all(self, records: Sequence[Record]) -> list[bool]:
        """Rewrite a worker's live sessions; returns for each whether it still owns its thread."""
        if not records:
            return []
        held_key = self._store.held_key(records[0].worker)
        await self._keep_asked(records)
        restored = [
            Restored(
                thread_key=self._store.thread_key(record.tenant, record.thread_id),
                session_key=self._store.session_key(record.tenant, record.session_id),
                session_id=record.session_id,
                record=encode(record),
            )
            for record in records
        ]
        return await self._store.restore(held_key, restored)

    async def end(self, record: Record) -> None:
        """Record the end of a session, unless it had ended before or was taken over."""
        thread = self._store.thread_key(record.tenant, record.thread_id)
        ttl_s = remember_s(record if record.asked else await self.with_asked(record))
        remembered = await self._store.end(thread, encode(record), ttl_s=ttl_s)
        counts = decode(remembered)
        if counts is not None and counts.status == Status.LIVE:
            await self.unhold(record)
            return
        key = self._store.session_key(record.tenant, record.session_id)
        await self._store.set(key, remembered, ttl_s=ttl_s)
        await self._store.expire(self._asked_key(record), ttl_s=ttl_s)
        await self._store.delete(self._store.previews_key(record.session_id))
        await self.unhold(record)

    async def note(self, record: Record) -> None:
        """Store a record under its session_id."""
        key = self._store.session_key(record.tenant, record.session_id)
        ttl_s = None if record.status == Status.LIVE else remember_s(record)
        await self._store.set(key, encode(record), ttl_s=ttl_s)
        if ttl_s is not None:
            await self._store.expire(self._asked_key(record), ttl_s=ttl_s)

    async def drop(self, record: Record, *, before: Record | None) -> None:
        """Undo begin()."""
        thread = self._store.thread_key(record.tenant, record.thread_id)
        if before is None:
            await self._store.delete(thread)
        else:
            after = (record.session_id, record.epoch, record.status.value)
            is_undone = await self._store.begin(thread, encode(before), after=after)
            if is_undone and before.status != Status.LIVE:
                await self._store.expire(thread, ttl_s=remember_s(before))
        await self._store.delete(self._store.session_key(record.tenant, record.session_id))
        await self._store.delete(self._asked_key(record))
        await self.unhold(record)

    async def previews(self, session_id: str) -> SessionPreviews | None:
        """Those of a session of any tenant. Raises RuntimeUnavailable for a miss while Redis may
        lack data."""
        text = await self._store.get_kept(self._store.previews_key(session_id), ttl_s=_PREVIEWS_S)
        if text is None:
            await self.make_sure()
            return None
        return decode_previews(session_id, text)

    async def keep_previews(self, previews: SessionPreviews) -> None:
        key = self._store.previews_key(previews.session_id)
        if not previews.is_empty:
            await self._store.set(key, encode_previews(previews), ttl_s=_PREVIEWS_S)
        else:
            await self._store.delete(key)

    async def with_asked(self, record: Record) -> Record:
        """The record with what its session was asked for."""
        text = await self._store.get(self._asked_key(record))
        return record if text is None else replace(record, asked=json.loads(text))

    async def _keep_asked(self, records: Sequence[Record]) -> None:
        kept = [(self._asked_key(record), dict(record.asked)) for record in records if record.asked]
        await self._store.pipeline([("SET", key, json.dumps(asked)) for key, asked in kept])

    def _asked_key(self, record: Record) -> str:
        return self._store.asked_key(record.tenant, record.session_id)

    async def unhold(self, record: Record) -> None:
        """Its worker does not have it any more."""
        await self._store.drop_field(self._store.held_key(record.worker), record.session_id)

    async def reap(self, *, after_s: float = KEEP_S) -> None:
        """End the sessions of workers silent for `after_s`, and forget those workers.

        Raises RuntimeUnavailable until live workers had the time to say so after an outage.
        """
        self._wait_for((await self._uptime()).up_s)
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
            with contextlib.suppress(RuntimeUnavailable):  # Skip records of a later version.
                found.append(decode(text))
        return [record for record in found if record is not None]

    async def make_sure(self) -> None:
        """Raises RuntimeUnavailable while Redis may lack data after a restart."""
        self._wait_for((await self._uptime()).most_s)

    async def _uptime(self) -> Uptime:
        return await self._store.uptime(outage_s=outage_s(self._lease_s), keep_s=REMEMBER_S)

    def _wait_for(self, up_s: float) -> None:
        """Raises RuntimeUnavailable until Redis was up for long enough: by then every worker has
        vouched again, or counts as gone."""
        left_s = self._lease_s + self._grace_s - up_s
        if left_s > 0:
            retry_s = max(round(left_s), 1)
            raise RuntimeUnavailable(
                "the registry was away or was emptied, and workers are still registering their"
                f" sessions; retry in {retry_s} s",
                retry_after_s=retry_s,
            )

    async def is_news(self, records: Sequence[Record]) -> bool:
        """Whether Redis, emptied a moment ago, knows one of these from nobody, or only from the
        same epoch of their worker: others may not have told it what they have, yet."""
        with contextlib.suppress(RuntimeUnavailable):
            await self.make_sure()
            return False
        for record in records:
            found = await self.peek(record.tenant, record.thread_id)
            known_as = None if found is None else (found.session_id, found.epoch)
            if known_as in (None, (record.session_id, record.epoch)):
                return True
        return False

    async def worker(self, worker_id: str) -> Worker | None:
        fields, now_ms = await self._store.describe(self._store.worker_key(worker_id))
        found = worker_from(fields, now_ms=now_ms)
        return None if found is None else (await self._excused([found]))[0]

    async def _excused(self, workers: list[Worker]) -> list[Worker]:
        """Without the time for which Redis was away, when none could renew its lease."""
        if all(worker.lapsed_s < self._grace_s for worker in workers):
            return workers
        up_s = (await self._uptime()).up_s
        return [worker.excused(up_s=up_s, lease_s=self._lease_s) for worker in workers]

    async def presence(self, worker_id: str) -> Presence:
        """Whether a worker is present, away or gone. An unknown one is gone."""
        worker = await self.worker(worker_id)
        if worker is not None:
            return worker.presence(grace_s=self._grace_s)
        up_s = (await self._uptime()).up_s
        return Presence.AWAY if up_s < self._lease_s + self._grace_s else Presence.GONE

    async def workers(self) -> list[Worker]:
        """All workers heard of lately, with or without a lease. Cached for a short time.

        Heartbeats are up to a third of a lease old anyway, so a busy coordinator need not ask Redis
        for each new thread.
        """
        async with self._listing:
            if time.monotonic() >= self._list_again_at:
                ids = await self._store.worker_ids()
                keys = [self._store.worker_key(worker_id) for worker_id in ids]
                cards, now_ms = await self._store.describe_all(keys)
                found = (worker_from(card, now_ms=now_ms) for card in cards)
                known = [worker for worker in found if worker is not None]
                self._listed = await self._excused(known)
                self._list_again_at = time.monotonic() + self._lease_s * _LISTED
            return self._listed


_FIELDS = frozenset(Record.__dataclass_fields__) - {"asked", "more"}
_SELDOM = ("movable", "claims")
"""Left out where they say nothing."""


def encode(record: Record) -> str:
    known = dict(vars(record))
    more = known.pop("more")
    del known["asked"]
    known = {name: value for name, value in known.items() if value or name not in _SELDOM}
    return json.dumps({**more, **known}, sort_keys=True, separators=(",", ":"))


def decode(text: str | None) -> Record | None:
    """The inverse of encode. Unknown fields of a later version are kept.

    Raises RuntimeUnavailable for a record that this version cannot read.
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
