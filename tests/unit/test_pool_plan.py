"""What the pool decides: how many boxes to start, how many to end, and when to try again."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_server.pool.plan import CAP_S, Health, Plan, PoolSettings, backoff, plan

NOW = 10_000.0
SETTINGS = PoolSettings()

counts = st.integers(0, 40)
times = st.floats(0, 2000).map(lambda ago: NOW - ago)


@st.composite
def settings(draw: st.DrawFn) -> PoolSettings:
    least, size, most = sorted(draw(st.tuples(counts, counts, counts)))
    concurrency = draw(st.integers(1, 10))
    return PoolSettings(min_size=least, size=size, max_size=most, concurrency=concurrency)


@st.composite
def situations(draw: st.DrawFn) -> dict[str, Any]:
    claims = sorted(draw(st.lists(times, max_size=60)))
    starting = draw(counts)
    return {
        "warm": draw(counts),
        "starting": starting,
        "waiting": draw(st.integers(0, starting)),
        "claims": claims,
        "idle_since": claims[-1] if claims else draw(times),
        "room": draw(st.none() | st.integers(-5, 60)),
        "settings": draw(settings()),
        "failing": draw(st.booleans()),
        "retry_at": draw(st.floats(NOW - 50, NOW + 50)),
    }


def decide(**changes: Any) -> Plan:
    situation: dict[str, Any] = {
        "warm": 0,
        "starting": 0,
        "claims": (),
        "room": None,
        "settings": SETTINGS,
        "now": NOW,
        "idle_since": NOW,
    }
    return plan(**{**situation, **changes})


@given(situations())
def test_bounds_hold_in_every_situation(case: dict[str, Any]) -> None:
    made = decide(**case)
    warm, starting, limits = case["warm"], case["starting"], case["settings"]
    assert made.start >= 0
    assert 0 <= made.end <= warm
    assert not (made.start and made.end)
    if made.start:
        assert starting + made.start <= limits.concurrency
        assert warm + starting - case["waiting"] + made.start <= limits.max_size
        assert case["room"] is None or warm + starting + made.start <= case["room"]
        assert not case["failing"] or (made.start == 1 and case["retry_at"] <= NOW)
    if made.end and (case["room"] is None or warm + starting <= case["room"]):
        assert warm + starting - case["waiting"] - made.end >= limits.min_size


@given(situations())
def test_without_claims_it_comes_to_rest(case: dict[str, Any]) -> None:
    """Whatever the beginning, the pool has its size a while later, and its least size at last."""
    case |= {"waiting": 0, "failing": False}
    limits: PoolSettings = case["settings"]
    room = case["room"]
    for later_s, wanted in ((limits.shrink_window_s, limits.size), (1e6, limits.min_size)):
        case |= {"idle_since": NOW, "claims": [NOW], "now": NOW + later_s}
        for _ in range(100):
            made = decide(**case)
            warm = case["warm"] + case["starting"] - made.end
            case |= {"warm": warm, "starting": made.start}
        assert made == Plan()
        assert case["warm"] == (wanted if room is None else min(wanted, max(room, 0)))


@pytest.mark.parametrize(
    ("warm", "starting", "expected"),
    [
        (0, 0, Plan(start=4)),
        (0, 4, Plan()),
        (3, 1, Plan(start=1)),
        (5, 0, Plan()),
        (9, 0, Plan(end=4)),
        (1, 9, Plan(end=1)),
    ],
)
def test_at_rest_there_are_as_many_as_the_size(warm: int, starting: int, expected: Plan) -> None:
    assert decide(warm=warm, starting=starting) == expected


def test_claims_that_come_fast_make_it_grow_up_to_the_maximum() -> None:
    assert decide(warm=8, claims=[NOW - 1] * 12) == Plan(start=4)
    assert decide(warm=12, claims=[NOW - 1] * 12) == Plan()
    assert decide(warm=19, claims=[NOW - 1] * 1000) == Plan(start=1)


def test_what_was_needed_a_moment_ago_is_not_ended_yet() -> None:
    claims = [NOW - 30] * 12
    assert decide(warm=12, claims=claims) == Plan()
    assert decide(warm=8, claims=claims) == Plan()
    assert decide(warm=12, claims=claims, now=NOW + 31, idle_since=NOW - 30) == Plan(end=7)


def test_after_a_long_time_without_claims_the_least_is_kept() -> None:
    assert decide(warm=5, idle_since=NOW - 599) == Plan()
    assert decide(warm=5, idle_since=NOW - 600) == Plan(end=3)
    assert decide(warm=0, idle_since=NOW - 600) == Plan(start=2)


def test_boxes_that_claims_wait_for_are_not_counted_as_supply() -> None:
    assert decide(starting=2, waiting=2) == Plan(start=2)


def test_the_machine_bounds_the_pool() -> None:
    assert decide(warm=1, starting=1, room=3) == Plan(start=1)
    assert decide(warm=3, room=3) == Plan()
    assert decide(warm=5, room=3) == Plan(end=2)
    assert decide(room=-1) == Plan()


def test_a_failing_engine_is_tried_with_one_box_when_its_time_has_come() -> None:
    assert decide(failing=True, retry_at=NOW + 0.1) == Plan()
    assert decide(failing=True, retry_at=NOW) == Plan(start=1)
    assert decide(failing=True, retry_at=NOW, starting=1) == Plan()
    assert decide(failing=True, retry_at=NOW + 9, warm=9) == Plan(end=4)


@pytest.mark.parametrize(
    "wrong",
    [{"size": 1}, {"size": 21}, {"min_size": -1}, {"concurrency": 0}, {"grow_window_s": 61}],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"pool|box"):
        replace(SETTINGS, **wrong)


@given(st.integers(-1, 10_000), st.floats(0, 1))
def test_the_wait_is_bounded_and_never_falls(failures: int, jitter: float) -> None:
    wait_s = backoff(failures, jitter=jitter)
    assert 0 <= wait_s <= CAP_S
    assert backoff(failures + 1, jitter=jitter) >= wait_s


def test_the_wait_doubles() -> None:
    assert [backoff(n, jitter=1) for n in range(9)] == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]
    assert backoff(3, jitter=0) == 1


def test_starts_that_fail_together_are_one_failure() -> None:
    once = Health().failed("down", now=NOW, jitter=1)
    assert once == Health(1, "down", NOW + 0.5)
    assert once.failed("down too", now=NOW + 0.1, jitter=1) == Health(1, "down too", NOW + 0.5)
    assert once.failed("still", now=NOW + 0.5, jitter=1) == Health(2, "still", NOW + 1.5)
