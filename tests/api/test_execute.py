"""execute, to the end and as events."""

import json
from typing import Any

import httpx
import pytest

from sandbox_sdk.protocol.errors import Capacity, SessionLost
from sandbox_sdk.protocol.events import GapEvent
from sandbox_sdk.protocol.models import ExecuteResult, Target, Verdict
from tests.api.fake import exited, out, start
from tests.api.serving import Served, eventually

EVENTS = {"Accept": "text/event-stream"}
RUN = {"thread_id": "t", "command": "echo 4"}


def events(text: str) -> list[tuple[str, str, Any]]:
    """(id, name, data) of every event, comments left out."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line[:1] != ":")
        if fields:
            found.append((fields.get("id", ""), fields["event"], json.loads(fields["data"])))
    return found


def test_to_the_end(server: Served) -> None:
    answer = server.http.post("/execute", json={**RUN, "env": {"A": "1"}, "stdin": "x"})
    assert answer.status_code == 200
    assert ExecuteResult.model_validate(answer.json())["output"] == "echo 4"
    assert server.fake.ran[0].env == {"A": "1"}


def test_in_the_background(server: Served) -> None:
    answer = server.http.post("/execute", json={**RUN, "background": True})
    assert answer.json()["exit_code"] is None
    assert server.fake.ran[0].background


def test_as_events(server: Served) -> None:
    server.fake.script.insert(2, GapEvent(offset=2, next_offset=9))
    answer = server.http.post("/execute", json=RUN, headers=EVENTS)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    found = events(answer.text)
    assert [(where, name) for where, name, _ in found] == [
        ("c-1:0", "start"),
        ("c-1:2", "stdout"),
        ("c-1:9", "gap"),
        ("c-1:9", "exit"),
    ]
    assert found[0][2]["command_id"] == "c-1"
    assert found[1][2] == {
        "data": "4\n",
        "encoding": "utf-8",
        "offset": 0,
        "next_offset": 2,
    }
    assert found[3][2] == exited(output_bytes=2).model_dump(exclude={"event"})


def test_events_come_one_by_one_and_never_split(server: Served) -> None:
    server.fake.script = [start(), out("a\n\ndata: x\r\n", 0), 5.0, exited()]
    with server.http.stream("POST", "/execute", json=RUN, headers=EVENTS) as answer:
        text = ""
        for piece in answer.iter_text():
            text += piece
            if "keep-alive" in text:
                break
    assert events(text)[1][2]["data"] == "a\n\ndata: x\r\n"


def test_silence_is_filled_with_comments(server: Served) -> None:
    server.fake.script = [start(), 0.2, exited()]
    answer = server.http.post("/execute", json=RUN, headers=EVENTS)
    assert 2 <= answer.text.count(": keep-alive\n\n") <= 4
    assert [name for _, name, _ in events(answer.text)] == ["start", "exit"]


@pytest.mark.parametrize("body", [RUN, {"thread_id": "t"}])
@pytest.mark.parametrize("by", ["header", "query"])
def test_resumed_and_not_run_again(server: Served, body: dict[str, str], by: str) -> None:
    server.http.post("/create_session", json={"thread_id": "t"})
    server.fake.script = [start("c:7"), out("old", 0), out("new", 3), exited("c:7", 6)]
    headers = {**EVENTS, "Last-Event-ID": "c:7:3"} if by == "header" else EVENTS
    query = {"command_id": "c:7", "offset": "3"} if by == "query" else {}
    answer = server.http.post("/execute", json=body, headers=headers, params=query)
    assert server.fake.followed == [(Target(thread_id="t"), "c:7", 3)]
    assert server.fake.ran == []
    # The start's id is where this stream starts: cut right after it, nothing comes twice.
    assert [(where, name) for where, name, _ in events(answer.text)] == [
        ("c:7:3", "start"),
        ("c:7:6", "stdout"),
        ("c:7:6", "exit"),
    ]


def test_resume_of_an_unknown_session(server: Served) -> None:
    answer = server.http.post(
        "/execute", json={"thread_id": "t"}, headers={**EVENTS, "Last-Event-ID": "c:1"}
    )
    assert answer.status_code == 404


@pytest.mark.parametrize("event_id", ["c", ":1", "c:x", "c:-1", "c:" + "9" * 5000])
def test_bad_event_id(server: Served, event_id: str) -> None:
    answer = server.http.post("/execute", json=RUN, headers={**EVENTS, "Last-Event-ID": event_id})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_request")
    assert server.fake.ran == []


def test_resume_without_events_does_not_run(server: Served) -> None:
    answer = server.http.post("/execute", json=RUN, params={"command_id": "c-1"})
    assert answer.status_code == 422
    assert "text/event-stream" in answer.json()["error"]["message"]
    assert server.fake.ran == []


def test_target_alone_is_not_a_command(server: Served) -> None:
    for headers in ({}, EVENTS):
        answer = server.http.post("/execute", json={"thread_id": "t"}, headers=headers)
        assert answer.status_code == 422
        assert answer.json()["error"]["details"]["errors"][0]["field"] == "command"


def test_error_before_the_first_event_has_its_status(server: Served) -> None:
    server.fake.script = [Capacity("full", retry_after_s=7)]
    answer = server.http.post("/execute", json=RUN, headers=EVENTS)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "7"
    assert answer.json()["error"]["code"] == "capacity"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SessionLost("gone", generation=1), "session_lost"),
        (ValueError("secret"), "internal"),
        (TimeoutError("secret"), "internal"),
    ],
)
def test_error_after_it_is_an_event(server: Served, error: Exception, code: str) -> None:
    server.fake.script = [start(), out("a", 0), error]
    answer = server.http.post("/execute", json=RUN, headers=EVENTS)
    assert answer.status_code == 200
    _, name, body = events(answer.text)[-1]
    assert (name, body["code"]) == ("error", code)
    assert body["request_id"] == answer.headers["x-request-id"]
    assert "secret" not in answer.text


def test_leaving_ends_the_following(server: Served) -> None:
    server.fake.script = [start(), 60.0]
    with server.http.stream("POST", "/execute", json=RUN, headers=EVENTS) as answer:
        next(answer.iter_text())
    eventually(lambda: server.fake.closed == ["stream"])


def test_reader_that_does_not_read_holds_nobody_up(server: Served) -> None:
    server.fake.script = [start(), *(out("x" * 65536, n * 65536) for n in range(500)), exited()]
    with server.http.stream("POST", "/execute", json=RUN, headers=EVENTS):
        assert httpx.get(f"{server.http.base_url}/health").status_code == 200


@pytest.mark.parametrize("headers", [{}, EVENTS])
def test_a_dry_run_is_answered_with_the_verdict(server: Served, headers: dict[str, str]) -> None:
    body = {"thread_id": "t", "command": "rm -rf /", "dry_run": True, "background": True}
    answer = server.http.post("/execute", json=body, headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert Verdict.model_validate(answer.json()).allowed is False
    assert server.fake.ran == []
    assert server.fake.live == {}
