"""Every error has the one form, whatever goes wrong."""

import json
import math
from typing import Any

import httpx
import pytest

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import ErrorAnswer
from tests.api.serving import Served, whole_answer

RUN = {"thread_id": "t", "command": "echo"}
JSON = {"Content-Type": "application/json"}

BAD_THREAD_IDS = ["../x", "a\r\nb", "*", "{}", "", "x" * 10240, "\u0430bc", "a b", "\u0000", "a\n"]


def checked(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/json"
    error = ErrorAnswer.model_validate(answer.json()).error
    assert (answer.status_code, error.code) == (status, code), answer.text
    assert error.message
    assert error.request_id == answer.headers["x-request-id"]
    assert "Traceback" not in answer.text
    assert set(answer.json()["error"]) <= {"code", "message", "details", "request_id"}
    return error.details or {}


TREE = [error for error in vars(errors).values() if isinstance(error, type)]
CODES = [error for error in TREE if issubclass(error, errors.SandboxError)]


@pytest.mark.parametrize("error", CODES, ids=lambda error: error.__name__)
def test_each_error_by_its_code(server: Served, error: type[errors.SandboxError]) -> None:
    server.fake.fails = error("do something else", rule="r", number=1)
    answer = server.http.post("/execute", json=RUN)
    details = checked(answer, error.status, error.code)
    assert details == {"rule": "r", "number": 1}
    waits = error.status in (429, 503)
    assert answer.headers.get("retry-after") == ("1" if waits else None)
    assert ("www-authenticate" in answer.headers) == (error is errors.Unauthorized)


def test_no_details_where_there_are_none(server: Served) -> None:
    server.fake.fails = errors.SessionLost("gone")
    assert "details" not in server.http.post("/execute", json=RUN).json()["error"]


@pytest.mark.parametrize(("given", "sent"), [(0.2, "1"), (2.1, "3"), (30, "30")])
def test_retry_after(server: Served, given: float, sent: str) -> None:
    server.fake.fails = errors.RateLimited("slower", retry_after_s=given)
    answer = server.http.get("/session", params={"thread_id": "t"})
    assert answer.headers["retry-after"] == sent


def test_the_unexpected(server: Served) -> None:
    server.fake.fails = ZeroDivisionError("secret")
    answer = server.http.post("/execute", json=RUN)
    checked(answer, 500, "internal")
    assert answer.headers["x-request-id"] in answer.json()["error"]["message"]
    assert "secret" not in answer.text
    server.fake.fails = None
    assert server.http.post("/execute", json=RUN).status_code == 200


@pytest.mark.parametrize("thread_id", BAD_THREAD_IDS)
def test_bad_thread_ids(server: Served, thread_id: str) -> None:
    body = {"thread_id": thread_id}
    calls = [
        server.http.post("/create_session", json=body),
        server.http.post("/execute", json={**body, "command": "x"}),
        server.http.post("/execute", json=body),
        server.http.post("/cleanup", json=body),
        server.http.get("/session", params=body),
        server.http.get("/list_files", params=body),
        server.http.get("/download_file", params={**body, "path": "x"}),
        server.http.post("/upload_file", params=body, files={"file": ("f", b"1")}),
        server.http.get("/command", params={**body, "command_id": "c"}),
        server.http.get("/commands", params=body),
        server.http.post("/command/signal", json={**body, "command_id": "c"}),
        server.http.post("/command/stdin", json={**body, "command_id": "c"}),
    ]
    if len(thread_id) < 8000:
        calls.append(server.http.post("/upload_file", data=body, files={"file": ("f", b"1")}))
    for answer in calls:
        checked(answer, 422, "invalid_thread_id")
    assert server.fake.live == {}


@pytest.mark.parametrize("target", [{}, {"thread_id": "t", "session_id": "s"}])
def test_exactly_one_target(server: Served, target: dict[str, str]) -> None:
    for answer in (
        server.http.post("/execute", json={**target, "command": "x"}),
        server.http.post("/cleanup", json=target),
        server.http.get("/session", params=target),
        server.http.get("/list_files", params=target),
        server.http.get("/download_file", params={**target, "path": "x"}),
        server.http.post("/upload_file", data=target, files={"file": ("f", b"1")}),
        server.http.get("/command", params={**target, "command_id": "c"}),
        server.http.get("/commands", params=target),
        server.http.post("/command/signal", json={**target, "command_id": "c"}),
        server.http.post("/command/stdin", json={**target, "command_id": "c"}),
    ):
        checked(answer, 422, "invalid_request")
        assert "exactly one" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"command": ""}, "command"),
        ({"command": 7}, "command"),
        ({"command": "\ud800"}, "command"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": 3601}, "timeout"),
        ({"timeout": math.nan}, "timeout"),
        ({"timeout": math.inf}, "timeout"),
        ({"env": {"1A": "x"}}, "env.1A.[key]"),
        ({"env": []}, "env"),
        ({"comand": "x"}, "comand"),
        ({"\ud800": "x"}, ""),
        ({"k" * 5000: "v"}, "k" * 199 + "…"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"(run)": 1}, "(run)"),
    ],
)
def test_bad_fields_are_named(server: Served, change: dict[str, Any], field: str) -> None:
    body = json.dumps({**RUN, **change})
    answer = server.http.post("/execute", content=body, headers=JSON)
    (found, *_) = checked(answer, 422, "invalid_request")["errors"]
    assert found["field"] == field
    assert set(found) == {"field", "message"}


def test_an_empty_command_needs_a_terminal(server: Served) -> None:
    answer = server.http.post("/execute", json={**RUN, "command": ""})
    assert "it is empty" in checked(answer, 422, "invalid_request")["errors"][0]["message"]
    answer = server.http.post("/execute", json={**RUN, "command": "", "pty": {}})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("recursive=perhaps", "recursive"),
        ("path=", "path"),
    ],
)
def test_bad_query(server: Served, query: str, field: str) -> None:
    answer = server.http.get(f"/list_files?thread_id=t&{query}")
    assert checked(answer, 422, "invalid_request")["errors"][0]["field"] == field


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"nonsense",
        b"[]",
        b"null",
        b"7",
        b'"x"',
        b"\xff\xfe",
        b"[" * 60000,
        b'{"a":' * 9000 + b"1" + b"}" * 9000,
        b'{"thread_id":"t","command":"x","timeout":' + b"9" * 6000 + b"}",
    ],
    ids=lambda body: repr(body[:12]),
)
def test_bad_json(server: Served, body: bytes) -> None:
    for path in ("/execute", "/cleanup", "/create_session"):
        if (path, body) == ("/create_session", b"null"):
            continue  # no body is a body there
        checked(server.http.post(path, content=body, headers=JSON), 422, "invalid_request")


def test_form_instead_of_json_is_explained(server: Served) -> None:
    answer = server.http.post("/execute", data=RUN)
    checked(answer, 422, "invalid_request")
    assert "JSON object" in answer.json()["error"]["message"]


def test_no_such_route_or_method(server: Served) -> None:
    nowhere = server.http.get("/nowhere")
    checked(nowhere, 404, "not_found")
    assert "GET /nowhere" in nowhere.json()["error"]["message"]
    checked(server.http.get("/static-docs/nothing.js"), 404, "not_found")
    answer = server.http.get("/execute")
    checked(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize("chunked", [False, True])
def test_huge_body(server: Served, chunked: bool) -> None:
    piece = b" " * 65536
    content = (piece for _ in range(100)) if chunked else piece * 100
    answer = server.http.post("/execute", content=content, headers=JSON)
    details = checked(answer, 413, "file_too_large")
    assert details == {"limit_bytes": 65536}
    assert server.http.get("/health").status_code == 200


@pytest.mark.parametrize("size", [66_000, 100_000, 1 << 20])
def test_a_long_url(server: Served, size: int) -> None:
    with server.connect() as client:
        client.sendall(
            b"GET /sessions?cursor=%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"x" * size)
        )
        answer = whole_answer(client)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"file_too_large"' in answer


@pytest.mark.parametrize(
    "sent",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"],
)
def test_what_is_not_http(server: Served, sent: bytes) -> None:
    with server.connect() as client:
        client.sendall(sent)
        answer = whole_answer(client)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"invalid_request"' in answer


def test_slow_body_holds_nobody_up(server: Served) -> None:
    head = b"POST /execute HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with server.connect() as client:
        client.sendall(head + b"Content-Length: 100\r\n\r\n{")
        assert server.http.post("/execute", json=RUN).status_code == 200
        answer = whole_answer(client)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"request_timeout"' in answer


def test_foreign_session_is_a_missing_one(server: Served) -> None:
    answers = [server.http.get("/session", params={"session_id": s}) for s in ("s-9", "x" * 129)]
    checked(answers[0], 404, "session_not_found")
    checked(answers[1], 422, "invalid_request")
