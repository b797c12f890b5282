"""No failure of a handler or a timer ends the warden's loop, or makes it spin."""

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sandbox_warden import loop as loop_module
from sandbox_warden.loop import READ, Loop

FAILURES = [
    MemoryError(),
    RecursionError("deep"),
    OSError(errno.EMFILE, "no descriptors"),
    AssertionError("never"),
]


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    monkeypatch.setattr(loop_module, "PAUSE_S", 0.05)
    return Loop()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    os.write(ends[1], b"x")
    yield ends
    for fd in ends:
        os.close(fd)


def turn_for(loop: Loop, seconds: float) -> None:
    """Turn the loop, which would wait for ever where nothing is to come."""
    passed: list[bool] = []
    loop.after(seconds, lambda: passed.append(True))
    while not passed:
        loop.after(0.01, lambda: None)
        loop.turn()


def failing(error: Exception, calls: list[Exception]) -> None:
    calls.append(error)
    raise error


@pytest.mark.parametrize("error", FAILURES, ids=lambda e: type(e).__name__)
def test_a_handler_that_fails_is_called_again_after_a_pause(
    loop: Loop, pipe: tuple[int, int], error: Exception
) -> None:
    calls: list[Exception] = []
    turns = 0
    loop.watch(pipe[0], READ, lambda _events: failing(error, calls))
    while len(calls) < 3:
        loop.turn()
        turns += 1
    assert turns <= 6  # Each pause ends one turn, and the descriptor that is ready another.


def test_who_is_to_be_told_of_a_failure_is(loop: Loop, pipe: tuple[int, int]) -> None:
    calls: list[Exception] = []

    def close() -> None:
        loop.unwatch(pipe[0])
        raise MemoryError  # Once more, and that is all.

    loop.watch(pipe[0], READ, lambda _events: failing(MemoryError(), calls), on_error=close)
    turn_for(loop, 0.1)
    assert len(calls) == 1


def test_a_descriptor_may_be_left_alone_and_watched_again_during_its_pause(
    loop: Loop, pipe: tuple[int, int]
) -> None:
    calls: list[Exception] = []
    loop.watch(pipe[0], READ, lambda _events: failing(MemoryError(), calls))
    loop.turn()
    loop.unwatch(pipe[0])
    loop.watch(pipe[0], READ, lambda _events: failing(MemoryError(), calls))
    loop.turn()
    loop.unwatch(pipe[0])
    turn_for(loop, 0.1)
    assert len(calls) == 2


@pytest.mark.parametrize("error", FAILURES, ids=lambda e: type(e).__name__)
def test_a_timer_that_fails_does_not_keep_the_next_one_from_its_turn(
    loop: Loop, error: Exception
) -> None:
    calls: list[Exception] = []
    done: list[int] = []
    loop.after(0, lambda: failing(error, calls))
    loop.after(0, lambda: done.append(1))
    loop.after(0.01, lambda: done.append(2))
    turn_for(loop, 0.02)
    assert (len(calls), done) == (1, [1, 2])


def test_what_was_ready_is_not_told_to_whoever_has_its_number_next(loop: Loop) -> None:
    """Two are ready; the first to be served closes the other, and gets its number for a third."""
    first, second = socket.socketpair()
    first.send(b"x")
    second.send(b"x")
    served: list[str] = []
    fresh: list[socket.socket] = []

    def replace(other: socket.socket) -> None:
        served.append("ready")
        number = other.fileno()
        loop.unwatch(number)
        ours, theirs = socket.socketpair()
        os.dup2(ours.fileno(), number)
        fresh.extend((ours, theirs))
        loop.watch(number, READ, lambda _events: served.append("never"))

    loop.watch(first.fileno(), READ, lambda _events: replace(second))
    loop.watch(second.fileno(), READ, lambda _events: replace(first))
    loop.turn()
    assert served == ["ready"]
    for sock in (first, second, *fresh):
        sock.close()


OUT_OF_DESCRIPTORS = """
import os, resource, select, socket
from sandbox_warden.door import Door
from sandbox_warden.loop import Loop
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0door-%d" % os.getpid())
listener.listen()
loop = Loop()
Door(loop, listener, relayed=False).open(lambda *_: None)
peer = socket.socket(socket.AF_UNIX)
peer.connect(listener.getsockname())
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (peer.fileno() + 1, hard))
for turn in range(3):
    loop.turn()
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
while not select.select([peer], [], [], 0)[0]:
    loop.after(0.01, lambda: None)
    loop.turn()
print(peer.recv(1))
"""


def test_a_door_without_descriptors_waits_and_opens_again() -> None:
    """A peer of this machine is turned away, which shows that it was let in so far."""
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_DESCRIPTORS], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "b''\n", done.stderr
    assert done.stderr.count("Too many open files") == 1


def test_cancelled_timers_are_dropped_before_they_are_due(loop: Loop) -> None:
    """A command's time limit is cancelled at its end: a fast caller leaves thousands of them."""
    kept: list[int] = []
    for number in range(1000):
        limit = loop.after(300, lambda: None)
        if number % 100 == 0:
            loop.after(0.01 + number / 1e5, lambda number=number: kept.append(number))  # type: ignore[misc]
        limit.cancel()
    assert len(loop._timers) <= loop_module.FEW_TIMERS
    turn_for(loop, 0.1)
    assert kept == list(range(0, 1000, 100))
