"""What a later version may add is passed over, and what is asked for stays strict."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import ValidationError

from sandbox_sdk import RemoteBackend
from sandbox_sdk.protocol import models
from sandbox_sdk.protocol.errors import RuntimeUnavailable, SandboxError, SessionLost
from sandbox_sdk.protocol.models import ExecuteRequest, Model, Request, StdinReceipt
from sandbox_server.fleet.index import decode, encode
from sandbox_server.fleet.workers import Phase, Presence, worker_from
from sandbox_server.sessions.registry import Record, Status
from tests.server_process import served

RECORD = Record(
    tenant="t", thread_id="a", generation=2, session_id="s", box_id="b", status=Status.LIVE,
    created_at=1.5, worker="w", epoch=3,
)  # fmt: skip


def test_a_record_keeps_what_a_later_version_wrote() -> None:
    """swap() compares what is stored with what was read: a lost field would end in a loop."""
    later = {**json.loads(encode(RECORD)), "color": "blue", "more": {"a": [1]}}
    text = json.dumps(later, sort_keys=True, separators=(",", ":"))
    record = decode(text)
    assert record is not None
    assert (record.session_id, record.status) == ("s", Status.LIVE)
    assert encode(record) == text
    ended = decode(encode(replace(record, status=Status.LOST)))
    assert ended is not None
    assert (ended.status, ended.more) == (Status.LOST, {"color": "blue", "more": {"a": [1]}})


def test_a_record_of_an_earlier_version_is_read() -> None:
    fields = json.loads(encode(RECORD))
    del fields["epoch"], fields["worker"]
    record = decode(json.dumps(fields))
    assert record == replace(RECORD, worker="", epoch=0)
    assert "more" not in json.loads(encode(RECORD))


def test_a_record_that_is_not_understood_is_a_typed_error() -> None:
    with pytest.raises(RuntimeUnavailable, match="upgrade"):
        decode(encode(RECORD).replace('"live"', '"asleep"'))


def test_a_worker_in_a_phase_of_a_later_version_keeps_what_it_has() -> None:
    fields = {
        "id": "w", "url": "http://w", "capacity": "5", "sessions": "1", "warm": "0",
        "state": "resting", "version": "9", "runtime": "docker", "epoch": "1", "until": "2000",
        "planet": "mars",
    }  # fmt: skip
    worker = worker_from(fields, now_ms=1000)
    assert worker is not None
    assert (worker.phase, worker.takes_threads) == (Phase.DRAINING, False)
    assert worker.presence(grace_s=1) == Presence.HERE


def every(root: type[Model]) -> list[type[Model]]:
    return [root, *(found for child in root.__subclasses__() for found in every(child))]


def test_answers_may_grow_and_requests_may_not() -> None:
    assert all(model.model_config["extra"] == "ignore" for model in every(Model))
    assert StdinReceipt.model_validate({"received": 1, "later": True}).received == 1
    requests = [
        kind
        for kind in vars(models).values()
        if isinstance(kind, type) and issubclass(kind, Request)
    ]
    assert all(kind.model_config["extra"] == "forbid" for kind in requests)
    with pytest.raises(ValidationError, match="later"):
        ExecuteRequest.model_validate({"thread_id": "t", "command": "true", "later": 1})


def test_errors_carry_whatever_details_come() -> None:
    details = {"message": "x", "self": 1, "code": 2, "later": True}
    error = SandboxError.from_wire("session_lost", "gone", details)
    assert isinstance(error, SessionLost)
    assert (error.message, error.details) == ("gone", details)
    assert SandboxError.from_wire("of_a_later_version", "hm").message == "hm"


EVENTS = """retry: 500
id: x
event: start
data: {"command_id": "c", "session_id": "s", "generation": 1, "session_state": "live", "new": 1}

event: weather
data: {"sun": true}

data: "no name"

event: note
data: not json

event:stdout
data:{"data": "hi", "offset": 0,
data: "next_offset": 2, "new": 1}

event: exit
data: {"exit_code": 0, "command_id": "c", "duration_ms": 1, "timed_out": false, "truncated": false,
data:  "output_bytes": 2, "cwd": "/", "session_id": "s", "generation": 1, "session_state": "live"}

"""


async def test_events_of_a_later_version_are_passed_over() -> None:
    app = FastAPI()
    bodies: list[dict[str, object]] = []

    @app.post("/execute")
    async def execute(body: dict[str, object]) -> StreamingResponse:
        bodies.append(body)

        async def events() -> AsyncIterator[str]:
            yield EVENTS

        return StreamingResponse(events(), media_type="text/event-stream")

    request = ExecuteRequest(thread_id="t", command="true")
    async with served(app) as url, RemoteBackend(url) as backend:
        seen = [event.event async for event in backend.stream(request)]
    assert seen == ["start", "stdout", "exit"]
    # An earlier version refuses what it does not know: only what was asked for is sent.
    assert set(bodies[0]) == {"thread_id", "command", "idempotency_key"}
