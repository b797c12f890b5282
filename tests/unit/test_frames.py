"""Frames survive any cutting of the stream, and what is not a frame is refused without harm."""

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_warden import frames
from sandbox_warden.frames import Decoder, FrameError

kinds = st.integers(0, 255)
any_frames = st.lists(
    st.tuples(kinds, st.integers(0, 2**32 - 1), st.binary(max_size=300)), max_size=8
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(edges)]


@given(any_frames, st.lists(st.integers(0, 10_000), max_size=20))
def test_round_trip_however_the_stream_is_cut(
    sent: list[tuple[int, int, bytes]], places: list[int]
) -> None:
    decoder = Decoder()
    stream = b"".join(frames.encode(*frame) for frame in sent)
    received = [frame for piece in cut(stream, places) for frame in decoder.feed(piece)]
    assert received == sent


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_garbage_ends_in_frames_or_in_an_error(pieces: list[bytes]) -> None:
    decoder = Decoder()
    try:
        for piece in pieces:
            for kind, channel, payload in decoder.feed(piece):
                assert 0 <= kind < 256
                assert 0 <= channel < 2**32
                assert len(payload) <= frames.MAX_PAYLOAD
    except FrameError:
        pass


def test_a_giant_length_is_refused_before_anything_is_stored() -> None:
    with pytest.raises(FrameError, match="at most"):
        list(Decoder().feed(frames.HEADER.pack(2**32 - 1, frames.RUN, 1)))


@given(st.binary(max_size=300))
def test_payloads_are_objects_or_an_error(payload: bytes) -> None:
    with suppress(FrameError):
        assert isinstance(frames.decode_json(payload), dict)


def test_deep_json_is_an_error() -> None:
    with pytest.raises(FrameError):
        frames.decode_json(b'{"a":' * 200_000)


@given(st.integers(0, 2**64 - 1), st.binary(max_size=100))
def test_offsets(offset: int, data: bytes) -> None:
    frame = frames.encode_at(frames.STDOUT, 7, offset, data)
    ((kind, channel, payload),) = Decoder().feed(frame)
    assert (kind, channel, frames.decode_at(payload)) == (frames.STDOUT, 7, (offset, data))
