"""Keys and tenants, request ids and the log."""

import re
from collections.abc import Iterator

import pytest
from starlette.datastructures import Headers
from structlog.testing import capture_logs

from sandbox_sdk.protocol.errors import Unauthorized
from sandbox_server import log_fields
from sandbox_server.api.auth import SOLE_TENANT, ApiKeys
from tests.api.serving import Served, eventually, served

KEYS = "acme:key-of-acme, acme:second, globex:ключ"


@pytest.fixture(scope="module")
def keyed() -> Iterator[Served]:
    with served(keys=ApiKeys.parse(KEYS)) as server:
        yield server


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer"},
        {"Authorization": "Basic key-of-acme"},
        {"Authorization": "key-of-acme"},
        {"X-API-Key": "key-of-acm"},
        {"X-API-Key": "key-of-acmee"},
        {"X-API-Key": "ü"},
    ],
)
def test_without_a_good_key(keyed: Served, headers: dict[str, str]) -> None:
    sent = {name.encode(): value.encode() for name, value in headers.items()}
    for method, path in [
        ("POST", "/create_session"),
        ("POST", "/execute"),
        ("POST", "/upload_file"),
        ("GET", "/download_file"),
        ("GET", "/list_files"),
        ("GET", "/session"),
        ("POST", "/cleanup"),
        ("GET", "/command"),
        ("GET", "/commands"),
        ("POST", "/command/signal"),
        ("POST", "/command/stdin"),
        ("GET", "/sessions"),
    ]:
        # Whatever else is wrong with the request is not told.
        answer = keyed.http.request(method, path, content=b"{", headers=sent)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthorized")
        assert answer.headers["www-authenticate"].startswith("Bearer")


def test_open_to_all(keyed: Served) -> None:
    for path in ("/health", "/docs", "/redoc", "/openapi.json", "/static-docs/swagger-ui.css"):
        assert keyed.http.get(path).status_code == 200


def test_tenants_do_not_meet(keyed: Served) -> None:
    keys = ["key-of-acme", "second", "ключ"]
    acme, also, globex = ({b"Authorization": f"bearer {key}".encode()} for key in keys)
    made = keyed.http.post("/create_session", json={"thread_id": "t"}, headers=acme).json()
    target = {"session_id": made["session_id"]}
    assert keyed.http.get("/session", params=target, headers=also).status_code == 200
    foreign = keyed.http.get("/session", params=target, headers=globex)
    missing = keyed.http.get("/session", params={"session_id": "none"}, headers=globex)
    assert foreign.status_code == missing.status_code == 404
    bodies = [{**answer.json()["error"], "request_id": ""} for answer in (foreign, missing)]
    assert bodies[0] == bodies[1]
    assert keyed.http.get("/sessions", headers=globex).json()["sessions"] == []
    other = keyed.http.post("/create_session", json={"thread_id": "t"}, headers=globex)
    assert other.status_code == 201
    (listed,) = keyed.http.get("/sessions", headers=globex).json()["sessions"]
    assert listed["session_id"] == other.json()["session_id"]


def test_keys_are_not_kept() -> None:
    keys = ApiKeys.parse(KEYS)
    assert repr(keys) == "<ApiKeys of 2 tenants>"
    assert "second" not in str(vars(keys))


@pytest.mark.parametrize("text", ["secret", "a:,", ":secret", "a b:secret", "a:secret,b:secret"])
def test_bad_keys_are_not_shown(text: str) -> None:
    with pytest.raises(ValueError, match="API key") as caught:
        ApiKeys.parse(text)
    assert "secret" not in str(caught.value)


def test_key_with_a_colon() -> None:
    assert ApiKeys.parse("a:k:1").tenant(Headers({"x-api-key": "k:1"})) == "a"


def test_none_configured() -> None:
    assert ApiKeys.parse("").tenant(Headers({})) == SOLE_TENANT
    with pytest.raises(Unauthorized):
        ApiKeys.parse("a:k").tenant(Headers({}))


@pytest.mark.parametrize("given", ["abc-1.2_3", "x" * 64])
def test_request_id_of_the_caller(server: Served, given: str) -> None:
    answer = server.http.get("/health", headers={"X-Request-ID": given})
    assert answer.headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "x" * 65, "a b", "a;b", 'a"b'])
def test_request_id_made_here(server: Served, given: str) -> None:
    answer = server.http.get("/nowhere", headers={"X-Request-ID": given})
    assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])


def logged(
    server: Served, path: str, event: str = "request", **options: object
) -> dict[str, object]:
    """The line of one request, which is written after its answer: that of the test before may come
    in this one."""
    with capture_logs(
        processors=[lambda _logger, _method, event: {**log_fields.bound(), **event}]
    ) as entries:
        answer = server.http.request("POST", path, **options)  # type: ignore[arg-type]
        request_id = answer.headers["x-request-id"]

        def own() -> dict[str, dict[str, object]]:
            mine = (dict(entry) for entry in entries if entry.get("request_id") == request_id)
            return {str(entry["event"]): entry for entry in reversed(list(mine))}

        eventually(lambda: "request" in own())
    return own()[event]


def test_one_line_a_request(server: Served) -> None:
    entry = logged(
        server,
        "/execute?thread_id=query-text",
        json={"thread_id": "t", "command": "secret"},
        headers={"X-Request-ID": "r-1"},
    )
    duration = entry.pop("duration_ms")
    assert isinstance(duration, float)
    assert entry == {
        "event": "request",
        "log_level": "info",
        "method": "POST",
        "path": "/execute",
        "status": 200,
        "tenant": "default",
        "thread": "t",
        "command_id": "c-1",
        "request_id": "r-1",
    }


def test_path_is_logged_escaped_and_short(server: Served) -> None:
    entry = logged(server, "/a%0a%1b[31m{" + "x" * 500)
    assert str(entry["path"]).startswith("/a%0A%1B%5B31m%7Bxxx")
    assert len(str(entry["path"])) == 200


def test_failure_is_logged_without_what_was_sent(server: Served) -> None:
    server.fake.fails = ZeroDivisionError("division")
    sent = {"thread_id": "t", "command": "secret"}
    entry = logged(server, "/execute", "request.failed", json=sent, headers={"X-Request-ID": "r-2"})
    assert entry["request_id"] == "r-2"
    assert entry["error"] == "ZeroDivisionError('division')"
    assert "fake.py" in str(entry["traceback"])
    assert "secret" not in str(entry)
