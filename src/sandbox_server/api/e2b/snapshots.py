"""Snapshots and forks: our checkpoints. They have the files and the shell state, not memory."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from pydantic import Field
from starlette.responses import Response

from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.protocol.models import (
    Checkpoint,
    CheckpointRequest,
    ForkRequest,
    Session,
    Target,
    checked,
)
from sandbox_server.api.e2b.answers import Answers
from sandbox_server.api.e2b.control import DEFAULT_LIFETIME_S, target_of
from sandbox_server.api.e2b.framing import Message, parsed
from sandbox_server.api.e2b.routes import ControlRoute, Door
from sandbox_server.api.e2b.streams import json_answer
from sandbox_server.api.route import Asked

_MOST = 1000


class SnapshotRequest(Message):
    name: str | None = Field(None, min_length=1, max_length=200)


class ForkBody(Message):
    timeout: int = Field(DEFAULT_LIFETIME_S, ge=1)
    count: int = Field(1, ge=1, le=100)


class Snapshots:
    def __init__(self, door: Door) -> None:
        self._door = door
        self._answers = Answers(door)

    def routes(self) -> list[ControlRoute]:
        door, one = self._door, "/sandboxes/{sandbox_id}"
        return [
            ControlRoute(door, "POST", f"{one}/snapshots", self.create),
            ControlRoute(door, "POST", f"{one}/fork", self.fork),
            ControlRoute(door, "GET", "/snapshots", self.list, scope="read"),
        ]

    async def create(self, asked: Asked) -> Response:
        request, target = parsed(SnapshotRequest, await asked.body()), target_of(asked)
        wanted = checked(CheckpointRequest, session_id=target.session_id, name=request.name)
        return json_answer(_snapshot(await asked.sandboxes.checkpoint(wanted)), status=201)

    async def list(self, asked: Asked) -> Response:
        """In one page."""
        query = asked.http.query_params
        found = (await asked.sandboxes.checkpoints(limit=_MOST)).checkpoints
        sandbox_id, name = query.get("sandboxID"), query.get("name")
        return json_answer([
            _snapshot(each) for each in found
            if (not sandbox_id or each.session_id == sandbox_id) and (not name or each.name == name)
        ])  # fmt: skip

    async def fork(self, asked: Asked) -> Response:
        request, target = parsed(ForkBody, await asked.body()), target_of(asked)
        source = await asked.sandboxes.session(target)
        into = [f"e2b:{uuid.uuid4()}" for _ in range(request.count)]
        wanted = checked(ForkRequest, thread_id=source.thread_id, into=into)
        forked = await asked.sandboxes.fork(wanted)
        begun = (self._begun(asked, each, request.timeout) for each in forked.sessions)
        return json_answer(await asyncio.gather(*begun), status=201)

    async def _begun(self, asked: Asked, session: Session, lifetime_s: int) -> dict[str, Any]:
        target = Target(session_id=session.session_id)
        try:
            await asked.sandboxes.set_lifetime(target, float(lifetime_s))
        except SandboxError as error:
            return {"error": {"code": error.status, "message": error.message}}
        return {"sandbox": await self._answers.made(asked, session)}


def _snapshot(checkpoint: Checkpoint) -> dict[str, Any]:
    names = [checkpoint.name] if checkpoint.name else []
    return {"snapshotID": checkpoint.checkpoint_id, "names": names}
