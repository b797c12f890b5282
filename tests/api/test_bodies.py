"""What is in a body, and what its sender is told of it."""

import json
from typing import Any

import httpx
import pytest

from sandbox_sdk.protocol.errors import Capacity, SessionLost
from sandbox_server.api.auth import ApiKeys
from tests.api.fake import FakeTenants
from tests.api.serving import Served, served

RUN = {"thread_id": "t", "command": "echo 4"}
OK, INVALID = (200, ""), (422, "invalid_request")


def told(answer: httpx.Response) -> tuple[int, str]:
    """The status, and the code of an error."""
    error = answer.json().get("error")
    if error is None:
        return answer.status_code, ""
    assert error["request_id"] == answer.headers["x-request-id"]
    return answer.status_code, error["code"]


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/execute", RUN, OK),
        ("/execute", {**RUN, "env": {"A": "1"}, "stdin": "x", "cwd": "/tmp"}, OK),
        ("/execute", {**RUN, "background": True}, OK),
        ("/execute", {**RUN, "dry_run": True}, OK),
        ("/execute", {**RUN, "timeout": -1}, INVALID),
        ("/execute", {**RUN, "timeout": "5"}, INVALID),
        ("/execute", {**RUN, "nonsense": 1}, INVALID),
        ("/execute", {"thread_id": "t"}, INVALID),
        ("/execute", {"command": "echo"}, INVALID),
        ("/execute", [], INVALID),
        ("/execute", None, INVALID),
        ("/execute", {**RUN, "command": "\ud800"}, INVALID),
        ("/create_session", {"thread_id": "t"}, (201, "")),
        ("/create_session", {}, (201, "")),
        ("/create_session", None, (201, "")),
        ("/create_session", {"thread_id": "a/b"}, (422, "invalid_thread_id")),
        ("/cleanup", None, INVALID),
        ("/cleanup", {}, INVALID),
    ],
)
def test_any_body(server: Served, path: str, body: Any, expected: tuple[int, str]) -> None:
    """A query that means nothing here changes nothing."""
    for query in ("", "?unused=1"):
        server.fake.__dict__.update(FakeTenants().__dict__)
        answer = server.http.post(path + query, content=json.dumps(body).encode())
        assert told(answer) == expected


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[" * 60_000, b" " * 1000, b'{"command": NaN}']
)
def test_what_is_no_json(server: Served, content: bytes) -> None:
    assert told(server.http.post("/execute", content=content)) == INVALID


def test_more_than_a_body_may_have(server: Served) -> None:
    answer = server.http.post("/execute", content=b" " * 100_000)
    assert told(answer) == (413, "file_too_large")


@pytest.mark.parametrize("content", [b"", b"null", b"{}"])
def test_a_session_needs_nothing_said(server: Served, content: bytes) -> None:
    assert told(server.http.post("/create_session", content=content)) == (201, "")


@pytest.mark.parametrize("error", [SessionLost("gone"), Capacity("full", retry_after_s=7)])
def test_errors(
    server: Served, monkeypatch: pytest.MonkeyPatch, error: SessionLost | Capacity
) -> None:
    async def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(FakeTenants, "execute", failing)
    answer = server.http.post("/execute", json=RUN)
    assert told(answer) == (error.status, error.code)
    assert answer.headers.get("retry-after") == ("7" if isinstance(error, Capacity) else None)


@pytest.mark.parametrize("key", ["", "Bearer wrong", "Bearer right"])
def test_keys(key: str) -> None:
    with served(keys=ApiKeys([("acme", "right")])) as server:
        answer = server.http.post("/execute", json=RUN, headers={"authorization": key})
    assert told(answer) == (OK if key == "Bearer right" else (401, "unauthorized"))
