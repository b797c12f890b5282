"""The coordinator's lookup of sessions and workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sandbox_sdk.protocol.models import Target
from sandbox_server.fleet.index import SessionIndex
from sandbox_server.fleet.workers import Presence, Worker
from sandbox_server.sessions.previews import SessionPreviews
from sandbox_server.sessions.registry import Record, Status


@dataclass(frozen=True)
class Location:
    """A session's record and the worker that has it, as far as known."""

    record: Record | None = None
    worker: Worker | None = None
    presence: Presence = Presence.GONE
    assumed: bool = False
    """From the router's cache, because the registry did not answer."""

    @property
    def alive(self) -> bool:
        live = self.record is not None and self.record.status == Status.LIVE
        return live or self.assumed


class Directory:
    """The registered workers, limited to the urls in `only` if there are any.

    Every method may raise RuntimeUnavailable.
    """

    def __init__(self, index: SessionIndex, *, grace_s: float, only: Sequence[str] = ()) -> None:
        self._index = index
        self._grace_s = grace_s
        self._only = [url.rstrip("/") for url in only]

    async def locate(self, tenant: str, target: Target) -> Location:
        """Where the target's session is, or was."""
        if target.session_id is not None:
            record = await self._index.by_session(tenant, target.session_id)
        else:
            record = await self._index.newest(tenant, target.thread_id or "")
        if record is None or record.status != Status.LIVE:
            return Location(record)
        worker = await self._index.worker(record.worker)
        if worker is None:
            return Location(record, None, await self._index.presence(record.worker))
        return Location(record, worker, worker.presence(grace_s=self._grace_s))

    async def with_asked(self, record: Record) -> Record:
        """The record with what its session was asked for."""
        return await self._index.with_asked(record)

    async def previews_of(self, session_id: str) -> SessionPreviews | None:
        """The previews of a session, whoever it belongs to."""
        return await self._index.previews(session_id)

    async def workers(self) -> list[Worker]:
        """Every worker of the fleet, serving or not."""
        found = await self._index.workers()
        return [w for w in found if not self._only or w.url.rstrip("/") in self._only]

    async def here(self) -> list[Worker]:
        """Those that serve."""
        workers = await self.workers()
        return [each for each in workers if self.presence(each) == Presence.HERE]

    async def expected(self) -> list[Worker]:
        """Those that serve, or may come back."""
        workers = await self.workers()
        return [each for each in workers if self.presence(each) != Presence.GONE]

    def presence(self, worker: Worker) -> Presence:
        return worker.presence(grace_s=self._grace_s)

    def missing(self, workers: Sequence[Worker]) -> list[str]:
        """The urls in `only` that no worker has registered."""
        known = {worker.url.rstrip("/") for worker in workers}
        return [url for url in self._only if url not in known]
