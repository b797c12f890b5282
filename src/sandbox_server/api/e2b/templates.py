"""Templates of e2b are our environments, and its snapshots our checkpoints."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.responses import Response

from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.errors import NotFound
from sandbox_sdk.protocol.models import CheckpointTarget, checked
from sandbox_server.api.e2b.routes import ControlRoute, Door
from sandbox_server.api.e2b.streams import json_answer
from sandbox_server.api.route import Asked

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
    return [
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
    request = checked(CheckpointTarget, checkpoint_id=name)
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
