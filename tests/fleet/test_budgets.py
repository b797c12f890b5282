"""Budgets of tenants and keys, by a clock of ours: of a server alone, and over a fleet in Redis."""

import uuid
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from sandbox_sdk.protocol.errors import RateLimited
from sandbox_server.fleet.store import Store
from sandbox_server.fleet.stored import RedisUsage
from sandbox_server.sessions.counting import Usage
from sandbox_server.usage.budgets import Budgets
from sandbox_server.usage.figures import key_account
from sandbox_server.usage.ledger import Reading, Retention, UsageLedger
from tests.fleet.redis_server import RedisServer

MIDNIGHT = datetime(2026, 3, 3, tzinfo=UTC).timestamp()
DAY_S = 86400.0
KEY = key_account("acme", "k1")
BUDGETS = Budgets.parse(
    "acme: cpu_seconds=100, storage_bytes=1000; key *: cpu_seconds=10, bytes_in=1k, bytes_out=1k,"
    " egress_bytes=1k; key k2: commands=1"
)


class Clock:
    now = MIDNIGHT + 3600

    def __call__(self) -> float:
        return self.now


class Server:
    """One that counts; what was used is written into its ledger."""

    def __init__(self, clock: Clock, shared: RedisUsage | None) -> None:
        self.clock = clock
        self.told: list[tuple[str, str, float, str]] = []
        self.stored = 0
        self.usage = Usage(
            UsageLedger(),
            budgets=BUDGETS,
            shared=shared,
            stored=self._stored,
            on_budget=lambda *told: self.told.append(told),
            clock=clock,
        )

    async def _stored(self, _tenant: str) -> tuple[int, int]:
        return self.stored, 0

    async def used(self, session: str = "s", account: str = KEY, **counters: Any) -> None:
        reading = Reading(
            tenant="acme", thread_id="t", session_id=session, began=self.clock.now,
            at=self.clock.now, account=account, **counters,
        )  # fmt: skip
        self.usage.ledger.add([reading])
        await self.usage.read([])
        await self.usage.publish()

    async def refused(self, account: str = KEY) -> RateLimited:
        with pytest.raises(RateLimited) as e:
            await self.usage.admit("other", account)
        return e.value


Open = Callable[[], Server]


@pytest.fixture(params=["memory", "redis"])
async def server(request: pytest.FixtureRequest, redis_server: RedisServer) -> AsyncIterator[Open]:
    """Those of a fleet have the same Redis; in memory each is alone."""
    clock, made = Clock(), list[Server]()
    store = Store.open(redis_server.url, namespace=uuid.uuid4().hex)
    shared = RedisUsage(store, Retention()) if request.param == "redis" else None

    def opened() -> Server:
        made.append(Server(clock, shared))
        return made[-1]

    yield opened
    for each in made:
        each.usage.ledger.close()
    await store.close()


async def test_a_day_of_a_key(server: Open) -> None:
    one = server()
    await one.used(cpu_us=7_900_000)
    assert one.told == []
    await one.used(cpu_us=8_000_000)
    assert one.told == [("acme", "cpu_seconds", 0.8, "k1")]
    await one.usage.admit("acme", KEY)
    await one.used(cpu_us=10_000_000)
    assert len(one.told) == 1
    refusal = await one.refused()
    assert refusal.message.startswith("the budget of cpu_seconds of key k1 is used up: 10 a day;")
    assert refusal.details == {
        "budget": "cpu_seconds", "limit": 10, "key": "k1", "retry_after_s": 23 * 3600,
    }  # fmt: skip
    await one.usage.admit("acme", key_account("acme", "another"), key_account("globex", "k1"))
    one.clock.now = MIDNIGHT + DAY_S
    await one.usage.admit("acme", KEY)
    await one.used(cpu_us=10_000_000)  # The reading at midnight.
    await one.usage.admit("acme", KEY)
    one.clock.now += 10
    await one.used(cpu_us=18_000_000)
    assert one.told[1:] == [("acme", "cpu_seconds", 0.8, "k1")]
    await one.used(cpu_us=20_000_000)
    await one.refused()


@pytest.mark.parametrize(
    ("name", "counters"),
    [
        ("bytes_in", {"bytes_in": 512, "moved_in": 512}),
        ("bytes_out", {"bytes_out": 512, "moved_out": 512}),
        ("egress_bytes", {"egress": 1024}),
    ],
)
async def test_each_budget_of_a_key(server: Open, name: str, counters: dict[str, Any]) -> None:
    one = server()
    await one.used(**counters)
    assert (await one.refused()).details["budget"] == name
    await one.usage.admit("acme")


async def test_the_most_specific_budget_holds(server: Open) -> None:
    one, named = server(), key_account("acme", "k2")
    await one.used(account=named, commands=1, cpu_us=20_000_000)
    assert (await one.refused(named)).details["budget"] == "commands"


async def test_the_sessions_of_all_keys_are_their_tenants(server: Open) -> None:
    one = server()
    for number in range(12):
        account = key_account("acme", f"n{number}")
        await one.used(f"s{number}", account, cpu_us=9_000_000)
        await one.usage.admit(account)
    refusal = await one.refused("acme")
    assert "key" not in refusal.details
    assert refusal.message.startswith("the budget of cpu_seconds is used up: 100 a day;")


async def test_what_is_stored(server: Open) -> None:
    """What is stored now counts, and whoever deletes something may go on."""
    one = server()
    await one.used()
    one.stored = 1000
    await one.usage.look_at_storage()
    refusal = await one.refused("acme")
    assert (refusal.details["budget"], refusal.details["retry_after_s"]) == ("storage_bytes", 5)
    assert "delete checkpoints, volumes or artifacts" in refusal.message
    await one.usage.read([])
    assert one.told == [("acme", "storage_bytes", 1.0, "")]
    one.stored = 10
    await one.usage.look_at_storage()
    await one.usage.admit("acme")
    with pytest.raises(ValueError, match="belongs to the tenant"):
        Budgets.parse("key *: storage_bytes=1g")


async def test_workers_know_of_each_other(redis_server: RedisServer) -> None:
    """Also one on which the key has not been yet: its first call is refused."""
    store = Store.open(redis_server.url, namespace=uuid.uuid4().hex)
    clock, shared = Clock(), RedisUsage(store, Retention())
    one, other = Server(clock, shared), Server(clock, shared)
    await one.used(cpu_us=6_000_000)
    await other.usage.admit(KEY)
    await other.used("u", cpu_us=4_000_000)
    await one.usage.publish()
    for each in (one, other, Server(clock, shared)):
        await each.refused()
    clock.now += DAY_S
    for each in (one, other):
        await each.usage.admit(KEY)
    for each in (one, other):
        each.usage.ledger.close()
    await store.close()


def test_the_days_of_keys_are_kept_as_long_as_those_of_sessions() -> None:
    ledger = UsageLedger(retention=Retention(days=10, detail_days=3))
    began = MIDNIGHT + 10
    ledger.add([Reading(tenant="acme", thread_id="t", session_id="s", began=began, at=began,
                        account=KEY, cpu_us=5)])  # fmt: skip
    day = datetime.fromtimestamp(began, UTC).date()
    assert ledger.totals(day).keys() == {"acme", KEY}
    assert ledger.tenants(day) == ["acme"]
    ledger.tidy(day.replace(day=day.day + 4))
    assert ledger.totals(day).keys() == {"acme"}
    ledger.close()
