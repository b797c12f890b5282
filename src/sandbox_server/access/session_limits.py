"""Live sessions of a tenant, and those it makes in an hour."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection
from typing import Self

from sandbox_sdk.protocol.errors import SandboxError
from sandbox_server.access.limited import rate_limited
from sandbox_server.access.limiter import HELD_S, Limiter
from sandbox_server.sessions.live import Key
from sandbox_server.sessions.quota import SessionQuota
from sandbox_server.settings.limit_rules import LimitRules
from sandbox_server.tasks import stop

_HOUR_S = 3600.0
_AGAIN_S = 5.0
"""When to try again for a session: one may have ended by then."""


class SessionLimits(SessionQuota):
    """Use as an async context manager: inside, the limiter is told how many there are."""

    def __init__(self, rules: LimitRules, limiter: Limiter) -> None:
        self._rules = rules
        self._limiter = limiter
        self._making: set[Key] = set()
        self._counted: set[str] = set()
        self._one_by_one: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._wake = asyncio.Event()
        self._telling: asyncio.Task[None] | None = None
        self.live: Callable[[], Collection[Key]] = tuple
        """The keys of live sessions; set by whoever has the table."""

    async def __aenter__(self) -> Self:
        self._telling = asyncio.create_task(self._tell())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._telling is not None:
            await stop(self._telling)

    @contextlib.asynccontextmanager
    async def one_more(self, key: Key) -> AsyncIterator[None]:
        tenant = key[0]
        allowance = self._rules.of_tenant(tenant)
        # One after the other: a number that arrives late would replace a later one.
        async with self._one_by_one[tenant]:
            if allowance.sessions is not None:
                await self._add(tenant, allowance.sessions)
            self._making.add(key)
        try:
            if allowance.sessions_per_hour is not None:
                await self._take(tenant, allowance.sessions_per_hour)
            yield
        finally:
            self._making.discard(key)
            self._wake.set()

    async def _add(self, tenant: str, most: int) -> None:
        self._counted.add(tenant)
        mine = self._mine(tenant)
        found = await self._limiter.add_session(tenant, mine, most=most)
        if found is not None:
            rule = f"this tenant may have {most} sessions, and has {found}"
            self._limiter.reached(tenant, "sessions", rule, of=tenant)
            raise rate_limited("sessions", rule, _AGAIN_S)

    def _mine(self, tenant: str) -> int:
        """With those that are being made, which are live a moment before they are done."""
        return sum(of == tenant for of, _ in {*self.live(), *self._making})

    async def _take(self, tenant: str, most: int) -> None:
        taken = await self._limiter.take(f"{tenant} new", per_s=most / _HOUR_S, burst=most)
        if not taken.allowed:
            rule = f"this tenant may make {most} sessions an hour"
            self._limiter.reached(tenant, "sessions_per_hour", rule, of=tenant)
            raise rate_limited("sessions_per_hour", rule, taken.wait_s)

    def changed(self) -> None:
        self._wake.set()

    async def _tell(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HELD_S / 3):
                    await self._wake.wait()
            self._wake.clear()
            for tenant in list(self._counted):
                async with self._one_by_one[tenant]:
                    mine = self._mine(tenant)
                    with contextlib.suppress(SandboxError):  # Told again soon.
                        await self._limiter.have_sessions(tenant, mine)
                if mine == 0:
                    self._counted.discard(tenant)
            await asyncio.sleep(0.05)
