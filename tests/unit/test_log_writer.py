"""The lines of requests are written in a thread: in order, all of them, and soon."""

import io
import json
import subprocess
import sys
import threading

import pytest

from sandbox_server import log_writer
from sandbox_server.log_writer import LineWriter


class Stream(io.StringIO):
    """Counts writes, and can keep its writer waiting, as a pipe that nobody reads does."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Semaphore(0)
        self.open = threading.Event()
        self.open.set()

    def write(self, text: str) -> int:
        assert self.open.wait(timeout=10)
        try:
            return super().write(text)
        finally:
            self.written.release()

    @property
    def lines(self) -> list[str]:
        return self.getvalue().splitlines()


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def writer(stream: Stream) -> LineWriter:
    return LineWriter(stream, lambda event: str(event["event"]))


def test_held_lines_are_written_together_and_soon(
    writer: LineWriter, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "HOLD_S", 0.5)  # Longer: a busy machine may stop us in between.
    for number in range(3):
        writer.hold({"event": number})
    assert stream.written.acquire(timeout=10)
    assert stream.lines == ["0", "1", "2"]
    assert not stream.written.acquire(blocking=False)
    writer.hold({"event": "again"})
    assert stream.written.acquire(timeout=10)
    assert stream.lines[-1] == "again"


def test_a_line_that_is_written_at_once_comes_after_those_held(
    writer: LineWriter, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "HOLD_S", 60)
    writer.hold({"event": "first"})
    writer.write({"event": "second"})
    assert stream.lines == ["first", "second"]


def test_where_nobody_reads_callers_wait_and_no_line_is_lost(
    writer: LineWriter, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "HOLD_S", 60)
    monkeypatch.setattr(log_writer, "MOST_HELD", 10)
    stream.open.clear()
    for number in range(10):
        writer.hold({"event": number})
    caller = threading.Thread(target=writer.hold, args=({"event": 10},))
    caller.start()
    caller.join(timeout=0.05)
    assert caller.is_alive()
    stream.open.set()
    caller.join(timeout=10)
    assert stream.lines == [str(number) for number in range(11)]


def test_what_cannot_be_rendered_or_written_fails_nothing(
    writer: LineWriter, stream: Stream
) -> None:
    writer.write({"event": "fine"})
    broken = LineWriter(stream, lambda event: f"{event['event']} {event.get('error')}")
    broken.write({})
    assert stream.lines == ["fine", "log.failed KeyError"]
    stream.close()
    writer.write({"event": "nobody sees this"})


PROGRAM = """
import os, structlog
from sandbox_server import log_fields, log_writer, logs

log_writer.HOLD_S = 60
logs.configure(form="json", level="info")
log = structlog.get_logger()
bound = log_fields.begin(request_id="r-1")
log.info("first", text="a\\nb")
if os.fork() == 0:
    log.info("in the child")
    logs.logging.getLogger("library").warning("of a %s", "library")
    os._exit(0)
os.wait()
try:
    1 / 0
except ZeroDivisionError:
    log.info("second", exc_info=True)
log_fields.end(bound)
log.debug("not this")
bound = log_fields.begin(request_id="r-2")
log.info("last")
"""


def test_a_program_leaves_no_line_unwritten() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
    lines = [json.loads(line) for line in done.stderr.decode().splitlines()]
    told = {line["event"]: (line["level"], line.get("request_id")) for line in lines}
    assert told == {
        "in the child": ("info", "r-1"),
        "of a library": ("warning", "r-1"),
        "first": ("info", "r-1"),
        "second": ("info", "r-1"),
        "last": ("info", "r-2"),
    }
    of_parent = [line for line in lines if line["event"] in ("first", "second", "last")]
    assert [line["event"] for line in of_parent] == ["first", "second", "last"]
    assert "ZeroDivisionError" in json.dumps(of_parent[1]["exception"])
    assert all(line["timestamp"].endswith("Z") for line in lines)
