"""The usage ledger: differences of counters by day, prices, budgets and answers."""

from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandbox_sdk.protocol.errors import InvalidRequest, RateLimited
from sandbox_sdk.protocol.models import UsageRequest
from sandbox_server.network.outbound import EgressLimits, Meter
from sandbox_server.network.rules import Refused
from sandbox_server.sessions.counting import Usage, _Tracked
from sandbox_server.usage import ledger as ledger_module
from sandbox_server.usage.budgets import Budgets
from sandbox_server.usage.figures import Figures, day_of, spans
from sandbox_server.usage.ledger import Reading, Retention, UsageLedger
from sandbox_server.usage.prices import Prices
from sandbox_server.usage.report import LedgerRows, report

MONDAY, TUESDAY = date(2026, 3, 2), date(2026, 3, 3)
MIDNIGHT = datetime(2026, 3, 3, tzinfo=UTC).timestamp()


def reading(at: float, *, tenant: str = "acme", session: str = "s", **counters: Any) -> Reading:
    return Reading(
        tenant=tenant,
        thread_id=f"t-{session}",
        session_id=session,
        began=MIDNIGHT - (100 if at < 0 else 0),
        at=MIDNIGHT + at,
        **counters,
    )


def test_what_counters_grow_by_is_added_once() -> None:
    ledger = UsageLedger()
    for _ in range(2):
        ledger.add([reading(-50, cpu_us=300, commands=2)])
    ledger.add([reading(-40, cpu_us=450), reading(-40, session="u", cpu_us=7)])
    ledger.add([reading(-45, cpu_us=400, commands=1)])  # Of a process that is late.
    ((row), (other)) = ledger.rows("acme", MONDAY, MONDAY, detail=True)
    assert (row.figures.cpu_us, row.figures.commands, row.figures.session_ms) == (450, 2, 60_000)
    assert other.figures.cpu_us == 7
    assert ledger.totals(MONDAY)["acme"].cpu_us == 457


def test_midnight_in_the_middle_of_a_session() -> None:
    ledger = UsageLedger()
    ledger.add([reading(-4, cpu_us=100, memory=1000)])
    ledger.add([reading(0.5, cpu_us=150, memory=1000)])  # Nearly all of it was before.
    ledger.add([reading(10, cpu_us=180, memory=1000)])
    first, second = (each.figures for each in ledger.rows("acme", MONDAY, TUESDAY, detail=False))
    assert (first.cpu_us, second.cpu_us) == (150, 30)
    assert (first.session_ms, second.session_ms) == (100_000, 10_000)
    assert (first.memory_byte_s, second.memory_byte_s) == (100_000, 10_000)
    assert spans(MIDNIGHT - 1, MIDNIGHT + 2) == [(MONDAY, 1.0), (TUESDAY, 2.0)]


def test_the_next_server_goes_on_where_the_last_one_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "a.usage"
    first = UsageLedger(path)
    first.add([reading(1, cpu_us=100, egress=5)])
    second = UsageLedger(path)  # The first is not closed: it was killed.
    second.add([reading(2, cpu_us=130, egress=6)])
    found = second.of_session("s", "acme", TUESDAY)
    assert (found.cpu_us, found.egress_bytes) == (130, 11)
    assert second.id == first.id
    first.close()
    second.close()


def test_a_reading_that_cannot_be_added_adds_nothing() -> None:
    ledger = UsageLedger()
    broken = reading(2, cpu_us=5)
    object.__setattr__(broken, "tenant", None)
    with pytest.raises(Exception, match="cannot be used"):
        ledger.add([reading(1, cpu_us=100), broken])
    assert ledger.totals(TUESDAY) == {}
    ledger.add([reading(1, cpu_us=100)])
    assert ledger.totals(TUESDAY)["acme"].cpu_us == 100


def test_rows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "SESSIONS_A_DAY", 2)
    ledger = UsageLedger()
    for number in range(5):
        ledger.add([reading(1, session=f"s{number}", cpu_us=10)])
    rows = ledger.rows("acme", TUESDAY, TUESDAY, detail=True)
    assert {row.session_id: row.figures.cpu_us for row in rows} == {"": 30, "s0": 10, "s1": 10}
    assert ledger.totals(TUESDAY)["acme"].cpu_us == 50


def test_old_days_are_forgotten() -> None:
    ledger = UsageLedger(retention=Retention(days=10, detail_days=3))
    ledger.add([reading(1, cpu_us=10)])
    ledger.tidy(date(2026, 3, 7))
    assert ledger.rows("acme", TUESDAY, TUESDAY, detail=True) == []
    assert len(ledger.rows("acme", TUESDAY, TUESDAY, detail=False)) == 1
    ledger.tidy(date(2026, 3, 14))
    assert ledger.rows("acme", TUESDAY, TUESDAY, detail=False) == []


def test_what_changed_is_told_once() -> None:
    ledger = UsageLedger()
    ledger.add([reading(1, cpu_us=10)])
    changed = ledger.untold(10)
    assert {row.session_id for _, row, _ in changed} == {None, "s"}
    ledger.add([reading(2, cpu_us=11)])  # Meanwhile.
    ledger.told(changed)
    again = ledger.untold(10)
    assert {row.figures.cpu_us for _, row, _ in again} == {11}
    ledger.told(again)
    assert ledger.untold(10) == []


async def test_answers() -> None:
    ledger = UsageLedger()
    ledger.add([reading(-50, cpu_us=2_000_000, commands=1)])
    ledger.add([reading(50, cpu_us=3_000_000, commands=3, bytes_out=10)])
    ledger.add([reading(50, session="u", cpu_us=9_000_000)])
    ledger.add([reading(50, tenant="other", session="x", cpu_us=1)])
    ledger.store("acme", TUESDAY, stored=2_000_000_000, together=0)
    ledger.store("acme", TUESDAY, stored=1_000_000_000, together=0)
    prices = Prices.parse("cpu_second=0.5, gb_day_storage=1,currency=eur")

    async def ask(tenant: str = "acme", **wanted: object) -> list[tuple[object, ...]]:
        request = UsageRequest.model_validate({"until": TUESDAY, **wanted})
        found = await report(LedgerRows(ledger), tenant, request, prices, today=TUESDAY)
        assert found.currency == "EUR"
        return [
            (row.day or row.session_id or row.thread_id, row.cpu_seconds, row.cost)
            for row in found.rows
        ]

    assert await ask() == [(MONDAY, 2.0, 1.0), (TUESDAY, 10.0, 7.0)]
    assert await ask(by="thread") == [("t-u", 9.0, 4.5), ("t-s", 3.0, 1.5)]
    assert await ask(by="session", thread_id="t-s") == [("s", 3.0, 1.5)]
    assert await ask(by="total") == [(None, 12.0, 8.0)]
    assert await ask(by="thread", thread_id="t-x") == await ask(by="thread", thread_id="no") == []
    assert await ask("nobody") == []
    with pytest.raises(InvalidRequest, match="in their order"):
        await ask(since=TUESDAY, until=MONDAY)


def test_prices_and_budgets_that_mean_nothing() -> None:
    for text in ("cpu=1", "cpu_second=x", "cpu_second=-1", "currency=EURO", "gb_out=inf"):
        with pytest.raises(ValueError):  # noqa: PT011
            Prices.parse(text)
    for text in ("cpu_seconds=1", "a:cpu=1", "a:commands=0", "a:commands=1;a:commands=2", ":b=1"):
        with pytest.raises(ValueError):  # noqa: PT011
            Budgets.parse(text)
    assert Prices.parse("").cost(Figures(cpu_us=5)) is None


def test_a_budget_that_is_used_up() -> None:
    budgets = Budgets.parse("acme:cpu_seconds=10,egress_bytes=1k; *:commands=3")
    budgets.check("acme", Figures(cpu_us=9_999_999, commands=9), now=MIDNIGHT)
    with pytest.raises(RateLimited, match="cpu_seconds is used up: 10 a day") as raised:
        budgets.check("acme", Figures(cpu_us=10_000_000), now=MIDNIGHT + 3600)
    assert raised.value.details == {
        "budget": "cpu_seconds",
        "limit": 10,
        "retry_after_s": 23 * 3600,
    }
    with pytest.raises(RateLimited, match="commands"):
        budgets.check("other", Figures(commands=3), now=MIDNIGHT)
    assert dict(budgets.shares("acme", Figures(egress_bytes=512))) == {
        "cpu_seconds": 0,
        "egress_bytes": 0.5,
    }


async def test_the_bytes_of_today_outlive_a_server() -> None:
    now = MIDNIGHT + 10
    meter = Meter(EgressLimits(bytes_a_day=100), used_today=90, clock=lambda: now)
    await meter.sent(5)
    with pytest.raises(Refused):
        await meter.sent(5)
    assert meter.total == 10
    now += 86400
    await meter.sent(5)
    assert day_of(now) > TUESDAY


def test_sessions_that_nobody_uses_are_read_less_often() -> None:
    def session(name: str, **state: Any) -> Any:
        record = SimpleNamespace(session_id=name)
        usual = {"busy": 0, "last_used": 1.0, "bytes_in": 0, "bytes_out": 0, "egress": None}
        return SimpleNamespace(record=record, **{**usual, **state})

    egress = SimpleNamespace(meter=SimpleNamespace(total=1))
    live = [
        session("quiet"),
        session("long quiet"),
        session("busy", busy=1),
        session("used since", last_used=9.0),
        session("uploaded", bytes_in=1),
        session("connected", egress=egress),
        session("new"),
    ]
    usage = Usage()
    usage.watch(lambda: live)
    for each in live[:-1]:
        usage._tracked[each.record.session_id] = _Tracked(asked_at=5.0, read_at=100.0)
    usage._tracked["long quiet"].read_at = 80.0
    due = [each.record.session_id for each in usage.due(now=110.0)]
    assert due == ["long quiet", "busy", "used since", "uploaded", "connected", "new"]
