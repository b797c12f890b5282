"""A plain call gets the same answer as one that goes through the framework."""

import json
from typing import Any

import httpx
import pytest

from sandbox_sdk.protocol.errors import Capacity, SessionLost
from sandbox_server.api.auth import ApiKeys
from tests.api.fake import FakeTenants
from tests.api.serving import Served, served

PLAIN = ""
ROUTED = "?unused=1"
"""Not plain: the shortcut leaves alone what has a query."""
RUN = {"thread_id": "t", "command": "echo 4"}
BODIES: list[tuple[str, Any]] = [
    ("/execute", RUN),
    ("/execute", {**RUN, "env": {"A": "1"}, "stdin": "x", "cwd": "/tmp", "background": True}),
    ("/execute", {**RUN, "dry_run": True}),
    ("/execute", {**RUN, "timeout": -1}),
    ("/execute", {**RUN, "nonsense": 1}),
    ("/execute", {"thread_id": "t"}),
    ("/execute", {"command": "echo"}),
    ("/execute", []),
    ("/execute", {**RUN, "command": "\ud800"}),
    ("/create_session", {"thread_id": "t"}),
    ("/create_session", {}),
    ("/create_session", {"thread_id": "a/b"}),
    ("/create_session", None),
]


def told(answer: httpx.Response) -> Any:
    body = answer.json()
    if "error" in body:
        assert body["error"].pop("request_id") == answer.headers["x-request-id"]
    headers = dict(answer.headers)
    for name in ("date", "x-request-id", "content-length"):
        headers.pop(name)
    return answer.status_code, headers, body


def both(server: Served, path: str, content: bytes, **headers: str) -> list[Any]:
    """What a plain call is told, and what one is that is not."""
    answers = []
    for query in (PLAIN, ROUTED):
        server.fake.__dict__.update(FakeTenants().__dict__)
        answers.append(told(server.http.post(path + query, content=content, headers=headers)))
    return answers


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_any_body(server: Served, path: str, body: Any) -> None:
    plain, routed = both(server, path, json.dumps(body).encode())
    assert plain == routed


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[" * 60_000, b" " * 100_000, b'{"command": NaN}']
)
def test_what_is_no_json(server: Served, content: bytes) -> None:
    plain, routed = both(server, "/execute", content)
    assert plain == routed
    assert plain[0] >= 400


@pytest.mark.parametrize("error", [SessionLost("gone"), Capacity("full", retry_after_s=7)])
def test_errors(
    server: Served, monkeypatch: pytest.MonkeyPatch, error: SessionLost | Capacity
) -> None:
    async def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(FakeTenants, "execute", failing)
    plain, routed = both(server, "/execute", json.dumps(RUN).encode())
    assert plain == routed
    assert plain[0] == error.status


@pytest.mark.parametrize("key", ["", "Bearer wrong", "Bearer right"])
def test_keys(key: str) -> None:
    with served(keys=ApiKeys([("acme", "right")])) as server:
        plain, routed = both(server, "/execute", json.dumps(RUN).encode(), authorization=key)
    assert plain == routed
    assert (plain[0] == 200) == (key == "Bearer right")
