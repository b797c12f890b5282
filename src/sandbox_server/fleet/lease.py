"""The lease of a worker in a fleet: held in Redis, renewed after a third of its time.

One lease covers all sessions of a worker, so the cost does not grow with their number. The holder
times it with its own clock, started before the request to Redis, so it stops serving before others
can consider it gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import structlog

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.fleet.store import Store
from sandbox_server.fleet.workers import KEEP_S, Drain, Phase, Worker, outage_s, worker_fields
from sandbox_server.private import private_file
from sandbox_server.sessions.lease import AlreadyRunning, Load, alone
from sandbox_server.sessions.registry import REMEMBER_S
from sandbox_server.tasks import stop

log = structlog.get_logger()

_SAFETY = 0.9
"""Fraction of the lease that the holder uses, because clocks differ a little."""


def since_boot() -> float:
    """A clock that is never set, and that includes time spent suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class RedisLease:
    """Use as an async context manager; call `serve` once adoption is done.

    `stop` is called when the worker has drained, or when another process has taken its lease.
    With `leaves`, the worker leaves no boxes behind when it releases the lease. With `hands_over`,
    others can take them over as soon as it has.
    """

    def __init__(
        self,
        store: Store,
        worker: Worker,
        *,
        lease_s: float,
        state_dir: Path,
        stop: Callable[[], None],
        leaves: bool = False,
        hands_over: bool = False,
    ) -> None:
        self._store = store
        self._worker = worker
        self._lease_s = lease_s
        self._state_dir = state_dir
        self._stop = stop
        self.leaves = leaves
        self._hands_over = hands_over
        self._on_gap: Callable[[], Awaitable[None]] | None = None
        self._load: Callable[[], Load] = Load
        self._key = store.worker_key(worker.id)
        self.epoch = 0
        self._valid_until = 0.0
        self.was_away = True
        self._run_id = ""
        self._served = asyncio.Event()
        self._gap = asyncio.Event()
        """Set from a gap in the lease until all sessions are being vouched for."""
        self._unvouched = False
        """Whether some session may not have been vouched for since the last gap."""
        self._stack = contextlib.AsyncExitStack()

    def __repr__(self) -> str:
        left_s = self._valid_until - since_boot()
        return f"<RedisLease {self.worker} epoch {self.epoch} {self._worker.phase} {left_s:.1f}s>"

    @property
    def worker(self) -> str:
        return self._worker.id

    @property
    def draining(self) -> bool:
        return self._worker.phase == Phase.DRAINING

    def check(self) -> None:
        if since_boot() >= self._valid_until:
            raise RuntimeUnavailable(
                f"worker {self.worker} cannot serve: the registry did not renew its lease of"
                f" {self._lease_s:g} s; retry in 1 s",
                retry_after_s=1,
            )

    async def __aenter__(self) -> RedisLease:
        try:
            # The previous holder of the lock is dead, so its lease may be taken at once.
            self._stack.enter_context(alone(self._state_dir, self.worker))
            home = _home(self._state_dir, self.worker)
        except AlreadyRunning:
            # The other process may be frozen: then its lease runs out, and its boxes are fenced.
            home = uuid.uuid4().hex
        await self._acquire(home)
        for work in (self._renew_for_ever(home), self._vouch_for_ever()):
            self._stack.push_async_callback(stop, asyncio.create_task(work))
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()
        with contextlib.suppress(RuntimeUnavailable):
            phase = Phase.LEFT if self._hands_over else Phase.STOPPED
            await self._store.release(self._key, self.epoch, phase)
            if self.leaves or self._hands_over:
                await self._store.forget_worker(self.worker)

    async def serve(
        self, *, load: Callable[[], Load], on_gap: Callable[[], Awaitable[None]]
    ) -> None:
        self._load = load
        self._on_gap = on_gap
        self._served.set()
        self._worker = replace(self._worker, phase=Phase.SERVING)
        await self._renew()

    async def _acquire(self, home: str, **more: str) -> None:
        """Acquire the lease, waiting while another process holds it. more: fields to publish."""
        lapsed = since_boot() >= self._valid_until
        self.was_away = lapsed or (self.was_away and self._unvouched)
        waited = False
        while True:
            asked_at = since_boot()
            epoch, left_s = await self._store.acquire(
                self._key,
                home,
                ttl_s=self._lease_s,
                keep_s=KEEP_S,
                fields={**self._fields(), **more},
            )
            if epoch:
                break
            if not waited:
                waited = True
                log.warning("lease.held", worker=self.worker, left_s=round(left_s, 1))
            await asyncio.sleep(min(left_s + 0.05, self._lease_s))
        if self.epoch:  # Before Redis is asked anything else: it may fail again.
            self._unvouched = True
            self._gap.set()
        self.epoch = epoch
        self._valid_until = asked_at + self._lease_s * _SAFETY
        log.info("lease.acquired", worker=self.worker, epoch=epoch)
        self._run_id = await self._beat()
        await self._store.note_worker(self.worker, now_ms=await self._store.now_ms())

    async def _beat(self) -> str:
        """Say that Redis has just let this worker renew its lease. Returns its run id."""
        wanted = {"outage_s": outage_s(self._lease_s), "keep_s": REMEMBER_S}
        return (await self._store.uptime(**wanted, renewed=True)).run_id

    async def _renew_for_ever(self, home: str) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            try:
                if not await self._renew():
                    await self._win_back(home)
                elif await self._beat() != self._run_id:
                    # A restarted Redis or another one: it may lack the last writes.
                    await self._win_back(home)
            except RuntimeUnavailable as exc:
                log.warning("lease.not_renewed", worker=self.worker, why=exc.message)
            except Exception:
                log.exception("lease.failed", worker=self.worker)

    async def _renew(self) -> bool:
        """Whether the lease is still held. Raises RuntimeUnavailable."""
        asked_at = since_boot()
        held, drain = await self._store.renew(
            self.worker, self.epoch, ttl_s=self._lease_s, keep_s=KEEP_S, fields=self._fields()
        )
        if not held:
            return False
        self._valid_until = asked_at + self._lease_s * _SAFETY
        if drain and self._on_gap is not None:
            self._drain(Drain(drain))
        return True

    def _drain(self, how: Drain) -> None:
        if not self.draining:
            log.info("worker.draining", worker=self.worker, how=how.value)
            self._worker = replace(self._worker, phase=Phase.DRAINING)
        if how == Drain.LEAVE:
            self.leaves = self._load().sessions == 0
        if how == Drain.RESTART or self.leaves:
            self._stop()

    async def _win_back(self, home: str) -> None:
        """Acquire the lease again after it lapsed, was lost by Redis or was taken. The new epoch
        means that every session has to be vouched for again."""
        fields = await self._store.fields(self._key)
        # A higher epoch with this home is our own request, whose answer was lost.
        if int(fields.get("epoch", 0)) > self.epoch and fields["home"] != home:
            log.error("worker.superseded", worker=self.worker, epoch=fields["epoch"])
            self._valid_until = 0.0
            self._stop()
            return
        drain = fields.get("drain")
        await self._acquire(home, **({"drain": drain} if drain else {}))

    async def _vouch_for_ever(self) -> None:
        """Vouch after each gap, concurrently with the renewals, and repeat it until it succeeds."""
        await self._served.wait()
        assert self._on_gap is not None
        while True:
            await self._gap.wait()
            self._gap.clear()
            try:
                await self._on_gap()
                self._unvouched = self._gap.is_set()
                log.info("lease.vouched", worker=self.worker, epoch=self.epoch)
                continue
            except RuntimeUnavailable as exc:
                log.warning("lease.not_vouched", worker=self.worker, why=exc.message)
            except Exception:
                log.exception("lease.not_vouched", worker=self.worker)
            self._gap.set()
            await asyncio.sleep(self._lease_s / 10)

    def _fields(self) -> dict[str, object]:
        load = self._load()
        return worker_fields(replace(self._worker, sessions=load.sessions, warm=load.warm))


def _home(folder: Path, worker: str) -> str:
    """Identifies this worker's state folder on this machine."""
    path = folder / f"{worker}.home"
    private_file(path)
    if not path.read_text():
        path.write_text(uuid.uuid4().hex)
    return path.read_text()
