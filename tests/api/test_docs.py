"""The OpenAPI page and its document."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pydantic import BaseModel

from sandbox_sdk.protocol import models
from sandbox_server.api import examples
from sandbox_server.api.app import create_app
from sandbox_server.api.openapi import DocumentedApp
from tests.api.fake import FakeTenants
from tests.api.serving import Served, eventually, served

EIGHT = [
    ("post", "/create_session"),
    ("post", "/execute"),
    ("post", "/upload_file"),
    ("get", "/download_file"),
    ("get", "/list_files"),
    ("get", "/session"),
    ("post", "/cleanup"),
    ("get", "/health"),
]
FURTHER = [
    ("post", "/run_code", "code"),
    ("get", "/contexts", "code"),
    ("post", "/contexts", "code"),
    ("post", "/contexts/restart", "code"),
    ("post", "/contexts/remove", "code"),
    ("post", "/contexts/interrupt", "code"),
    ("get", "/command", "commands"),
    ("get", "/commands", "commands"),
    ("post", "/command/signal", "commands"),
    ("post", "/command/stdin", "commands"),
    ("post", "/command/resize", "commands"),
    ("get", "/sessions", "sessions"),
    ("post", "/session/lifetime", "sessions"),
    ("post", "/session/egress", "sessions"),
    ("post", "/session/pause", "sessions"),
    ("post", "/session/unpause", "sessions"),
    ("post", "/rename", "files"),
    ("get", "/registry", "registry"),
    ("post", "/tools/call", "registry"),
    ("get", "/artifacts", "artifacts"),
    ("post", "/artifact/delete", "artifacts"),
    ("get", "/artifact", "artifacts"),
    ("post", "/checkpoints", "checkpoints"),
    ("get", "/checkpoints", "checkpoints"),
    ("get", "/checkpoints/{checkpoint_id}", "checkpoints"),
    ("post", "/checkpoint/delete", "checkpoints"),
    ("post", "/restore", "checkpoints"),
    ("post", "/fork", "checkpoints"),
    ("get", "/history", "checkpoints"),
    ("get", "/history/changes", "checkpoints"),
    ("post", "/undo", "checkpoints"),
    ("get", "/stat", "files"),
    ("post", "/mkdir", "files"),
    ("post", "/remove", "files"),
    ("post", "/watch", "files"),
    ("get", "/watch/events", "files"),
    ("post", "/unwatch", "files"),
    ("get", "/volumes", "volumes"),
    ("post", "/volumes", "volumes"),
    ("post", "/volume/delete", "volumes"),
    ("post", "/expose", "previews"),
    ("get", "/previews", "previews"),
    ("post", "/unexpose", "previews"),
    ("get", "/api/sessions", "platform"),
    ("post", "/api/sessions", "platform"),
    ("get", "/api/sessions/{session_id}", "platform"),
    ("delete", "/api/sessions/{session_id}", "platform"),
    ("get", "/usage", "platform"),
    ("get", "/events", "platform"),
    ("post", "/api/execute", "platform"),
    ("get", "/api/files/{session_id}", "platform"),
    ("post", "/api/files", "platform"),
]


@pytest.mark.parametrize("page", ["/docs", "/redoc"])
def test_pages_need_nothing_from_elsewhere(server: Served, page: str) -> None:
    answer = server.http.get(page)
    assert answer.status_code == 200
    assert not re.search(r"(https?:)?//[a-z]", answer.text)
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    needed = re.findall(r'(?:src|href)="([^"]+)"', answer.text)
    assert needed
    for link in [*needed, "openapi.json"]:
        assert not link.startswith("/")
        found = server.http.get(f"/{link}")
        assert found.status_code == 200
        assert len(found.content) > 1000


def test_others_are_served_while_the_document_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made once, however many ask for it."""
    made, may_go_on = [], threading.Event()

    def make(_app: object) -> dict[str, Any]:
        made.append("document")
        assert may_go_on.wait(30)
        return {"openapi": "3.1.0"}

    monkeypatch.setattr(DocumentedApp, "openapi", make)
    with served() as server, ThreadPoolExecutor(3) as callers:
        asked = [callers.submit(server.http.get, "/openapi.json") for _ in range(3)]
        try:
            eventually(lambda: made)
            assert server.http.get("/health").status_code == 200
        finally:
            may_go_on.set()
        assert [each.result().json() for each in asked] == [{"openapi": "3.1.0"}] * 3
    assert made == ["document"]


def test_swagger_asks_no_validator(server: Served) -> None:
    assert '"validatorUrl": null' in server.http.get("/docs").text


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(FakeTenants()).openapi()


def test_the_eight_come_first(document: dict[str, Any]) -> None:
    routes = [(method, path) for path, ops in document["paths"].items() for method in ops]
    assert routes[:8] == EIGHT
    assert document["info"]["title"] == "Sandboxes"
    for method, path in EIGHT:
        operation = document["paths"][path][method]
        assert operation["tags"] == ["sandboxes"]
        assert operation["operationId"] == path.removeprefix("/")
        assert operation["summary"]
        assert operation["description"]


def test_further_routes_have_tags_of_their_own(document: dict[str, Any]) -> None:
    routes = [(method, path) for path, ops in document["paths"].items() for method in ops]
    assert routes[8:] == [(method, path) for method, path, _ in FURTHER]
    for method, path, tag in FURTHER:
        operation = document["paths"][path][method]
        assert operation["tags"] == [tag]
        assert operation["summary"]
        assert operation["description"]
        assert operation["security"]
    assert [tag["name"] for tag in document["tags"]] == [
        "sandboxes",
        "code",
        "commands",
        "sessions",
        "files",
        "registry",
        "artifacts",
        "checkpoints",
        "volumes",
        "previews",
        "platform",
    ]


def test_every_answer_has_an_example(document: dict[str, Any]) -> None:
    for method, path in [*EIGHT, *(further[:2] for further in FURTHER)]:
        for status, answer in document["paths"][path][method]["responses"].items():
            for content in answer.get("content", {}).values():
                shown = "example" in content or "examples" in content
                is_bytes = path in ("/download_file", "/artifact") and status == "200"
                assert shown or is_bytes, (path, status)


def test_keys_are_documented(document: dict[str, Any]) -> None:
    assert document["paths"]["/execute"]["post"]["security"]
    assert "security" not in document["paths"]["/health"]["get"]


@pytest.mark.parametrize(
    ("model", "example"),
    [
        (models.Session, examples.SESSION),
        (models.SessionInfo, examples.SESSION_INFO),
        (models.ExecuteResult, examples.EXECUTE_RESULT),
        (models.UploadResult, examples.UPLOAD_RESULT),
        (models.ListResult, examples.LIST_RESULT),
        (models.CleanupResult, examples.CLEANUP_RESULT),
        (models.Health, examples.HEALTH),
        (models.CommandInfo, examples.COMMAND_INFO),
        (models.CommandList, examples.COMMAND_LIST),
        (models.StdinReceipt, examples.STDIN_RECEIPT),
        (models.SessionList, examples.SESSION_LIST),
    ],
)
def test_examples_are_what_is_sent(model: type[BaseModel], example: dict[str, Any]) -> None:
    assert model.model_validate(example).model_dump(mode="json") == example


def test_example_bodies_are_accepted(server: Served) -> None:
    for name in ("run", "once", "background"):
        body = examples.EXECUTE_BODIES[name]["value"]
        assert server.http.post("/execute", json=body).status_code == 200
