"""Sandboxes whose caller has limits: requests a second, and commands at a time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from typing import NoReturn

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_sdk.protocol.errors import RateLimited
from sandbox_sdk.protocol.events import AnyEvent
from sandbox_sdk.protocol.operations import Ans, Operation, Req
from sandbox_sdk.protocol.sandboxes import Download, EventsRequest, Sandboxes
from sandbox_server.access.keys import Caller
from sandbox_server.access.limiter import HELD_S, Limiter, Taken, holder_name
from sandbox_server.settings.limit_rules import Allowance, Limited, LimitRules
from sandbox_server.tasks import stop

_COMMANDS = frozenset({op.EXECUTE, op.RUN_CODE, op.CALL_TOOL})
COMMAND_S = 1.0
"""When to try again for a command: one may have ended by then."""
REFUSED_S = 0.5
"""How long any refusal takes."""
PER_S = 20.0
"""How many refusals of one caller are told in a second."""
MOST_S = 10.0
"""The longest that one waits for its turn: below what clients wait for an answer."""
_NAMES = 10_000


class Refusals:
    """When callers are told that they are refused.

    Whoever asks again as soon as it is answered would make the server spend its time on refusals,
    at the cost of the others. So a refusal is not told at once, and of one caller only so many a
    second: further ones wait their turn, and while they wait their connections ask for nothing.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next: dict[str, float] = {}
        """By caller: when the next one may be told."""

    def wait_s(self, name: str) -> float:
        """How long to wait before this caller is told. Call it once for each refusal."""
        now = self._clock()
        at = min(max(now + REFUSED_S, self._next.get(name, 0.0)), now + MOST_S)
        if name not in self._next and len(self._next) >= _NAMES:
            self._next = {each: turn for each, turn in self._next.items() if turn > now}
        self._next[name] = at + 1 / PER_S
        return at - now


class Admission:
    """Asks the limiter on behalf of a caller: for its tenant, and for its key."""

    def __init__(self, rules: LimitRules, limiter: Limiter) -> None:
        self._rules = rules
        self._limiter = limiter
        self._refusals = Refusals()

    def limited(self, sandboxes: Sandboxes, caller: Caller) -> Sandboxes:
        found = self._rules.of(caller.tenant, caller.key_id)
        limits = [each for each in found if each.allowance.requests or each.allowance.commands]
        return LimitedSandboxes(sandboxes, self, limits) if limits else sandboxes

    async def request(self, limits: list[Limited]) -> dict[str, str]:
        """The headers of its answer. Raises RateLimited."""
        least: tuple[Taken, Allowance] | None = None
        for of in limits:
            allowance = of.allowance
            if allowance.requests is None:
                continue
            per_s, burst = allowance.requests, allowance.at_once
            taken = await self._limiter.take(of.name, per_s=per_s, burst=burst)
            if not taken.allowed:
                rule = f"this {of.kind} may send {per_s:g} requests a second"
                await self._refuse(of, "requests", rule, taken.wait_s)
            if least is None or taken.left < least[0].left:
                least = taken, allowance
        return rate_headers(*least) if least else {}

    @contextlib.asynccontextmanager
    async def command(self, limits: list[Limited]) -> AsyncIterator[None]:
        """While a command runs. Raises RateLimited."""
        async with contextlib.AsyncExitStack() as stack:
            for of in limits:
                if of.allowance.commands is not None:
                    await self._hold(stack, of, of.allowance.commands)
            yield

    async def _hold(self, stack: contextlib.AsyncExitStack, of: Limited, most: int) -> None:
        holder = holder_name()
        if not await self._limiter.hold(of.name, holder, most=most):
            rule = commands_rule(of.kind, most)
            await self._refuse(of, "commands", rule, COMMAND_S)
        stack.push_async_callback(self._limiter.release, of.name, holder)
        stack.push_async_callback(stop, asyncio.create_task(self._renewed(of.name, holder)))

    async def _renewed(self, name: str, holder: str) -> None:
        while True:
            await asyncio.sleep(HELD_S / 3)
            await self._limiter.renew(name, holder)

    async def _refuse(self, of: Limited, limit: str, rule: str, wait_s: float) -> NoReturn:
        self._limiter.reached(of.tenant, limit, rule, of=of.name)
        await self.turn(of.name)
        raise rate_limited(limit, rule, wait_s)

    async def turn(self, name: str) -> None:
        """Before a tenant or key is told that it is refused."""
        await asyncio.sleep(self._refusals.wait_s(name))


def commands_rule(kind: str, most: int) -> str:
    return f"this {kind} may run {most} commands at a time"


def rate_limited(limit: str, rule: str, wait_s: float) -> RateLimited:
    wait_s = round(max(wait_s, 0.001), 3)
    return RateLimited(f"{rule}; try again in {wait_s:g} s", limit=limit, retry_after_s=wait_s)


def rate_headers(taken: Taken, allowance: Allowance) -> dict[str, str]:
    """As the IETF's RateLimit fields say it."""
    per_s = allowance.requests or 1.0
    window = max(round(allowance.at_once / per_s), 1)
    policy = f'"requests";q={allowance.at_once};w={window}'
    again = taken.wait_s or (allowance.at_once - taken.left) / per_s
    return {"RateLimit-Policy": policy, "RateLimit": f'"requests";r={taken.left};t={again:.0f}'}


class LimitedSandboxes(Sandboxes):
    def __init__(self, inner: Sandboxes, admission: Admission, limits: list[Limited]) -> None:
        self.inner = inner
        self._admission = admission
        self._limits = limits
        self.same_machine = inner.same_machine
        self.headers: dict[str, str] = {}
        """Of the answer to the last request."""

    async def _admit(self) -> None:
        self.headers = await self._admission.request(self._limits)

    async def call(self, operation: Operation[Req, Ans], request: Req) -> Ans:
        await self._admit()
        held = self._held(request) if operation in _COMMANDS else []
        async with self._admission.command(held):
            try:
                return await self.inner.call(operation, request)
            except RateLimited as exc:
                refusal = exc
        return await self._refused(refusal)

    async def _refused(self, refusal: RateLimited) -> NoReturn:
        """By whoever has the session: for its sessions, its budget, what runs in the background."""
        await self._admission.turn(self._limits[0].name)
        raise refusal

    def _held(self, request: object) -> list[Limited]:
        """Who follows a command begins none. One in the background counts where it runs, until it
        ends (SessionLimits)."""
        if isinstance(request, models.FollowRequest | models.FollowCodeRequest):
            return []
        if isinstance(request, models.ExecuteRequest) and request.background:
            return []
        return self._limits

    async def events(self, request: EventsRequest) -> AsyncGenerator[AnyEvent]:
        await self._admit()
        async with (
            self._admission.command(self._held(request)),
            contextlib.aclosing(self.inner.events(request)) as events,
        ):
            try:
                async for event in events:
                    yield event
                return
            except RateLimited as exc:
                refusal = exc
        await self._refused(refusal)

    async def upload(
        self, request: models.UploadRequest, chunks: AsyncIterable[bytes]
    ) -> models.UploadResult:
        await self._admit()
        return await self.inner.upload(request, chunks)

    @contextlib.asynccontextmanager
    async def download(
        self, request: models.DownloadRequest | models.ArtifactTarget
    ) -> AsyncIterator[Download]:
        await self._admit()
        async with self.inner.download(request) as found:
            yield found

    @contextlib.asynccontextmanager
    async def connect(self, request: models.ConnectRequest) -> AsyncIterator[ByteChannel]:
        await self._admit()
        async with self.inner.connect(request) as channel:
            yield channel
