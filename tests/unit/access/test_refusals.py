"""Refusals of one caller are spread over time."""

import pytest

from sandbox_server.access.limited import MOST_S, PER_S, REFUSED_S, Refusals


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def refusals(clock: Clock) -> Refusals:
    return Refusals(clock=clock)


def test_one_alone_takes_half_a_second(refusals: Refusals, clock: Clock) -> None:
    for _ in range(3):
        assert refusals.wait_s("acme") == pytest.approx(REFUSED_S)
        clock.now += 1 / PER_S


def test_of_many_at_once_so_many_a_second_are_told(refusals: Refusals) -> None:
    waits = [refusals.wait_s("noisy") for _ in range(100)]
    assert waits == pytest.approx([REFUSED_S + number / PER_S for number in range(100)])


def test_nobody_waits_longer_than_clients_do(refusals: Refusals) -> None:
    waits = [refusals.wait_s("noisy") for _ in range(1000)]
    assert max(waits) == pytest.approx(MOST_S)


def test_others_do_not_wait_for_it(refusals: Refusals) -> None:
    for _ in range(100):
        refusals.wait_s("noisy")
    assert refusals.wait_s("acme") == pytest.approx(REFUSED_S)


def test_it_passes(refusals: Refusals, clock: Clock) -> None:
    for _ in range(100):
        refusals.wait_s("noisy")
    clock.now += MOST_S
    assert refusals.wait_s("noisy") == pytest.approx(REFUSED_S)


def test_those_whose_turn_is_over_are_forgotten(refusals: Refusals, clock: Clock) -> None:
    for number in range(10_000):
        refusals.wait_s(f"tenant-{number}")
    clock.now += MOST_S
    refusals.wait_s("one more")
    assert len(refusals._next) == 1
