"""create_session, session, cleanup, list_files and health."""

import pytest

from sandbox_sdk.protocol.models import Health, ListResult, Session, SessionInfo
from tests.api.serving import Served


def test_new_then_existing(server: Served) -> None:
    first = server.http.post("/create_session", json={"thread_id": "t"})
    assert first.status_code == 201
    assert Session.model_validate(first.json()).status == "created"
    again = server.http.post("/create_session", json={"thread_id": "t"})
    assert again.status_code == 200
    assert again.json() == {**first.json(), "status": "existing"}


def test_create_without_a_body(server: Served) -> None:
    made = server.http.post("/create_session")
    assert made.status_code == 201
    assert made.json()["thread_id"] == made.json()["session_id"]


def test_session_neither_makes_nor_hides(server: Served) -> None:
    assert server.http.get("/session", params={"thread_id": "t"}).status_code == 404
    made = server.http.post("/create_session", json={"thread_id": "t"}).json()
    for target in ({"thread_id": "t"}, {"session_id": made["session_id"]}):
        found = server.http.get("/session", params=target)
        assert found.status_code == 200
        assert SessionInfo.model_validate(found.json()).session_id == made["session_id"]


def test_cleanup_once(server: Served) -> None:
    server.http.post("/create_session", json={"thread_id": "t"})
    first = server.http.post("/cleanup", json={"thread_id": "t"})
    assert (first.status_code, first.json()["status"]) == (200, "cleaned up")
    assert server.http.post("/cleanup", json={"thread_id": "t"}).status_code == 404


def test_list_files(server: Served) -> None:
    for name in ("a", "b", "c/d"):
        form = {"thread_id": "t", "path": name}
        server.http.post("/upload_file", data=form, files={"file": ("x", b"1")})
    found = server.http.get("/list_files", params={"thread_id": "t"})
    listed = ListResult.model_validate(found.json())
    assert [entry.name for entry in listed.entries] == ["a", "b"]
    params: dict[str, str | int | bool] = {"thread_id": "t", "recursive": True, "limit": 2}
    found = server.http.get("/list_files", params={**params, "path": "/tmp"})
    assert found.json()["path"] == "/tmp"
    assert found.json()["truncated"] is True


@pytest.mark.parametrize(
    ("status", "answer"), [("healthy", 200), ("degraded", 200), ("unhealthy", 503)]
)
def test_health(server: Served, status: str, answer: int) -> None:
    server.fake.status = status
    found = server.http.get("/health")
    assert found.status_code == answer
    assert Health.model_validate(found.json()).status == status
