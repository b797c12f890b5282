"""Commands in the background, and the list of sessions."""

import base64
from typing import Any

import httpx
import pytest

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import (
    CommandInfo,
    CommandList,
    ExecuteResult,
    SessionList,
    StdinReceipt,
)
from tests.api.serving import Served

IN_BACKGROUND = {"thread_id": "t", "command": "cat", "background": True, "stdin_open": True}
COMMAND = {"thread_id": "t", "command_id": "c-1"}


@pytest.fixture
def running(server: Served) -> Served:
    assert server.http.post("/execute", json=IN_BACKGROUND).status_code == 200
    return server


def every_call(server: Served, command: dict[str, Any]) -> list[httpx.Response]:
    return [
        server.http.get("/command", params=command),
        server.http.post("/command/signal", json=command),
        server.http.post("/command/stdin", json=command),
    ]


def told(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_how_it_stands(running: Served) -> None:
    answer = running.http.get("/command", params=COMMAND)
    assert answer.status_code == 200
    assert ExecuteResult.model_validate(answer.json()).exit_code is None
    by_session = running.http.get("/command", params={"session_id": "s-1", "command_id": "c-1"})
    assert by_session.json() == answer.json()


def test_the_commands(running: Served) -> None:
    answer = running.http.get("/commands", params={"thread_id": "t"})
    (command,) = CommandList.model_validate(answer.json()).commands
    assert (command.command_id, command.running, command.exit_code) == ("c-1", True, None)


@pytest.mark.parametrize(("given", "sent"), [({}, "TERM"), ({"signal": "KILL"}, "KILL")])
def test_a_signal(running: Served, given: dict[str, str], sent: str) -> None:
    answer = running.http.post("/command/signal", json={**COMMAND, **given})
    assert answer.status_code == 200
    assert CommandInfo.model_validate(answer.json()).running
    assert running.fake.signalled == [sent]


@pytest.mark.parametrize("signal", ["SIGTERM", "term", "SEGV", "", 9, None])
def test_no_such_signal(running: Served, signal: object) -> None:
    answer = running.http.post("/command/signal", json={**COMMAND, "signal": signal})
    assert told(answer) == (422, "invalid_request")
    assert answer.json()["error"]["details"]["errors"][0]["field"] == "signal"
    assert running.fake.signalled == []


def test_input_as_text_and_as_bytes(running: Served) -> None:
    raw = base64.b64encode(b"\xff\x00").decode()
    sent: list[tuple[dict[str, object], int]] = [
        ({"data": "é\n"}, 3),
        ({"data": raw, "encoding": "base64", "offset": 3}, 5),
        ({"data": raw, "encoding": "base64", "offset": 3}, 5),
        ({"eof": True}, 5),
    ]
    for body, received in sent:
        answer = running.http.post("/command/stdin", json={**COMMAND, **body})
        assert answer.status_code == 200, answer.text
        assert StdinReceipt.model_validate(answer.json()).received == received
    assert running.fake.stdin == b"\xc3\xa9\n\xff\x00"
    assert running.fake.stdin_ended


def test_input_that_nobody_takes(running: Served) -> None:
    running.http.post("/command/stdin", json={**COMMAND, "eof": True})
    answer = running.http.post("/command/stdin", json={**COMMAND, "data": "x"})
    assert told(answer) == (409, "stdin_closed")


@pytest.mark.parametrize(
    "change",
    [
        {"data": "no base64!", "encoding": "base64"},
        {"data": "YQ", "encoding": "base64"},
        {"encoding": "latin-1"},
        {"data": None},
        {"data": 7},
        {"offset": -1},
        {"offset": "x"},
        {"eof": "perhaps"},
        {"date": "x"},
    ],
)
def test_bad_input(running: Served, change: dict[str, object]) -> None:
    answer = running.http.post("/command/stdin", json={**COMMAND, **change})
    assert told(answer) == (422, "invalid_request")
    assert running.fake.stdin == b""


def test_input_that_is_too_long(running: Served) -> None:
    answer = running.http.post("/command/stdin", json={**COMMAND, "data": "x" * 100_000})
    assert told(answer) == (413, "file_too_large")


@pytest.mark.parametrize("command_id", [None, "", "x" * 129])
def test_a_command_has_to_be_named(running: Served, command_id: str | None) -> None:
    command = {"thread_id": "t", **({} if command_id is None else {"command_id": command_id})}
    for answer in every_call(running, command):
        assert told(answer) == (422, "invalid_request")
        assert answer.json()["error"]["details"]["errors"][0]["field"] == "command_id"


def test_a_command_nobody_knows(running: Served) -> None:
    for answer in every_call(running, {"thread_id": "t", "command_id": "c-2"}):
        assert told(answer) == (404, "not_found")


def test_no_session_is_made(server: Served) -> None:
    answers = every_call(server, COMMAND)
    answers.append(server.http.get("/commands", params={"thread_id": "t"}))
    for answer in answers:
        assert told(answer) == (404, "session_not_found")
    assert server.fake.live == {}


@pytest.mark.parametrize(
    "error",
    [errors.SessionLost, errors.RateLimited, errors.RuntimeUnavailable, errors.Capacity],
    ids=lambda error: error.__name__,
)
def test_every_error_is_told(running: Served, error: type[errors.SandboxError]) -> None:
    running.fake.fails = error("later", retry_after_s=3)
    answers = every_call(running, COMMAND)
    answers.append(running.http.get("/commands", params={"thread_id": "t"}))
    answers.append(running.http.get("/sessions"))
    for answer in answers:
        assert told(answer) == (error.status, error.code)


def test_sessions(server: Served) -> None:
    assert server.http.get("/sessions").json() == {"sessions": [], "next": None, "unreachable": []}
    for thread_id in ("a", "b"):
        server.http.post("/create_session", json={"thread_id": thread_id})
    found = SessionList.model_validate(server.http.get("/sessions").json()).sessions
    assert [session.thread_id for session in found] == ["a", "b"]
    first = server.http.get("/sessions?limit=1&order=newest").json()
    assert [session["thread_id"] for session in first["sessions"]] == ["b"]
    rest = server.http.get(f"/sessions?limit=1&order=newest&after={first['next']}").json()
    assert ([session["thread_id"] for session in rest["sessions"]], rest["next"]) == (["a"], None)
    assert server.http.get("/sessions?metadata=user%3D42").json()["sessions"] == []
    wrong = server.http.get("/sessions?after=nonsense")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (422, "invalid_request")
