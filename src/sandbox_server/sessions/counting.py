"""Counts what live sessions use, for the usage ledger. Only the end of a box waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Self

import structlog

from sandbox_sdk.protocol.errors import RateLimited, RuntimeUnavailable, SandboxError
from sandbox_server.runtime.agent import Usage as BoxUsage
from sandbox_server.sessions.live import LiveSession
from sandbox_server.tasks import stop
from sandbox_server.usage.budgets import EGRESS, NEAR, STORAGE, Budgets, used_up
from sandbox_server.usage.figures import Figures, day_ends, day_of, key_account, key_in, tenant_in
from sandbox_server.usage.ledger import Reading, SharedUsage, UsageLedger

log = structlog.get_logger()

EVERY_S = 5.0
"""How often sessions are read: what a box has used since is lost if it is killed from outside."""
QUIET_EVERY_S = 30.0
"""The same for sessions that nobody has used since: of thousands, most are idle."""
STORED_EVERY_S = 300.0
_ANSWER_S = 2.0
_AT_ONCE = 16
_BATCH = 500
OnBudget = Callable[[str, str, float, str], None]
"""Called with the tenant, the budget, how much of it is used, and the id of the key whose budget it
is, or nothing; once a day."""
Stored = Callable[[str], Awaitable[tuple[int, int]]]
"""Bytes stored for a tenant: by this server alone, and in a store that several have together."""


@dataclass
class _Tracked:
    """How much of the counters of this process is in the ledger."""

    bytes_in: int = 0
    bytes_out: int = 0
    egress: int = 0
    elsewhere: bool = False
    """Whether what its box has counted so far is in the ledger of another worker."""
    asked_at: float = -1.0
    """When the warden was last asked, on the monotonic clock."""
    read_at: float = -QUIET_EVERY_S
    """When all of it was last written, on the same clock."""


class Usage:
    """Reads by itself while it is entered as an async context manager."""

    def __init__(
        self,
        ledger: UsageLedger | None = None,
        *,
        budgets: Budgets | None = None,
        shared: SharedUsage | None = None,
        stored: Stored | None = None,
        on_budget: OnBudget = lambda _tenant, _name, _share, _key_id: None,
        clock: Callable[[], float] = time.time,
        every_s: float = EVERY_S,
    ) -> None:
        """ledger: by default one in memory. stored: without, nothing is said of storage."""
        self.ledger = ledger or UsageLedger()
        self.budgets = budgets or Budgets()
        self.on_budget = on_budget
        self._shared = shared
        self._stored = stored
        self._clock = clock
        self._every_s = every_s
        self._tracked: dict[str, _Tracked] = {}
        self._sessions: Callable[[], Iterable[LiveSession]] = tuple
        self._day = day_of(clock())
        self._totals: dict[str, Figures] = {}
        self._others: dict[str, Figures] = {}
        self._writing = asyncio.Lock()
        self._look_at_stored = 0.0
        self._stored_now: dict[str, dict[str, int]] = {}
        """By tenant: how much is stored, as it was last looked at."""

    def watch(self, sessions: Callable[[], Iterable[LiveSession]]) -> None:
        """sessions: the live ones."""
        self._sessions = sessions

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._refresh)
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await stop(self._task)

    # What others ask

    def today(self, account: str) -> Figures:
        """What a tenant or a key has used today, as of the last reading. From memory."""
        if day_of(self._clock()) != self._day:
            return Figures()
        return self._totals.get(account, Figures()) + self._others.get(account, Figures())

    async def admit(self, *accounts: str) -> None:
        """Raises RateLimited if a budget of one of them is used up."""
        for account in accounts:
            if self.budgets.of(account):
                await self._know_others(account)
                self.check(account)

    def check(self, account: str) -> None:
        """The same, as far as is known already."""
        try:
            used = replace(self.today(account), **self._stored_now.get(account, {}))
            self.budgets.check(account, used, now=self._clock())
        except RateLimited as exc:
            if exc.details["budget"] == STORAGE:
                self._look_at_stored = 0.0  # Something may be deleted now.
            raise

    def spent(self, session: LiveSession) -> str:
        """Why a box may make no new connections; empty if it may."""
        for account in (session.record.tenant, account_of(session)):
            most = self.budgets.of(account).get(EGRESS)
            if most is not None and self.today(account).egress_bytes >= most:
                return used_up(EGRESS, most, key_id=key_in(account), now=self._clock()).message
        return ""

    async def _know_others(self, account: str) -> None:
        """Ask what other workers have counted, the first time that somebody calls here."""
        if self._shared is None or account in self._others or self.today_is != self._day:
            return
        with contextlib.suppress(RuntimeUnavailable):  # Asked again soon.
            self._others |= await self._shared.others(self.ledger.id, [account], self._day)

    def egress_today(self, session: LiveSession) -> int:
        """Of a session, as far as earlier processes have counted it."""
        record = session.record
        found = self.ledger.of_session(record.session_id, record.tenant, day_of(self._clock()))
        return found.egress_bytes

    @property
    def today_is(self) -> date:
        return day_of(self._clock())

    # Reading

    async def read(self, sessions: Iterable[LiveSession]) -> None:
        """Bring the ledger up to date. What cannot be written now is written with the next."""
        slots = asyncio.Semaphore(_AT_ONCE)

        async def one(session: LiveSession) -> tuple[LiveSession, Reading]:
            async with slots:
                return session, await self._reading(session)

        async with self._writing:
            readings = await asyncio.gather(*map(one, sessions))
            try:
                await asyncio.to_thread(self._write, [reading for _, reading in readings])
            except RuntimeUnavailable as exc:
                log.warning("usage.not_written", sessions=len(readings), why=exc.message)
                return
            for _, reading in readings:
                self._written(reading)
        self._tell_budgets()

    def due(self, *, now: float) -> list[LiveSession]:
        """The sessions to read at this time of the monotonic clock."""
        return [session for session in self._sessions() if self._is_due(session, now)]

    def _is_due(self, session: LiveSession, now: float) -> bool:
        tracked = self._tracked.get(session.record.session_id)
        if tracked is None or session.busy or session.last_used >= tracked.asked_at:
            return True
        moved = (session.bytes_in, session.bytes_out, _egress_of(session))
        if moved != (tracked.bytes_in, tracked.bytes_out, tracked.egress):
            return True
        return now - tracked.read_at >= QUIET_EVERY_S

    async def ended(self, session: LiveSession) -> None:
        """The last reading of a session, before its box is destroyed."""
        await self.read([session])
        self.forget(session)

    def forget(self, session: LiveSession) -> None:
        """Another worker counts from now on."""
        self._tracked.pop(session.record.session_id, None)

    async def publish(self) -> None:
        """Tell the fleet. Raises RuntimeUnavailable."""
        if self._shared is None:
            return
        while changed := await asyncio.to_thread(self.ledger.untold, _BATCH):
            await self._shared.publish(self.ledger.id, [(each[0], each[1]) for each in changed])
            await asyncio.to_thread(self.ledger.told, changed)
        limited = [each for each in {*self._totals, *self._others} if self.budgets.of(each)]
        self._others = await self._shared.others(self.ledger.id, limited, self._day)

    async def _reading(self, session: LiveSession) -> Reading:
        record = session.record
        if (tracked := self._tracked.get(record.session_id)) is None:
            tracked = _Tracked(elsewhere=session.taken_over)
            self._tracked[record.session_id] = tracked
        told = await self._ask(session, tracked)
        found = await session.box.measure()
        if found is not None:
            cpu_us: int | None = found.cpu_us
            memory, peak = found.memory, found.memory_peak
        else:
            cpu_us = None if told is None else round(told.cpu_s * 1e6)
            memory = peak = (told.memory_bytes or 0) if told else 0
        egress = _egress_of(session)
        account = account_of(session)
        return Reading(
            tenant=record.tenant,
            thread_id=record.thread_id,
            session_id=record.session_id,
            began=record.created_at,
            at=self._clock(),
            cpu_us=cpu_us,
            commands=told.commands if told else None,
            command_ms=told.command_ms if told else None,
            bytes_in=told.bytes_in if told else None,
            bytes_out=told.bytes_out if told else None,
            memory=memory,
            memory_peak=peak,
            paused=session.paused_at is not None,
            account=account if self.budgets.of(account) else "",
            moved_in=session.bytes_in - tracked.bytes_in,
            moved_out=session.bytes_out - tracked.bytes_out,
            egress=egress - tracked.egress,
            elsewhere=tracked.elsewhere,
        )

    async def _ask(self, session: LiveSession, tracked: _Tracked) -> BoxUsage | None:
        """What the warden has counted; None if nothing was run since it was last asked, or it does
        not answer."""
        if not session.busy and session.last_used < tracked.asked_at:
            return None
        asked_at = time.monotonic()
        try:
            async with asyncio.timeout(_ANSWER_S):
                told = await session.agent.counts()
        except (SandboxError, TimeoutError):
            return None
        tracked.asked_at = asked_at
        return told

    def _written(self, reading: Reading) -> None:
        tracked = self._tracked.setdefault(reading.session_id, _Tracked())
        tracked.bytes_in += reading.moved_in
        tracked.bytes_out += reading.moved_out
        tracked.egress += reading.egress
        tracked.elsewhere = tracked.elsewhere and reading.commands is None
        tracked.read_at = time.monotonic()

    def _write(self, readings: Sequence[Reading]) -> None:
        if readings:
            self.ledger.add(readings)
        self._refresh()

    def _refresh(self) -> None:
        day = day_of(self._clock())
        totals = self.ledger.totals(day)
        if day != self._day:
            self._others = {}
        self._day, self._totals = day, totals

    def _tell_budgets(self) -> None:
        for account in list(self._totals):
            for name, share in self.budgets.shares(account, self.today(account)):
                if share >= NEAR and self.ledger.warn_once(account, self._day, name):
                    tenant, key_id = tenant_in(account), key_in(account)
                    of = {"tenant": tenant, **({"key": key_id} if key_id else {})}
                    log.warning("budget.near", **of, budget=name, share=round(share, 3))
                    self.on_budget(tenant, name, share, key_id)

    # In the background

    async def _run(self) -> None:
        while True:
            now = self._clock()
            await asyncio.sleep(min(self._every_s, day_ends(now) - now))
            try:
                await self.read(self.due(now=time.monotonic()))
                await self.publish()
                await self._look(self._clock())
            except RuntimeUnavailable as exc:
                log.warning("usage.behind", why=exc.message)
            except Exception:
                log.exception("usage.failed")

    async def _look(self, now: float) -> None:
        if now < self._look_at_stored:
            return
        self._look_at_stored = now + STORED_EVERY_S
        await asyncio.to_thread(self.ledger.tidy, day_of(now))
        await self.look_at_storage()
        live = {session.record.session_id for session in self._sessions()}
        for session_id in self._tracked.keys() - live:
            del self._tracked[session_id]

    async def look_at_storage(self) -> None:
        """Note how much is stored for every tenant that was here lately."""
        if self._stored is None:
            return
        since = self.today_is - timedelta(days=self.ledger.retention.detail_days)
        for tenant in await asyncio.to_thread(self.ledger.tenants, since):
            alone, together = await self._stored(tenant)
            others = self._others.get(tenant, Figures())
            self._stored_now[tenant] = {
                "stored": alone + others.stored,
                "stored_together": max(together, others.stored_together),
            }
            note = functools.partial(self.ledger.store, tenant, self.today_is)
            await asyncio.to_thread(note, stored=alone, together=together)


def _egress_of(session: LiveSession) -> int:
    return 0 if session.egress is None else session.egress.meter.total


def account_of(session: LiveSession) -> str:
    """Of the key that made a session, which all it uses is charged to; empty for none."""
    return key_account(session.record.tenant, session.made_by)
