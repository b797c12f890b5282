"""Live sessions of a tenant or a key, those it makes in an hour, and its commands in the
background."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Self

from sandbox_sdk.protocol.errors import SandboxError
from sandbox_server.access.limited import COMMAND_S, commands_rule, rate_limited
from sandbox_server.access.limiter import HELD_S, Limiter
from sandbox_server.sessions.background import SessionQuota
from sandbox_server.sessions.live import Key
from sandbox_server.settings.limit_rules import Limited, LimitRules
from sandbox_server.tasks import TaskSet, stop
from sandbox_server.usage.figures import key_account

_HOUR_S = 3600.0
_AGAIN_S = 5.0
"""When to try again for a session: one may have ended by then."""
_ENDING_S = 2.0
"""How long a server that stops waits until its ended commands no longer count."""


class SessionLimits(SessionQuota):
    """Use as an async context manager: inside, the limiter is told how many there are. What runs on
    after a server has stopped counts until HELD_S, or until the next one has adopted it."""

    def __init__(self, rules: LimitRules, limiter: Limiter) -> None:
        self._rules = rules
        self._limiter = limiter
        self._making: dict[Key, str] = {}
        """The id of the key that makes it, by the session."""
        self._counted: set[str] = set()
        self._commands: dict[str, list[str]] = {}
        """Those in the background: in whose limits a command counts."""
        self._ending: TaskSet[None] = TaskSet()
        self._one_by_one: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._wake = asyncio.Event()
        self.live: Callable[[], Mapping[Key, str]] = dict
        """The id of the API key that made it, by the live session; set by whoever has the table."""

    async def __aenter__(self) -> Self:
        self._telling = asyncio.create_task(self._tell())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await stop(self._telling)
        await self._ending.stop(after_s=_ENDING_S)

    @contextlib.asynccontextmanager
    async def one_more(self, key: Key, made_by: str) -> AsyncIterator[None]:
        limits = self._rules.of(key[0], made_by)
        try:
            await self._add(limits, key, made_by)
            for of in limits:
                await self._take(of)
            yield
        finally:
            self._making.pop(key, None)
            self._wake.set()

    async def _add(self, limits: Sequence[Limited], key: Key, made_by: str) -> None:
        bounded = [of for of in limits if of.allowance.sessions is not None]
        async with contextlib.AsyncExitStack() as locks:
            # One after the other: a number that arrives late would replace a later one.
            for of in bounded:
                await locks.enter_async_context(self._one_by_one[of.name])
            for of in bounded:
                await self._add_to(of, of.allowance.sessions or 0)
            self._making[key] = made_by

    async def _add_to(self, of: Limited, most: int) -> None:
        self._counted.add(of.name)
        found = await self._limiter.add_session(of.name, self._mine(of.name), most=most)
        if found is not None:
            rule = f"this {of.kind} may have {most} sessions, and has {found}"
            self._limiter.reached(of.tenant, "sessions", rule, of=of.name)
            raise rate_limited("sessions", rule, _AGAIN_S)

    def _mine(self, name: str) -> int:
        """With those that are being made, which are live a moment before they are done."""
        there = {**self.live(), **self._making}
        return sum(
            name in (tenant, key_account(tenant, made_by)) for (tenant, _), made_by in there.items()
        )

    async def _take(self, of: Limited) -> None:
        most = of.allowance.sessions_per_hour
        if most is None:
            return
        taken = await self._limiter.take(f"{of.name} new", per_s=most / _HOUR_S, burst=most)
        if not taken.allowed:
            rule = f"this {of.kind} may make {most} sessions an hour"
            self._limiter.reached(of.tenant, "sessions_per_hour", rule, of=of.name)
            raise rate_limited("sessions_per_hour", rule, taken.wait_s)

    def changed(self) -> None:
        self._wake.set()

    async def begin_command(
        self, tenant: str, command_id: str, *, key_id: str, at_any_rate: bool = False
    ) -> bool:
        held: list[str] = []
        try:
            for of in self._rules.of(tenant, key_id):
                if of.allowance.commands is not None:
                    await self._hold(of, command_id, at_any_rate=at_any_rate)
                    held.append(of.name)
        except BaseException:
            self._let_go(command_id, held)
            raise
        if held:
            self._commands[command_id] = held
        return bool(held)

    async def _hold(self, of: Limited, command_id: str, *, at_any_rate: bool) -> None:
        most = of.allowance.commands or 0
        bound = None if at_any_rate else most
        if not await self._limiter.hold(of.name, command_id, most=bound):
            rule = commands_rule(of.kind, most)
            self._limiter.reached(of.tenant, "commands", rule, of=of.name)
            raise rate_limited("commands", rule, COMMAND_S)

    def bounds_key(self, key_id: str) -> bool:
        return self._rules.of_key(key_id).commands is not None

    def end_command(self, command_id: str) -> None:
        self._let_go(command_id, self._commands.pop(command_id, []))

    def _let_go(self, command_id: str, names: Sequence[str]) -> None:
        for name in names:
            self._ending.start(functools.partial(self._release, name, command_id))

    async def _release(self, name: str, command_id: str) -> None:
        # One after the other: a renewal that arrives late would count it again.
        async with self._one_by_one[name]:
            with contextlib.suppress(SandboxError):  # It ends by itself.
                await self._limiter.release(name, command_id)

    async def _renew(self) -> None:
        for command_id, names in list(self._commands.items()):
            for name in names:
                async with self._one_by_one[name]:
                    if command_id in self._commands:
                        with contextlib.suppress(SandboxError):  # Told again soon.
                            await self._limiter.renew(name, command_id)

    async def _tell(self) -> None:
        renewed = time.monotonic()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HELD_S / 3):
                    await self._wake.wait()
            self._wake.clear()
            if time.monotonic() - renewed >= HELD_S / 4:
                renewed = time.monotonic()
                await self._renew()
            for name in list(self._counted):
                async with self._one_by_one[name]:
                    mine = self._mine(name)
                    with contextlib.suppress(SandboxError):  # Told again soon.
                        await self._limiter.have_sessions(name, mine)
                if mine == 0:
                    self._counted.discard(name)
            await asyncio.sleep(0.05)
