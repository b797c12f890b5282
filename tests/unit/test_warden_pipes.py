"""The pipes of commands, with real ones."""

import os
from collections.abc import Iterator

import pytest

from sandbox_warden.command import Command
from sandbox_warden.loop import Loop
from sandbox_warden.output import STDOUT, OutputLog
from sandbox_warden.pipes import MAX_LATE, Pipes


@pytest.fixture
def writers() -> Iterator[list[int]]:
    fds: list[int] = []
    yield fds
    for fd in fds:
        os.close(fd)


def command(writers: list[int]) -> Command:
    made = Command("id", "digest", OutputLog(4096), 0.0)
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    writers.append(writer)
    made.pipes = {reader: STDOUT}
    return made


def test_a_pipe_that_somebody_else_has_emptied_is_drained(writers: list[int]) -> None:
    pipes = Pipes(Loop(), lambda _command: None)
    over = command(writers)
    os.write(writers[0], b"some output")
    over.left = dict.fromkeys(over.pipes, 500)
    assert pipes.drain(over)
    assert over.log.size == len(b"some output")
    pipes.close(over)


def test_what_is_written_after_the_end_is_not_output(writers: list[int]) -> None:
    pipes = Pipes(Loop(), lambda _command: None)
    over = command(writers)
    over.left = dict.fromkeys(over.pipes, 4)
    os.write(writers[0], b"mine late")
    assert pipes.drain(over)
    assert over.log.size == 4
    pipes.close(over)


def test_pipes_that_children_hold_open_do_not_add_up(writers: list[int]) -> None:
    """A process of the box can collect the pipes of all commands there ever were."""
    pipes = Pipes(Loop(), lambda _command: None)
    commands = [command(writers) for _ in range(MAX_LATE + 20)]
    for over in commands:
        pipes.watch(over)
        over.result = {}
        pipes.outlive(over)
    assert [bool(over.pipes) for over in commands] == [False] * 20 + [True] * MAX_LATE
    with pytest.raises(BrokenPipeError):
        os.write(writers[0], b"x")
    pipes.close(commands[-1])
    pipes.outlive(commands[-1])
    assert sum(bool(over.pipes) for over in commands) == MAX_LATE - 1
    for over in commands:
        pipes.close(over)
