"""/artifact: the bytes of an artifact."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header, Query
from fastapi.responses import StreamingResponse
from starlette.responses import Response

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import ArtifactTarget
from sandbox_server.api.files import downloaded
from sandbox_server.api.openapi import error_answers
from sandbox_server.api.operations import ALWAYS, parse_query
from sandbox_server.api.route import Asked, KeyedRoute, Served

_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The bytes; the ETag is their sha256.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    },
    304: {"description": "The artifact is the one named in If-None-Match."},
}


def artifact_route(served: Served) -> KeyedRoute:
    return KeyedRoute(
        "/artifact",
        download_artifact,
        served=served,
        scope="read",
        described=_described,
        methods=["GET"],
        response_model=None,
        response_class=StreamingResponse,
        summary="Read an artifact",
        operation_id="download_artifact",
        tags=["artifacts"],
        responses={**_ANSWER, **error_answers(*ALWAYS, errors.NotFound)},
    )


async def download_artifact(asked: Asked) -> Response:
    return await downloaded(asked, parse_query(ArtifactTarget, asked.http))


async def _described(
    artifact_id: Annotated[
        str,
        Query(min_length=1, max_length=200, examples=["5b1f0c2a9d3e4f6a@worker-1"]),
    ],
    if_none_match: Annotated[str | None, Header(description="An ETag had before.")] = None,
) -> Any:
    """The bytes of an artifact, also after the end of its session."""
