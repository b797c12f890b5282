"""The log keeps the first and the last half of an output, whatever it is made of."""

from hypothesis import given
from hypothesis import strategies as st

from sandbox_warden.output import STDERR, STDOUT, OutputLog

writes = st.lists(st.tuples(st.sampled_from([STDOUT, STDERR]), st.binary(max_size=40)), max_size=60)


def read_all(log: OutputLog, offset: int = 0, most: int = 7) -> list[tuple[int, int, bytes]]:
    pieces = []
    while (piece := log.read(offset, most)) is not None:
        pieces.append(piece)
        offset = piece[0] + len(piece[2])
    return pieces


def fill(limit: int, written: list[tuple[int, bytes]]) -> tuple[OutputLog, list[tuple[int, int]]]:
    """A log, and what was written to it as (stream, byte) pairs."""
    log = OutputLog(limit)
    model: list[tuple[int, int]] = []
    for stream, data in written:
        log.append(stream, data)
        model += [(stream, byte) for byte in data]
    log.settle()
    return log, model


@given(writes, st.integers(2, 200), st.integers(1, 50))
def test_what_is_kept_is_the_first_and_the_last_half(
    written: list[tuple[int, bytes]], limit: int, most: int
) -> None:
    log, model = fill(limit, written)
    half = max(limit // 2, 1)
    assert log.size == len(model)
    assert log.truncated == (len(model) > 2 * half)
    kept = {}
    for offset, stream, data in read_all(log, most=most):
        assert 0 < len(data) <= most
        kept.update({offset + i: (stream, byte) for i, byte in enumerate(data)})
    wanted = range(len(model))
    if log.truncated:
        wanted = [*range(half), *range(len(model) - half, len(model))]  # type: ignore[assignment]
    assert kept == {i: model[i] for i in wanted}


@given(writes, st.integers(2, 200), st.integers(0, 3000))
def test_reading_can_begin_anywhere(
    written: list[tuple[int, bytes]], limit: int, offset: int
) -> None:
    log, model = fill(limit, written)
    for position, stream, data in read_all(log, offset):
        assert position >= offset
        assert [(stream, byte) for byte in data] == model[position : position + len(data)]


@given(writes)
def test_a_forgotten_log_keeps_its_size(written: list[tuple[int, bytes]]) -> None:
    log, model = fill(64, written)
    log.forget()
    assert (log.size, log.retained) == (len(model), 0)
    assert log.truncated == bool(model)
    assert log.read(0, 100) is None


def test_alternating_streams_cost_little() -> None:
    log = OutputLog(1000)
    for i in range(20_000):
        log.append(i % 2, b"x")
    assert log.retained <= 2000
    assert len(log._marks) <= 2100


def test_a_reader_less_than_half_behind_loses_nothing_while_it_grows() -> None:
    log = OutputLog(100)
    cursor = 0
    for i in range(500):
        log.append(STDOUT, bytes([i % 256]) * 7)
        while log.size - cursor > 40:
            piece = log.read(cursor, 10)
            assert piece is not None
            assert piece[0] == cursor
            cursor += len(piece[2])
