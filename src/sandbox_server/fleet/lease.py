"""The lease of a worker in a fleet: held in Redis, renewed at a third of its time.

One lease covers all sessions of a worker, so keeping it costs the same with one session and with a
thousand. The holder counts its time by a clock of its own that began before it asked, so that it
stops serving before anybody else may think it gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.fleet.store import Store
from sandbox_server.fleet.workers import KEEP_S, Drain, Phase, Worker, worker_fields
from sandbox_server.sessions.lease import lock

log = structlog.get_logger()

_SAFETY = 0.9
"""How much of its time a holder trusts in: clocks differ a little."""


@dataclass(frozen=True)
class Load:
    """What a worker tells the fleet of itself from time to time."""

    sessions: int = 0
    warm: int = 0


def since_boot() -> float:
    """A clock that neither a set wall clock nor a suspended machine confuses."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class RedisLease:
    """Use as an async context manager; then `serve` once everything is taken over.

    `on_gap` is awaited after the lease was lost and won again: nothing is served meanwhile.
    `on_drain` is called once when the worker is asked to leave, `on_superseded` when another
    process has taken its place.
    """

    def __init__(
        self,
        store: Store,
        worker: Worker,
        *,
        lease_s: float,
        state_dir: Path,
        on_drain: Callable[[Drain], None],
        on_superseded: Callable[[], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._lease_s = lease_s
        self._state_dir = state_dir
        self._on_drain = on_drain
        self._on_superseded = on_superseded
        self._on_gap: Callable[[], Awaitable[None]] | None = None
        self._load: Callable[[], Load] = Load
        self._key = store.worker_key(worker.id)
        self._epoch = 0
        self._valid_until = 0.0
        self._run_id = ""
        self._vouching = False
        self._stack = contextlib.AsyncExitStack()

    def __repr__(self) -> str:
        left_s = self._valid_until - since_boot()
        return f"<RedisLease {self.worker} epoch {self._epoch} {self._worker.phase} {left_s:.1f}s>"

    @property
    def worker(self) -> str:
        return self._worker.id

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def draining(self) -> bool:
        return self._worker.phase == Phase.DRAINING

    def check(self) -> None:
        if self._vouching or since_boot() >= self._valid_until:
            raise RuntimeUnavailable(
                "this worker has lost touch with the registry and serves again when it is back;"
                " try again",
                retry_after_s=1,
            )

    async def __aenter__(self) -> RedisLease:
        fd = lock(self._state_dir, self.worker)
        if fd is None:
            log.warning("lease.lock_held", worker=self.worker, folder=str(self._state_dir))
            home = uuid.uuid4().hex
        else:
            # Whoever held this lock before is dead, so its lease may be taken at once.
            self._stack.callback(lambda: _close(fd))
            home = _home(self._state_dir, self.worker)
        await self._acquire(home)
        renewing = asyncio.create_task(self._renew_for_ever(home))
        self._stack.push_async_callback(_cancelled, renewing)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()
        with contextlib.suppress(RuntimeUnavailable):
            await self._store.release(self._key, self._epoch, Phase.STOPPED)

    async def serve(
        self, *, load: Callable[[], Load], on_gap: Callable[[], Awaitable[None]]
    ) -> None:
        """From now on threads may come."""
        self._load = load
        self._on_gap = on_gap
        self._worker = replace(self._worker, phase=Phase.SERVING)
        await self._renew()

    async def leave(self) -> None:
        """Nothing of this worker is left: it need not be waited for."""
        await self._store.forget_worker(self.worker)

    async def _acquire(self, home: str) -> None:
        """Wait for the lease, for as long as another process holds it."""
        waited = False
        while True:
            asked_at = since_boot()
            epoch, left_s = await self._store.acquire(
                self._key, home, ttl_s=self._lease_s, keep_s=KEEP_S, fields=self._fields()
            )
            if epoch:
                break
            if not waited:
                waited = True
                log.warning("lease.held", worker=self.worker, left_s=round(left_s, 1))
            await asyncio.sleep(min(left_s + 0.05, self._lease_s))
        self._epoch = epoch
        self._valid_until = asked_at + self._lease_s * _SAFETY
        self._run_id = await self._store.run_id()
        await self._store.note_worker(self.worker, now_ms=await self._store.now_ms(), keep_s=KEEP_S)
        log.info("lease.acquired", worker=self.worker, epoch=epoch)

    async def _renew_for_ever(self, home: str) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            try:
                if not await self._renew():
                    await self._win_back(home)
            except RuntimeUnavailable as exc:
                log.warning("lease.not_renewed", worker=self.worker, why=exc.message)
            except Exception:
                log.exception("lease.failed", worker=self.worker)

    async def _renew(self) -> bool:
        """Whether the lease is still held. Raises RuntimeUnavailable."""
        asked_at = since_boot()
        held, drain = await self._store.renew(
            self._key, self._epoch, ttl_s=self._lease_s, keep_s=KEEP_S, fields=self._fields()
        )
        if not held:
            return False
        if (run_id := await self._store.run_id()) != self._run_id:
            # Another Redis than before: it may lack the last of what it was told.
            await self._vouch()
            self._run_id = run_id
        self._valid_until = asked_at + self._lease_s * _SAFETY
        if drain and not self.draining and self._worker.phase == Phase.SERVING:
            self._worker = replace(self._worker, phase=Phase.DRAINING)
            log.info("worker.draining", worker=self.worker, how=drain)
            self._on_drain(Drain(drain))
        return True

    async def _win_back(self, home: str) -> None:
        """The lease has lapsed, was forgotten, or is another's."""
        fields = await self._store.fields(self._key)
        if int(fields.get("epoch", 0)) > self._epoch:
            log.error("worker.superseded", worker=self.worker, epoch=fields["epoch"])
            self._valid_until = 0.0
            self._on_superseded()
            return
        self._vouching = True
        try:
            await self._acquire(home)
            await self._vouch()
        finally:
            self._vouching = False

    async def _vouch(self) -> None:
        if self._on_gap is not None:
            await self._on_gap()

    def _fields(self) -> dict[str, object]:
        load = self._load()
        return worker_fields(replace(self._worker, sessions=load.sessions, warm=load.warm))


def _home(folder: Path, worker: str) -> str:
    """Names the folder this worker keeps, on this machine."""
    path = folder / f"{worker}.home"
    if not path.exists():
        path.write_text(uuid.uuid4().hex)
    return path.read_text()


def _close(fd: int) -> None:
    import os

    os.close(fd)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
