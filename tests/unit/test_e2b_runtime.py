"""The e2b runtime without E2B: what is read out of a sandbox, and what becomes of exceptions."""

import os
import subprocess
import time
from importlib.resources import files
from pathlib import Path

import e2b
import httpx
import pytest
from e2b.exceptions import (
    SandboxNotFoundException,
    SandboxNotRunningException,
    ServiceBusyException,
)

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.agent import Fenced
from sandbox_server.runtime.base import BoxSpec
from sandbox_server.runtime.e2b import E2bAccount, E2bRuntime
from sandbox_server.runtime.e2b.account import Failures
from sandbox_server.runtime.e2b.connection import Report
from sandbox_server.runtime.e2b.files import full_path, writable_path
from sandbox_server.runtime.e2b.running import MarkedStream
from sandbox_server.runtime.registry import RuntimeOptions

MARK = b"sandbox-0123:"
SECRET = "e2b_0123456789abcdef"
FACTS = "home /home/user\nnow 100\nused 90\ncwd /tmp/a b\npids 7\nup 12.5\n"


@pytest.mark.parametrize("size", [1, 2, 5, 13, 1000])
def test_lines_for_us_are_found_in_pieces_of_any_size(size: int) -> None:
    whole = MARK + b"begun\nsandbox-01 is no mark\nlast" + MARK + b"ended 0 yes\nlate"
    lines: list[str] = []
    stream, output = MarkedStream(MARK), b""
    for at in range(0, len(whole), size):
        more, told = stream.feed(whole[at : at + size])
        output, lines = output + more, lines + told
    assert output + stream.rest() == b"sandbox-01 is no mark\nlastlate"
    assert lines == ["begun", "ended 0 yes"]


def test_the_beginning_of_a_mark_is_output_if_nothing_follows() -> None:
    stream = MarkedStream(MARK)
    assert stream.feed(b"x" + MARK[:5]) == (b"x", [])
    assert stream.rest() == MARK[:5]


def test_a_report() -> None:
    commands = (
        "command one 5 m d - 90 running\ncommand two 6 m d k 80 3\ncommand own 7 m d + 80 0\n"
    )
    report = Report.parse(f'{FACTS}{commands}session\n{{"a": 1}}', "box")
    assert (report.home, report.cwd, report.pids, report.idle_s) == (
        "/home/user",
        "/tmp/a b",
        7,
        10,
    )
    assert report.state == {"a": 1}
    assert list(report.commands) == ["one", "two"]
    assert (report.commands["one"].running, report.commands["one"].exit_code) == (True, None)
    assert (report.commands["two"].running, report.commands["two"].exit_code) == (False, 3)


def test_times_of_a_report_are_exact_and_the_end_of_a_command_counts(tmp_path: Path) -> None:
    home = tmp_path / ".sandbox"
    for folder in ("commands", "run"):
        (home / folder).mkdir(parents=True)
    (home / "state").write_text("#key /tmp\n")
    now = time.time()
    ended = home / "commands" / "one"
    ended.write_text(f"1 mark digest key {now - 600.0:.6f}\nexit 0\n")
    os.utime(home / "commands", (now - 600, now - 600))
    os.utime(ended, (now - 0.5, now - 0.5))
    script = files("sandbox_server.runtime.e2b").joinpath("report.sh").read_text()
    told = subprocess.run(
        ["bash", "-c", script, "report", "1"],
        env=os.environ | {"HOME": str(tmp_path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    report = Report.parse(told.stdout, "box")
    assert report.idle_s % 1
    assert 0.5 <= report.idle_s < 600
    assert report.commands["one"].age_s >= 600


@pytest.mark.parametrize(
    "text", ["", "home /h\n", f"{FACTS}command x\nsession\n", f"{FACTS}session\n]"]
)
def test_nonsense_in_a_report_is_told(text: str) -> None:
    with pytest.raises(errors.RuntimeUnavailable):
        Report.parse(text, "box")


def test_a_report_that_is_nested_deeply_is_told() -> None:
    with pytest.raises(errors.RuntimeUnavailable, match="nonsense"):
        Report.parse(f"{FACTS}session\n{'[' * 100_000}", "box")


def test_a_box_that_another_server_has_taken() -> None:
    with pytest.raises(Fenced, match="epoch 7"):
        Report.parse("fenced 7\n", "box")


@pytest.mark.parametrize(
    ("raised", "becomes"),
    [
        (SandboxNotFoundException("gone"), errors.SessionLost),
        (SandboxNotRunningException("gone"), errors.SessionLost),
        (e2b.RateLimitException("slow down"), errors.Capacity),
        (ServiceBusyException("busy"), errors.Capacity),
        (e2b.AuthenticationException(f"bad key {SECRET}"), errors.RuntimeUnavailable),
        (e2b.TimeoutException("late"), errors.RuntimeUnavailable),
        (httpx.ConnectError("refused"), errors.RuntimeUnavailable),
        (OSError("unreachable"), errors.RuntimeUnavailable),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
async def test_exceptions_become_errors_without_the_key(
    raised: Exception, becomes: type[errors.SandboxError]
) -> None:
    with pytest.raises(becomes) as caught:
        async with Failures(SECRET).translated("box b"):
            raise raised
    assert SECRET not in caught.value.message
    if becomes is errors.Capacity:
        assert caught.value.details["retry_after_s"] > 0


@pytest.mark.parametrize(
    ("raised", "becomes"),
    [
        (e2b.FileNotFoundException("none"), errors.FileMissing),
        (e2b.NotEnoughSpaceException("full"), errors.DiskFull),
        (e2b.InvalidArgumentException("is a folder"), errors.InvalidPath),
        (SandboxNotRunningException("gone"), errors.SessionLost),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
async def test_exceptions_about_a_path(
    raised: Exception, becomes: type[errors.SandboxError]
) -> None:
    with pytest.raises(becomes):
        async with Failures(None).translated("box b", path="/workspace/x"):
            raise raised


async def test_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("E2B_API_KEY", raising=False)
    async with E2bRuntime(E2bAccount()) as runtime:
        with pytest.raises(errors.RuntimeUnavailable, match="SANDBOX_E2B_API_KEY"):
            await runtime.about()


async def test_a_network_through_the_server_is_refused() -> None:
    async with E2bRuntime(E2bAccount(api_key=SECRET)) as runtime:
        with pytest.raises(errors.InvalidRequest, match="bridge"):
            await runtime.create(BoxSpec(owner="o", network="open"))


def test_the_key_is_shown_nowhere() -> None:
    account = E2bAccount(api_key=SECRET, api_url="http://127.0.0.1:1")
    shown = f"{account!r} {E2bRuntime(account)!r} {RuntimeOptions(e2b_api_key=SECRET)!r}"
    assert SECRET not in shown
    assert "127.0.0.1:1" in shown


def test_paths() -> None:
    assert full_path("a/../b") == "/workspace/b"
    assert writable_path("/home/user/x", "/home/user") == "/home/user/x"
    for path in ("", "a\0b", "x" * 5000, "\udc80"):
        with pytest.raises(errors.InvalidPath):
            full_path(path)
    for path in ("/etc/x", "../etc/x", "/workspace", "/workspacex/y"):
        with pytest.raises(errors.InvalidPath):
            writable_path(path, "/home/user")
