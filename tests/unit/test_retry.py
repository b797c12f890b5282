"""When a call is repeated and when it is given up."""

import pytest

from sandbox_sdk.backends.remote.retry import (
    FIRST_CONTACT_S,
    HELD_S,
    TAKEN_S,
    FailedAttempt,
    Retry,
)
from sandbox_sdk.protocol.errors import RuntimeUnavailable

CUT = FailedAttempt(RuntimeUnavailable("cut"), repeatable=True)
REFUSED = FailedAttempt(RuntimeUnavailable("refused"), repeatable=True, unreached=True)
FINAL = FailedAttempt(RuntimeUnavailable("done"), repeatable=False)


def retry(for_s: float, *, known: bool) -> Retry:
    return Retry(for_s, known=known, began=100.0, client=None)


def given_up_after(patience: Retry, failed: FailedAttempt, *, each_takes_s: float = 0.0) -> float:
    """How long a call that always fails goes on."""
    now = 100.0
    while (pause_s := patience.pause_s(failed, now)) is not None:
        assert pause_s > 0
        now += pause_s + each_takes_s
    return now - 100.0


@pytest.mark.parametrize("failed", [CUT, REFUSED])
def test_a_server_that_is_known_is_waited_for(failed: FailedAttempt) -> None:
    for _ in range(20):
        assert 26 < given_up_after(retry(30, known=True), failed) <= 30


@pytest.mark.parametrize("failed", [CUT, REFUSED])
def test_an_address_that_may_be_wrong_is_given_up_soon(failed: FailedAttempt) -> None:
    """Whether nothing listens there, or something that closes every connection."""
    for _ in range(20):
        assert 1 < given_up_after(retry(30, known=False), failed) <= FIRST_CONTACT_S
    assert given_up_after(retry(0.5, known=False), failed) <= 0.5


def test_attempts_that_take_long_count_from_the_first() -> None:
    """Of a machine that is off, each attempt takes the whole time for a connection."""
    assert retry(30, known=False).pause_s(REFUSED, 100.0 + FIRST_CONTACT_S) is None


def test_a_call_that_was_taken_and_then_cut_waits_for_a_restart() -> None:
    patience = retry(30, known=False)
    patience.look_back(CUT, lasted_s=TAKEN_S + 1)
    assert 26 < given_up_after(patience, REFUSED) <= 30


def test_who_waits_is_told_once_and_in_time() -> None:
    patience, now, told = retry(30, known=True), 100.0, []
    while (pause_s := patience.pause_s(REFUSED, now)) is not None:
        if (left_s := patience.to_tell_s(now, pause_s)) is not None:
            told.append((now - 100.0, left_s))
        now += pause_s
    ((after_s, left_s),) = told
    assert after_s < 5
    assert after_s + left_s == pytest.approx(30)
    patience.start_over()
    assert patience.pause_s(REFUSED, now) is not None
    assert patience.to_tell_s(now, 3.0) == 30, "another time"


def test_who_is_given_up_soon_needs_no_telling() -> None:
    patience = retry(30, known=False)
    assert patience.pause_s(REFUSED, 100.0) is not None
    assert patience.to_tell_s(100.0, 2.5) is None


@pytest.mark.parametrize("for_s", [0, 30])
def test_what_must_not_be_repeated_is_not(for_s: float) -> None:
    assert retry(for_s, known=True).pause_s(FINAL, 0.0) is None


def test_no_patience_at_all() -> None:
    assert retry(0, known=True).pause_s(CUT, 0.0) is None


def test_pauses_grow_and_differ() -> None:
    def pauses() -> list[float]:
        patience = retry(1000, known=True)
        found = [patience.pause_s(CUT, 0.0) for _ in range(12)]
        return [pause for pause in found if pause is not None]

    one, other = pauses(), pauses()
    assert one != other
    assert max(one[0], other[0]) <= 0.1
    assert 1 <= min(one[-1], other[-1]) <= max(one[-1], other[-1]) <= 2


def test_the_server_says_when() -> None:
    later = FailedAttempt(RuntimeUnavailable("later"), repeatable=True, after_s=7)
    pause_s = retry(30, known=True).pause_s(later, 0.0)
    assert pause_s is not None
    assert 7 < pause_s < 7.2
    assert retry(5, known=True).pause_s(later, 0.0) is None


def test_progress_starts_it_over() -> None:
    patience = retry(10, known=True)
    assert patience.pause_s(CUT, 0.0) is not None
    assert patience.pause_s(CUT, 11.0) is None
    patience.start_over()
    assert patience.pause_s(CUT, 11.0) is not None


@pytest.mark.parametrize(
    ("failed", "lasted_s", "goes_on"),
    [
        (CUT, HELD_S + 1, True),
        (CUT, HELD_S - 1, False),
        (REFUSED, HELD_S + 1, False),
        (FailedAttempt(RuntimeUnavailable("full"), repeatable=True, after_s=1), HELD_S + 1, False),
    ],
)
def test_connections_that_worked_for_a_while(
    failed: FailedAttempt, lasted_s: float, goes_on: bool
) -> None:
    patience = retry(10, known=True)
    assert patience.pause_s(failed, 0.0) is not None
    patience.look_back(failed, lasted_s=lasted_s)
    assert (patience.pause_s(failed, 11.0) is not None) == goes_on
