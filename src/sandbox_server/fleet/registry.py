"""The registry of a worker in a fleet, on top of the fleet's index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sandbox_sdk.protocol.errors import Misdirected, RuntimeUnavailable, SandboxError
from sandbox_sdk.protocol.models import Target
from sandbox_server.fleet.index import SessionIndex
from sandbox_server.fleet.workers import Presence
from sandbox_server.sessions.lease import Lease
from sandbox_server.sessions.ledger import Ledger
from sandbox_server.sessions.previews import PreviewTable, SessionPreviews
from sandbox_server.sessions.registry import Record, Registry, Status, error_for
from sandbox_server.storage.history import History
from sandbox_server.usage.ledger import SharedUsage


class RedisRegistry(Registry):
    def __init__(
        self,
        index: SessionIndex,
        lease: Lease,
        *,
        ledger: Ledger | None = None,
        previews: PreviewTable | None = None,
        history: History | None = None,
        usage: SharedUsage | None = None,
    ) -> None:
        """`ledger` and `previews` default to ones in memory, for a worker that is never
        restarted."""
        self.history = history
        self.usage = usage
        self._index = index
        self._lease = lease
        self.ledger = ledger or Ledger()
        self.previews = previews or PreviewTable()

    async def close(self) -> None:
        """No-op: whoever opened the store closes it."""

    async def newest(self, tenant: str, thread_id: str) -> Record | None:
        record = await self._index.newest(tenant, thread_id)
        return None if record is None else await self._index.with_asked(record)

    async def by_session(self, tenant: str, session_id: str) -> Record | None:
        return await self._index.by_session(tenant, session_id)

    async def live(self) -> list[Record]:
        return await self._index.held(self._lease.worker)

    async def predecessor(self, tenant: str, thread_id: str) -> Record | None:
        record = await self._index.newest(tenant, thread_id)
        if record is not None:
            if elsewhere := await self._elsewhere(record):
                raise elsewhere
            await self._index.make_sure()
        return None if record is None else await self._index.with_asked(record)

    async def begin(self, record: Record, *, before: Record | None) -> None:
        if not await self._index.begin(record, before=before):
            found = await self._index.peek(record.tenant, record.thread_id)
            raise _misdirected(found or record)
        if record.thread_id != record.session_id:
            # Redis may have lost what it had of the thread since `before` was read.
            try:
                await self._index.make_sure()
            except RuntimeUnavailable:
                await self._index.drop(record, before=before)
                raise
        if before is not None and before.status == Status.LIVE:
            await self._index.note(replace(before, status=Status.LOST))

    async def restore_all(self, records: Sequence[Record]) -> list[bool]:
        # A later generation wins in whatever order workers tell of theirs, once all have.
        too_early = self._lease.was_away and await self._index.is_news(records)
        ours = await self._index.restore_all(records)
        if too_early:
            raise RuntimeUnavailable(
                "the registry was emptied while this worker was away, and others are still"
                " registering their sessions; retry in 1 s",
                retry_after_s=1,
            )
        for record, is_ours in zip(records, ours, strict=True):
            if is_ours and (previews := self.previews.of(record.session_id)) is not None:
                await self._index.keep_previews(previews)
        return ours

    async def gone(self) -> dict[str, dict[str, Record]]:
        return {
            worker.id: {record.box_id: record for record in await self._index.held(worker.id)}
            for worker in await self._index.workers()
            if worker.id != self._lease.worker and await self.is_gone(worker.id)
        }

    async def is_gone(self, worker: str) -> bool:
        return await self._index.presence(worker) == Presence.GONE

    async def is_elsewhere(self, record: Record) -> bool:
        found = await self._index.by_session(record.tenant, record.session_id)
        return (
            found is not None
            and found.status == Status.LIVE
            and found.worker != self._lease.worker
            and found.box_id == record.box_id
        )

    async def took(self, record: Record) -> None:
        if record.worker == self._lease.worker:
            return
        previews = await self._index.previews(record.session_id)
        if previews is not None:
            self.previews.keep(previews)
        await self._index.unhold(record)

    async def publish(self, previews: SessionPreviews) -> None:
        await self._index.keep_previews(previews)

    async def end(self, record: Record, status: Status) -> None:
        previews = self.previews.of(record.session_id)
        self.previews.drop(record.session_id)
        await self._index.end(replace(record, status=status))
        if previews is not None and (ended := previews.ended()) is not None:
            await self._index.keep_previews(ended)

    async def tidy(self) -> None:
        await self._index.reap()

    async def explain(self, record: Record | None, target: Target) -> SandboxError:
        if record is not None:
            if elsewhere := await self._elsewhere(record):
                return elsewhere
            if record.status == Status.LIVE:
                try:
                    await self._index.make_sure()  # This may be an old record.
                except RuntimeUnavailable as exc:
                    return exc
        return error_for(record, target)

    async def _elsewhere(self, record: Record) -> SandboxError | None:
        """The error if the session belongs to another worker that may still have it."""
        if record.status != Status.LIVE or record.worker == self._lease.worker:
            return None
        match await self._index.presence(record.worker):
            case Presence.HERE:
                return _misdirected(record)
            case Presence.AWAY:
                return RuntimeUnavailable(
                    f"worker {record.worker} has thread {record.thread_id!r} and is away;"
                    " retry in 2 s",
                    retry_after_s=2,
                )
            case Presence.GONE:
                return None


def _misdirected(record: Record) -> Misdirected:
    return Misdirected(
        f"worker {record.worker} has thread {record.thread_id!r}", worker=record.worker
    )
