"""The routes of the platform, as its curl lines send them."""

import base64
import json

import httpx
import pytest

from tests.api.serving import Served

FORM = {"content-type": "application/x-www-form-urlencoded"}
"""What `curl -d` says of its body."""


def curl(server: Served, path: str, body: str) -> httpx.Response:
    return server.http.post(path, content=body, headers=FORM)


def started(server: Served) -> str:
    return str(curl(server, "/api/sessions", '{"environment": null}').json()["session_id"])


def test_a_session_from_its_start_to_its_end(server: Served) -> None:
    made = curl(server, "/api/sessions", '{"provider": "fake"}')
    assert made.status_code == 201
    session = made.json()
    assert (session["provider"], session["status"]) == ("fake", "created")
    assert session["url"] == f"{server.http.base_url}/api/sessions/{session['session_id']}"
    for path in ("/api/execute", "/api/e2b/execute"):
        body = f'{{"session_id": "{session["session_id"]}", "code": "print(42)"}}'
        ran = curl(server, path, body).json()
        assert set(ran) >= {"stdout", "stderr", "results", "artifacts", "error"}
        assert ran["artifacts"][0]["path"] == "/workspace/made.txt"
        assert [result["data"] for result in ran["results"]] == [{"text/plain": "2"}]
        assert not server.fake.ran
    # Without a kernel, an interpreter of the box runs it.
    asked = {"session_id": session["session_id"], "code": "1", "language": "node"}
    ran = curl(server, "/api/execute", json.dumps(asked)).json()
    assert (ran["stdout"], ran["results"], ran["error"]) == ("node -", [], None)
    assert (server.fake.ran[-1].stdin, server.fake.ran[-1].artifacts) == ("1", True)
    listed = server.http.get("/api/sessions").json()["sessions"]
    assert [each["session_id"] for each in listed] == [session["session_id"]]
    one = server.http.get(f"/api/sessions/{session['session_id']}").json()
    assert (one["state"], one["log"], one["artifacts"]) == ("live", [], [])
    gone = server.http.delete(f"/api/sessions/{session['session_id']}?sandbox_id=xyz")
    assert gone.json() == {"session_id": session["session_id"], "status": "destroyed"}
    again = server.http.delete(f"/api/sessions/{session['session_id']}")
    assert (again.status_code, again.json()["error"]["code"]) == (404, "session_not_found")


@pytest.mark.parametrize("path", ["/api/files", "/api/e2b/files"])
def test_files(server: Served, path: str) -> None:
    session = started(server)
    body = f'{{"session_id": "{session}", "path": "a.txt", "content": "hello"}}'
    assert curl(server, path, body).json()["size"] == 5
    data = {"session_id": session, "path": "b.bin", "encoding": "base64",
            "content": base64.b64encode(b"\xff\x00").decode()}  # fmt: skip
    assert server.http.post(path, json=data).json()["size"] == 2
    form = {"file": ("c.txt", b"form")}
    sent = server.http.post(path, data={"session_id": session}, files=form)
    assert sent.json()["path"] == "/workspace/c.txt"
    listed = server.http.get(f"{path}/{session}").json()
    assert [entry["name"] for entry in listed["entries"]] == ["a.txt", "b.bin", "c.txt"]
    large = {"session_id": session, "path": "d", "content": "x" * 70_000}
    assert server.http.post(path, json=large).status_code == 413


# Not as subtests: each captures what is printed, and the server prints its log in this process.
@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/api/sessions", {"provider": "e2b"}, "SANDBOX_E2B_API_KEY"),
        ("/api/sessions", {"provider": "vm"}, "there is fake"),
        ("/api/sessions", {"providr": "x"}, "there is no such field"),
        ("/api/execute", {}, "code: this field"),
        ("/api/execute", {"code": "1", "language": "cobol"}, "cobol"),
        ("/api/files", {"path": "a", "content": "?", "encoding": "base64"}, "base64"),
    ],
)
def test_what_is_wrong_is_told(server: Served, path: str, body: dict[str, str], said: str) -> None:
    if path != "/api/sessions":
        body = {"session_id": started(server), **body}
    answer = curl(server, path, json.dumps(body))
    assert answer.status_code == 422
    assert said in answer.json()["error"]["message"]


def test_unknown_sessions(server: Served) -> None:
    for path in ("/api/execute", "/api/files"):
        more = '"path": "a", "content": "x"' if "files" in path else '"code": "1"'
        assert curl(server, path, f'{{"session_id": "nobody", {more}}}').status_code == 404
    assert server.http.get("/api/sessions/nobody").status_code == 404
    assert server.http.get("/api/files/nobody").status_code == 404


def test_artifacts(server: Served) -> None:
    ran = server.http.post(
        "/execute", json={"thread_id": "t", "command": "make", "artifacts": True}
    ).json()
    (made,) = ran["artifacts"]
    assert server.http.get("/artifacts").json()["artifacts"] == [made]
    found = server.http.get("/artifact", params={"artifact_id": made["artifact_id"]})
    assert (found.content, found.headers["etag"]) == (b"made by a run", f'"{made["sha256"]}"')
    again = server.http.get(
        "/artifact",
        params={"artifact_id": made["artifact_id"]},
        headers={"if-none-match": found.headers["etag"]},
    )
    assert again.status_code == 304
    gone = server.http.post("/artifact/delete", json={"artifact_id": made["artifact_id"]})
    assert gone.status_code == 200
    missing = server.http.get("/artifact", params={"artifact_id": made["artifact_id"]})
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
