"""What belongs to another tenant answers exactly as what does not exist, on every route of the
OpenAPI document."""

import json
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contract.conftest import RUNTIMES, state_dir
from tests.fleet.conftest import redis_server
from tests.fleet.fleet import GRACE_S, Fleet
from tests.fleet.redis_server import RedisServer
from tests.server_process import running

__all__ = ["redis_server", "state_dir"]

pytestmark = pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here")
TENANTS = ("acme", "globex")
KEYS = ",".join(f"{name}:key-of-{name}" for name in TENANTS)
OF_THE_CALLER = {("post", "/volumes"), ("post", "/api/sessions")}
"""They make something of the caller's own, whatever others have."""
FIXED: dict[str, Any] = {
    "path": "f", "to": "g", "port": 8080, "signal": "TERM", "data": "x", "rows": 24, "cols": 80,
    "tool": "none", "into": ["new"], "number": 1, "code": "1", "language": "python",
    "command": "true", "arguments": {}, "thread": "t", "watch_id": "w", "lifetime_s": 60,
}  # fmt: skip
"""Values of other fields."""
CHANGES = {"date", "content-length", "x-request-id"}


@dataclass
class Place:
    http: httpx.AsyncClient
    document: dict[str, Any]
    foreign: dict[str, str]
    missing: dict[str, str]

    def __repr__(self) -> str:
        return "<Place>"


@pytest.fixture(params=["alone", "fleet"])
async def place(
    request: pytest.FixtureRequest, state_dir: Path, redis_server: RedisServer
) -> AsyncIterator[Place]:
    if request.param == "fleet":
        fleet = Fleet("bubblewrap", state_dir, redis_server, grace_s=GRACE_S)
        try:
            coordinator = fleet.process("coordinator", SANDBOX_API_KEYS=KEYS)
            await fleet.run([fleet.process("worker")], [coordinator])
            yield await _prepared(coordinator.url)
        finally:
            await fleet.close()
        return
    async with running("bubblewrap", state_dir, SANDBOX_API_KEYS=KEYS) as server:
        await server.healthy()
        yield await _prepared(server.url)


async def _prepared(url: str) -> Place:
    """With something of every kind that belongs to acme."""
    http = httpx.AsyncClient(base_url=url, timeout=60)
    thread = f"thread-{secrets.token_hex(8)}"

    async def ask(path: str, **body: Any) -> Any:
        answer = await http.post(path, json=body, headers={"x-api-key": "key-of-acme"})
        assert answer.is_success, answer.text
        return answer.json()

    made = await ask("/create_session", thread_id=thread)
    command = await ask("/execute", thread_id=thread, command="echo 1 > f; save_artifact f")
    taken = await ask("/checkpoints", thread_id=thread)
    volume = f"volume-{secrets.token_hex(4)}"
    await ask("/volumes", name=volume)
    await ask("/expose", thread_id=thread, port=8080)
    listed = await http.get(
        "/artifacts", params={"thread_id": thread}, headers={"x-api-key": "key-of-acme"}
    )
    (artifact,) = listed.json()["artifacts"]
    foreign = {
        "thread_id": thread,
        "session_id": made["session_id"],
        "command_id": command["command_id"],
        "checkpoint_id": taken["checkpoint_id"],
        "artifact_id": artifact["artifact_id"],
        "context_id": "python",
        "name": volume,
    }
    missing = {name: _another(value) for name, value in foreign.items()}
    document = (await http.get("/openapi.json")).json()
    return Place(http, document, foreign, missing)


def _another(value: str) -> str:
    """Of the same form: other hexadecimal digits at its end."""
    digits = len(value) - len(value.rstrip("0123456789abcdef"))
    return value[: len(value) - digits] + secrets.token_hex(digits)[:digits]


def _fields(document: dict[str, Any], schema: dict[str, Any]) -> set[str]:
    """Of a body, of whatever shape."""
    if "$ref" in schema:
        return _fields(document, document["components"]["schemas"][schema["$ref"].split("/")[-1]])
    found = set(schema.get("properties", {}))
    for kind in ("anyOf", "oneOf", "allOf"):
        for each in schema.get(kind, []):
            found |= _fields(document, each)
    return found


def _filled(names: set[str], ids: dict[str, str]) -> dict[str, Any]:
    """A session is named by its id where it can be: a thread of the same name would be made."""
    given = {name: ids[name] for name in names & ids.keys()}
    given |= {name: FIXED[name] for name in names & FIXED.keys()}
    if "session_id" in given:
        given.pop("thread_id", None)
    elif {"thread_id", "checkpoint_id"} <= given.keys() and "into" in given:
        given.pop("thread_id")
    return given


async def _asked(place: Place, method: str, path: str, ids: dict[str, str]) -> Any:
    operation = place.document["paths"][path][method]
    names = {each["name"] for each in operation.get("parameters", []) if each["in"] != "header"}
    at = path
    query = _filled(names, ids)
    if path == "/watch/events":
        query["after"] = 0
    for name in [name for name in query if f"{{{name}}}" in path]:
        at = at.replace(f"{{{name}}}", str(query.pop(name)))
    sent: dict[str, Any] = {"params": query}
    content = operation.get("requestBody", {}).get("content", {})
    if "multipart/form-data" in content:
        sent["files"] = {"file": ("f", b"x")}
        names = _fields(place.document, content["multipart/form-data"]["schema"]) - {"file"}
        sent["data"] = _filled(names - query.keys() - {"thread_id"}, ids)
    elif content:
        body = _filled(_fields(place.document, content["application/json"]["schema"]), ids)
        if path in ("/execute", "/run_code"):  # To follow a command is another request.
            body.pop("command_id", None)
            query.pop("command_id", None)
        if path == "/undo":
            body["to"] = 1
        if path in ("/create_session", "/api/sessions"):
            body = {"checkpoint_id": ids["checkpoint_id"]} if path == "/create_session" else {}
        sent["json"] = body
    headers = {"x-api-key": "key-of-globex"}
    answer = await place.http.request(method.upper(), at, headers=headers, **sent)
    return _normal(answer, ids)


def _normal(answer: httpx.Response, ids: dict[str, str]) -> Any:
    text = answer.text
    for name, value in ids.items():
        text = text.replace(value, f"<{name}>")
    try:
        body = json.loads(text)
        body.get("error", {}).pop("request_id", None)
    except ValueError:
        body = text
    kept = {name: value for name, value in answer.headers.items() if name not in CHANGES}
    return answer.status_code, kept, body


async def test_every_route(place: Place, subtests: pytest.Subtests) -> None:
    seen: dict[int, int] = {}
    try:
        for path, item in place.document["paths"].items():
            for method in item:
                named = {
                    each["name"] for each in item[method].get("parameters", [])
                } | _fields_of_body(place.document, item[method])
                if (method, path) in OF_THE_CALLER or not named & place.foreign.keys():
                    continue
                with subtests.test(f"{method.upper()} {path}"):
                    foreign = await _asked(place, method, path, place.foreign)
                    missing = await _asked(place, method, path, place.missing)
                    assert foreign == missing
                    assert foreign[0] < 500
                    assert foreign[0] != 422, foreign
                    seen[foreign[0]] = seen.get(foreign[0], 0) + 1
        with subtests.test("listings do not have it"):
            for path in ("/sessions", "/checkpoints", "/volumes", "/artifacts", "/api/sessions"):
                answer = await place.http.get(path, headers={"x-api-key": "key-of-globex"})
                assert answer.is_success
                assert not any(value in answer.text for value in place.foreign.values()), path
    finally:
        await place.http.aclose()
    assert seen.get(404, 0) > 20, seen


def _fields_of_body(document: dict[str, Any], operation: dict[str, Any]) -> set[str]:
    content = operation.get("requestBody", {}).get("content", {})
    return set().union(*(_fields(document, each["schema"]) for each in content.values()))
