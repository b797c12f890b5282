"""A stream tells the same text however often it is cut and resumed."""

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sandbox_sdk.protocol.events import CommandEvent, ExitEvent, GapEvent, OutputEvent
from sandbox_server.runtime.agent import CommandResult, Gap, Output
from sandbox_server.service.answers import LOOKBACK, EventAnswers

TEXT = "aé€\U0001f600\n"


@dataclass
class Record:
    session_id: str = "s"
    generation: int = 1


@dataclass
class Session:
    record: Record


def wording(offset: int = 0) -> EventAnswers:
    session: Any = Session(Record())
    return EventAnswers(session, "live", output_limit=1 << 20, offset=offset)


def laid_out(pieces: list[tuple[bool, bytes]]) -> list[Output]:
    """Pieces of both streams one after another, as a warden would tell them."""
    found: list[Output] = []
    offset = 0
    for error, data in pieces:
        found.append(Output("stderr" if error else "stdout", offset, data))
        offset += len(data)
    return found


def exited(size: int) -> CommandResult:
    return CommandResult(
        command_id="c", exit_code=0, signal=None, reason=None, timed_out=False,
        duration_ms=1, output_bytes=size, cwd="/", state_saved=True,
    )  # fmt: skip


def told(wording: EventAnswers, events: list[Output | Gap | CommandResult]) -> list[CommandEvent]:
    return [told for event in events for told in wording.of(event)]


def text(events: list[CommandEvent], stream: str) -> str:
    found = (e for e in events if isinstance(e, OutputEvent) and e.event == stream)
    return "".join(event.data for event in found)


characters = st.text(alphabet=TEXT, max_size=12).map(lambda text: text.encode())
pieces = st.lists(st.tuples(st.booleans(), st.one_of(characters, st.binary(max_size=6))))


@given(st.lists(characters, min_size=1), st.data())
def test_cut_anywhere(texts: list[bytes], data: st.DataObject) -> None:
    """Both streams at once, and pieces that begin and end in the middle of characters."""
    both = [(bool(number % 2), piece) for number, whole in enumerate(texts)
            for piece in (whole[: len(whole) // 2], whole[len(whole) // 2 :]) if piece]  # fmt: skip
    output = laid_out(both)
    size = sum(len(piece.data) for piece in output)
    cut = data.draw(st.integers(0, len(output)))
    first = told(wording(), list(output[:cut]))
    reached = max((e.next_offset for e in first if isinstance(e, OutputEvent)), default=0)
    second = told(wording(reached), [*output, exited(size)])
    for stream in ("stdout", "stderr"):
        expected = b"".join(piece.data for piece in output if piece.stream == stream)
        assert text(first + second, stream) == expected.decode("utf-8", "replace")
    offsets = [e.offset for e in second if isinstance(e, OutputEvent)]
    assert all(offset >= reached for offset in offsets)


@given(pieces)
def test_what_is_not_text_is_replaced_as_in_a_result(parts: list[tuple[bool, bytes]]) -> None:
    output = laid_out([part for part in parts if part[1]])
    size = sum(len(piece.data) for piece in output)
    events = told(wording(), [*output, exited(size)])
    for stream in ("stdout", "stderr"):
        expected = b"".join(piece.data for piece in output if piece.stream == stream)
        assert text(events, stream) == expected.decode("utf-8", "replace")
    assert isinstance(events[-1], ExitEvent)


def test_gaps_before_the_offset_are_not_told() -> None:
    heard = wording(LOOKBACK + 10)
    assert told(heard, [Gap(start=10, end=20)]) == []
    assert told(heard, [Gap(start=20, end=LOOKBACK + 30)]) == [
        GapEvent(offset=LOOKBACK + 10, next_offset=LOOKBACK + 30)
    ]
