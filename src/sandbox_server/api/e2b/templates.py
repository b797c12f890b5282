"""Templates of e2b are our environments, its snapshots and forks our checkpoints: those have the
files and the shell state, not memory."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime
from typing import Any

from pydantic import Field
from starlette.responses import Response

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import NotFound, SandboxError
from sandbox_server.api.e2b.answers import Answers
from sandbox_server.api.e2b.messages import Message, json_answer, parsed
from sandbox_server.api.e2b.routes import ControlRoute, Door, target_of
from sandbox_server.api.route import Asked

DEFAULT_LIFETIME_S = 300
_MOST = 1000
BASE = "base"
_OWN = {"code-interpreter-v1": "code-interpreter"}
"""A template that an SDK names by itself, and the environment that it is here. The other such one,
`base`, is an environment of that name."""
_CHECKPOINT = "cp-"
_TAGS = (":default", ":latest")


def from_template(name: str) -> dict[str, str]:
    """The fields of CreateSessionRequest that a template stands for."""
    name = _untagged(name)
    if name.startswith(_CHECKPOINT):
        return {"checkpoint_id": name}
    return {"environment": environment_of(name)}


def environment_of(name: str) -> str:
    name = _untagged(name)
    return _OWN.get(name, name)


def _untagged(name: str) -> str:
    for tag in _TAGS:
        name = name.removesuffix(tag)
    return name


def template_routes(door: Door) -> list[ControlRoute]:
    snapshots, one = Snapshots(door), "/sandboxes/{sandbox_id}"
    return [
        ControlRoute(door, "POST", f"{one}/snapshots", snapshots.create),
        ControlRoute(door, "POST", f"{one}/fork", snapshots.fork),
        ControlRoute(door, "GET", "/snapshots", snapshots.list, scope="read"),
        ControlRoute(door, "GET", "/templates", list_templates, scope="read"),
        ControlRoute(door, "GET", "/templates/aliases/{alias}", find_template, scope="read"),
        ControlRoute(door, "DELETE", "/templates/{template_id}", delete_template),
    ]


async def list_templates(asked: Asked) -> Response:
    names = [BASE, *(each.name for each in (await asked.sandboxes.registry()).environments)]
    return json_answer([_template(name) for name in dict.fromkeys(names)])


async def find_template(asked: Asked) -> Response:
    alias = str(asked.http.path_params["alias"])
    declared = {each.name for each in (await asked.sandboxes.registry()).environments}
    if alias not in _OWN.keys() | declared:
        raise NotFound(f"no template {alias[:100]!r}: this server's are its environments")
    return json_answer({"templateID": alias, "public": False})


async def delete_template(asked: Asked) -> Response:
    """The SDK deletes snapshots with this."""
    name = _untagged(str(asked.http.path_params["template_id"]))
    if not name.startswith(_CHECKPOINT):
        raise NotFound(f"no snapshot {name[:100]!r}; environments are declared by the operator")
    request = models.checked(models.CheckpointTarget, checkpoint_id=name)
    await asked.sandboxes.call(op.DELETE_CHECKPOINT, request)
    return Response(status_code=204)


def _template(name: str) -> dict[str, object]:
    now = datetime.now(UTC).isoformat()
    return {
        "templateID": name, "buildID": "", "aliases": [name], "names": [name], "public": False,
        "cpuCount": 1, "memoryMB": 0, "diskSizeMB": 0, "createdAt": now, "updatedAt": now,
        "createdBy": None, "lastSpawnedAt": None, "spawnCount": 0, "buildCount": 0,
        "envdVersion": "", "buildStatus": "ready",
    }  # fmt: skip


class SnapshotRequest(Message):
    name: str | None = Field(None, min_length=1, max_length=200)


class ForkBody(Message):
    timeout: int = Field(DEFAULT_LIFETIME_S, ge=1)
    count: int = Field(1, ge=1, le=100)


class Snapshots:
    def __init__(self, door: Door) -> None:
        self._answers = Answers(door)

    async def create(self, asked: Asked) -> Response:
        request, target = parsed(SnapshotRequest, await asked.body()), target_of(asked)
        wanted = models.checked(
            models.CheckpointRequest, session_id=target.session_id, name=request.name
        )
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
        wanted = models.checked(models.ForkRequest, thread_id=source.thread_id, into=into)
        forked = await asked.sandboxes.fork(wanted)
        begun = (self._begun(asked, each, request.timeout) for each in forked.sessions)
        return json_answer(await asyncio.gather(*begun), status=201)

    async def _begun(
        self, asked: Asked, session: models.Session, lifetime_s: int
    ) -> dict[str, Any]:
        target = models.Target(session_id=session.session_id)
        try:
            await asked.sandboxes.set_lifetime(target, float(lifetime_s))
        except SandboxError as error:
            return {"error": {"code": error.status, "message": error.message}}
        return {"sandbox": await self._answers.made(asked, session)}


def _snapshot(checkpoint: models.Checkpoint) -> dict[str, Any]:
    names = [checkpoint.name] if checkpoint.name else []
    return {"snapshotID": checkpoint.checkpoint_id, "names": names}
