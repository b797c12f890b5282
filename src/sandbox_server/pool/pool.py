"""The pool: keeps boxes warm and hands each out once.

There are no locks: every count is changed in the same step of the event loop as what it counts, and
everything that takes time runs in a task of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, Self

import structlog

from sandbox_sdk.protocol.errors import Capacity, RuntimeUnavailable, SandboxError
from sandbox_server.metrics.recorder import NO_METRICS, Claim, Metrics
from sandbox_server.pool.plan import Health, PoolSettings, plan
from sandbox_server.pool.warm import Ready, WarmBox, let_go, make
from sandbox_server.runtime.agent import BoxAgent
from sandbox_server.runtime.base import Box, BoxSpec, BoxVolume, DiskImage, Limits, Runtime
from sandbox_server.runtime.box_network import BoxNetwork
from sandbox_server.tasks import TaskSet, stop, until_next

CLOSE_ANSWER_S = 1.0
CLOSE_S = 15.0
"""How long closing the pool waits for boxes to be destroyed."""

log = structlog.get_logger(__name__)


class BoxNotes(Protocol):
    """Where a pool records its boxes, before it acts on them (see Ledger)."""

    def keep_warm(self, box_id: str, *, build: str) -> None: ...

    def give(self, box_id: str, state: Mapping[str, Any], *, build: str) -> None: ...

    def forget(self, box_id: str) -> None: ...


Warmed = Callable[[Box], Awaitable[None]]


class Pool:
    """Warm boxes of one spec.

    `room` returns how many more sessions fit on the machine. A box counts as a session from the
    moment `claim` returns it, so the caller must count it before its next await.
    `slots` limits the concurrent starts of all pools that share it. `ready` builds what boxes of
    an environment need.
    """

    def __init__(
        self,
        runtime: Runtime,
        spec: BoxSpec,
        settings: PoolSettings,
        *,
        connect: Callable[[Box], BoxAgent],
        room: Callable[[], int],
        notes: BoxNotes,
        slots: asyncio.Semaphore | None = None,
        ready: Ready | None = None,
        clock: Callable[[], float] = time.monotonic,
        metrics: Metrics = NO_METRICS,
        provider: str = "",
        warmed: Warmed | None = None,
    ) -> None:
        """provider: under which metrics tell of it, unless that is the runtime's name. warmed: told
        of every box that is kept."""
        self._warmed = warmed
        self._metrics = metrics
        self._provider = provider or runtime.name
        self._runtime = runtime
        self._spec = spec
        self._settings = settings
        self._connect = connect
        self._room = room
        self._notes = notes
        self._ready = ready
        self._clock = clock
        self._check_every_s = min(settings.check_every_s, spec.deadman_s / 4)
        self._warm: dict[WarmBox, asyncio.Task[None]] = {}
        """Oldest first, each with the task that keeps it alive."""
        self._waiters: deque[asyncio.Future[WarmBox]] = deque()
        self._claiming = 0
        self.claimed = 0
        """Boxes handed out so far."""
        self._claims: deque[float] = deque(maxlen=settings.max_size)
        self._idle_since = clock()
        self._health = Health()
        self._slots = slots or asyncio.Semaphore(settings.concurrency)
        self._starts: TaskSet[WarmBox] = TaskSet()
        self._ends: TaskSet[None] = TaskSet(settings.concurrency)
        self._maintenance: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._closed = False

    def __repr__(self) -> str:
        return (
            f"<Pool {self._runtime.name} {self.warm} warm, {self.starting} starting, "
            f"{self.claimed} claimed | max {self._settings.max_size}>"
        )

    async def __aenter__(self) -> Self:
        self._idle_since = self._clock()
        self._maintenance = asyncio.create_task(self._maintain())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close(destroy=False)

    @property
    def warm(self) -> int:
        return len(self._warm)

    @property
    def starting(self) -> int:
        return len(self._starts)

    @property
    def claiming(self) -> bool:
        """Whether a claim is under way."""
        return self._claiming > 0

    @property
    def build(self) -> str:
        """Of what a warm box is made: an earlier process may have had other settings. Adoption
        takes only boxes without an environment, so it must see that too."""
        spec = repr(replace(self._spec, owner="", deadman_s=0.0))
        found = f"{self._runtime.build} {hashlib.sha256(spec.encode()).hexdigest()[:8]}"
        return found if self._ready is None else f"{found} and an environment"

    @property
    def failure(self) -> str | None:
        """Why boxes cannot be started now, or None."""
        return self._health.failure

    def adopt(self, box: Box, agent: BoxAgent) -> None:
        """Add a warm box of an earlier process; allowed before the pool is opened. It is pinged at
        once, and again before it is handed out."""
        self._keep(WarmBox(box, agent), check_in_s=0)
        self._wake.set()

    async def claim(
        self,
        state: Mapping[str, Any],
        *,
        limits: Limits | None = None,
        network: BoxNetwork | None = None,
        disk: DiskImage | None = None,
        volumes: Sequence[BoxVolume] = (),
    ) -> WarmBox:
        """An unused box that has stored `state`; the caller owns it from now on.

        Takes the oldest warm box, or waits for a new one if there is none. A box with other limits
        or another network than the pool's, with a disk to begin with or with volumes is made now.
        Raises Capacity if the machine is full and RuntimeUnavailable if no box can be started.
        """
        self._require_open()
        room, after_s = self._room(), self._settings.retry_after_s
        if room <= self._claiming:
            raise Capacity(
                f"at capacity: room for {room} more sessions, and {self._claiming} are being made;"
                f" retry in {after_s:g} s",
                retry_after_s=after_s,
            )
        self._claiming += 1
        self._idle_since = self._clock()
        self._claims.append(self._idle_since)
        try:
            special = replace(
                self._spec if network is None else self._spec.on(network),
                limits=limits or self._spec.limits,
                disk=disk,
                volumes=tuple(volumes),
            )
            warm, result = await self._claim(special, state)
        finally:
            self._claiming -= 1
            self._wake.set()
        self.claimed += 1
        self._metrics.claim(self._provider, result)
        return warm

    async def close(self, *, destroy: bool) -> None:
        """Stop all work. Warm boxes are destroyed, or left for the next process to adopt; starting
        boxes are always destroyed, and waiting claims fail."""
        self._closed = True
        left, keepers = [*self._warm], [*self._warm.values()]
        self._warm.clear()
        await stop(*keepers, *([self._maintenance] if self._maintenance else ()))
        await self._starts.stop()
        while self._waiters:
            self._fail_waiter(_stopping())
        if destroy:
            # A ping finds boxes that another process has taken over (fenced); those are kept.
            await asyncio.gather(*(warm.answers(within_s=CLOSE_ANSWER_S) for warm in left))
            for warm in left:
                self._discard(warm, reason="closed")
        else:
            await asyncio.gather(*(let_go(warm.agent) for warm in left))
        await self._ends.stop(after_s=CLOSE_S)

    def _require_open(self) -> None:
        if self._closed:
            raise _stopping()

    # Claims

    async def _claim(self, wanted: BoxSpec, state: Mapping[str, Any]) -> tuple[WarmBox, Claim]:
        if wanted != self._spec:
            return await self._claim_special(wanted, state), "special"
        if warm := await self._claim_warm(state):
            return warm, "warm"
        return await self._give_new(await self._next(), state), "miss"

    async def _claim_warm(self, state: Mapping[str, Any]) -> WarmBox | None:
        while self._warm:
            warm = self._take()
            if warm.box.ends_at is not None:
                self._discard(warm, reason="evicted")
                continue
            if await self._give(warm, state, within_s=self._settings.claim_timeout_s):
                return warm
        return None

    async def _claim_special(self, spec: BoxSpec, state: Mapping[str, Any]) -> WarmBox:
        """One that would fit no other claim, so its failure says nothing about the pool."""
        warm = await self._make(spec)
        if self._closed:
            self._discard(warm, reason="closed")
            raise _stopping()
        return await self._give_new(warm, state)

    async def _give_new(self, warm: WarmBox, state: Mapping[str, Any]) -> WarmBox:
        # There is no other box to try, so it may take as long as a start.
        within_s = self._settings.start_timeout_s
        if not await self._give(warm, state, within_s=within_s):
            raise RuntimeUnavailable(
                f"new box {warm.box.id} did not answer within {within_s:g} s; try again"
            )
        return warm

    async def _give(self, warm: WarmBox, state: Mapping[str, Any], *, within_s: float) -> bool:
        """Whether the box answers and has stored the state. If the claim fails after that, the box
        is destroyed: adoption would mistake it for a live session."""
        try:
            self._notes.give(warm.box.id, state, build=self.build)
            taken = await warm.answers(within_s=within_s, state=state)
        except BaseException:
            self._discard(warm, reason="claim cancelled")
            raise
        if not taken:
            self._discard(warm, reason="dead")
        return taken

    async def _next(self) -> WarmBox:
        """Wait for a new box; makes sure that one is starting for every waiting claim."""
        self._require_open()
        waiter: asyncio.Future[WarmBox] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if self.starting < len(self._waiters):
            self._start()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif not waiter.cancelled() and waiter.exception() is None:
                self._hand_out(waiter.result())
            raise

    def _hand_out(self, warm: WarmBox) -> None:
        """Give a new box to the longest-waiting claim, or keep it warm."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(warm)
                return
        if self._closed:
            self._discard(warm, reason="closed")
        else:
            self._keep(warm, check_in_s=self._check_every_s)

    def _fail_waiter(self, error: SandboxError) -> None:
        if not (waiter := self._waiters.popleft()).done():
            waiter.set_exception(error)

    # Warm boxes

    def _keep(self, warm: WarmBox, *, check_in_s: float) -> None:
        try:
            self._notes.keep_warm(warm.box.id, build=self.build)
        except SandboxError as exc:
            self._discard(warm, reason="not recorded")
            self._start_failed(exc)
            return
        keeping = self._keep_alive(warm, check_in_s)
        self._warm[warm] = asyncio.create_task(keeping, context=Context())

    def _take(self) -> WarmBox:
        warm = next(iter(self._warm))
        self._warm.pop(warm).cancel()
        return warm

    async def _keep_alive(self, warm: WarmBox, check_in_s: float) -> None:
        """Ping a warm box until it dies. Pings also reset its dead-man's switch."""
        if self._warmed is not None:
            await self._warmed(warm.box)
        while True:
            await asyncio.sleep(check_in_s)
            if not await warm.answers(within_s=self._settings.check_timeout_s):
                break
            check_in_s = self._check_every_s
        if self._warm.pop(warm, None):
            self._discard(warm, reason="dead")
            self._wake.set()

    def _discard(self, warm: WarmBox, *, reason: str) -> None:
        log.info("box.ended", box=warm.box.id, reason=reason)
        self._ends.start(partial(self._destroy, warm))

    async def _destroy(self, warm: WarmBox) -> None:
        await warm.destroy()
        with contextlib.suppress(SandboxError):  # Adoption drops entries without a box.
            self._notes.forget(warm.box.id)

    # Starting

    def _start(self) -> None:
        self._starts.start(partial(self._make, self._spec), then=self._started)

    async def _make(self, spec: BoxSpec) -> WarmBox:
        began = time.perf_counter()
        try:
            made = await make(
                self._runtime,
                spec,
                slots=self._slots,
                connect=self._connect,
                discard=partial(self._discard, reason="start failed"),
                within_s=self._settings.start_timeout_s,
                ready=self._ready,
            )
        except Exception:
            self._metrics.box_failed(self._provider)
            raise
        self._metrics.box_started(self._provider, time.perf_counter() - began)
        return made

    def _started(self, task: asyncio.Task[WarmBox]) -> None:
        self._wake.set()
        if task.cancelled():
            return
        if error := task.exception():
            self._start_failed(error)
            return
        if self._health.failure:
            log.info("pool.recovered", failures=self._health.failures)
        self._health = Health()
        self._hand_out(task.result())

    def _start_failed(self, error: BaseException) -> None:
        if not isinstance(error, SandboxError):
            log.error("pool.start_broke", exc_info=error)
            error = RuntimeUnavailable(f"a box could not be started: {error!r}")
        now = self._clock()
        self._health = self._health.failed(error.message, now=now, jitter=random.random())
        retry_s = round(self._health.retry_at - now, 3)
        log.warning("pool.start_failed", error=error.message, retry_s=retry_s)
        while self.starting < len(self._waiters):
            self._fail_waiter(error)

    # Maintenance

    async def _maintain(self) -> None:
        while True:
            self._wake.clear()
            try:
                self._carry_out_plan()
            except Exception:
                log.exception("pool.maintenance_broke")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(until_next(self._settings.tick_s)):
                    await self._wake.wait()

    def _carry_out_plan(self) -> None:
        waiting = len(self._waiters)
        todo = plan(
            warm=self.warm,
            starting=self.starting,
            waiting=waiting,
            claims=self._claims,
            room=self._room() - (self._claiming - waiting),
            settings=self._settings,
            now=self._clock(),
            idle_since=self._idle_since,
            failing=self._health.failure is not None,
            retry_at=self._health.retry_at,
        )
        for _ in range(todo.start):
            self._start()
        for _ in range(todo.end):
            self._discard(self._take(), reason="surplus")


def _stopping() -> RuntimeUnavailable:
    return RuntimeUnavailable("the server is stopping; try again")
