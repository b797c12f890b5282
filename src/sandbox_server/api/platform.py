"""/api/…: sessions on a provider, code in them, and their files.

They only translate: the steps are those of sandbox_sdk.platform, over the same sandboxes as all
other routes. The routes that tell what is stored are operations of the table.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any

from fastapi import Body, Path, Query
from starlette.responses import Response

from sandbox_sdk.platform import steps
from sandbox_sdk.protocol import errors, models
from sandbox_sdk.protocol import operations as op
from sandbox_server import log_fields
from sandbox_server.api import examples
from sandbox_server.api.files import UPLOAD_FORM, upload_file
from sandbox_server.api.headers import is_form
from sandbox_server.api.openapi import answer, error_answers
from sandbox_server.api.operations import ALWAYS, WITH_BODY, json_response, parse_body, parse_query
from sandbox_server.api.route import Asked, Handler, KeyedRoute, Served

SESSIONS = "/api/sessions"
SESSION = "/api/sessions/{session_id}"
EXECUTE = ("/api/execute", "/api/e2b/execute")
FILES = ("/api/files", "/api/e2b/files")
"""Each route in both of its spellings: any provider may be meant by either."""


async def start(asked: Asked) -> Response:
    request = parse_body(models.StartSessionRequest, await asked.body())
    made = await steps.start(asked.sandboxes, request)
    log_fields.bind(session=made.session_id)
    url = f"{str(asked.http.base_url).rstrip('/')}{SESSIONS}/{made.session_id}"
    found = made.model_copy(update={"url": url})
    return _told(found, status=201 if found.status == "created" else 200)


async def stop(asked: Asked) -> Response:
    request = parse_query(models.StopSessionRequest, asked.http)
    log_fields.bind(session=request.session_id)
    return _told(await steps.stop(asked.sandboxes, request))


async def execute(asked: Asked) -> Response:
    request = parse_body(models.ExecuteCodeRequest, await asked.body())
    log_fields.bind(session=request.session_id)
    return _told(await steps.execute_code(asked.sandboxes, request))


async def list_files(asked: Asked) -> Response:
    request = parse_query(models.ListRequest, asked.http)
    log_fields.bind(session=request.session_id)
    found = await asked.sandboxes.call(op.LIST_FILES, request)
    return json_response(op.LIST_FILES, found)


async def write_file(asked: Asked) -> Response:
    if is_form(asked.http.scope):
        return await upload_file(asked)
    request = parse_body(models.WriteFileRequest, await asked.body())
    log_fields.bind(session=request.session_id)

    async def content() -> AsyncIterator[bytes]:
        yield request.content_bytes()

    target = models.Target(session_id=request.session_id)
    return _told(await asked.sandboxes.upload_file(target, request.path, content()))


def _told(found: models.Model, *, status: int = 200) -> Response:
    return Response(found.model_dump_json(), status_code=status, media_type="application/json")


# Describing


def platform_routes(served: Served) -> list[KeyedRoute]:
    route = partial(_route, served)
    in_json = {"application/json": {"schema": models.WriteFileRequest.model_json_schema()}}
    content = {**in_json, **UPLOAD_FORM}
    return [
        route(
            SESSIONS, start, _start, "POST", models.StartedSession, "start_session",
            "Start a session on a provider, in an environment", examples.STARTED_SESSION,
            *WITH_BODY, *op.CREATE_SESSION.errors, status=201,
        ),
        route(
            SESSION, stop, _stop, "DELETE", models.StoppedSession, "stop_session", "End a session",
            examples.STOPPED_SESSION, errors.SessionNotFound,
        ),
        *(route(
            path, execute, _execute, "POST", models.CodeAnswer, _named("execute_code", path),
            "Run code in a session", examples.CODE_ANSWER,
            *WITH_BODY, *op.OF_EXECUTE, *op.OF_KERNEL,
        ) for path in EXECUTE),
        *(route(
            f"{path}/{{session_id}}", list_files, _list, "GET", models.ListResult,
            _named("session_files", path), "See what is in a folder of a session",
            examples.LIST_RESULT, *op.OF_SESSION, *op.OF_FILE,
        ) for path in FILES),
        *(route(
            path, write_file, _write, "POST", models.UploadResult, _named("write_file", path),
            "Store a file in a session", examples.UPLOAD_RESULT,
            *WITH_BODY, *op.OF_SESSION, errors.InvalidPath, errors.DiskFull,
            openapi_extra={"requestBody": {"required": True, "content": content}},
        ) for path in FILES),
    ]  # fmt: skip


def _named(name: str, path: str) -> str:
    return f"{name}_e2b" if "/e2b/" in path else name


def _route(
    served: Served,
    path: str,
    handler: Handler,
    described: Any,
    method: str,
    model: type[models.Model],
    name: str,
    summary: str,
    example: dict[str, Any],
    *failures: type[errors.SandboxError],
    status: int = 200,
    **more: Any,
) -> KeyedRoute:
    told: dict[int | str, dict[str, Any]] = {status: answer("Done.", example)}
    if status == 201:
        told[200] = {"model": model, **answer("The thread was live.", example)}
    return KeyedRoute(
        path,
        handler,
        served=served,
        scope="read" if method == "GET" else "use",
        described=described,
        methods=[method],
        response_model=model,
        status_code=status,
        summary=summary,
        operation_id=name,
        tags=["platform"],
        include_in_schema="/e2b/" not in path,
        responses={**told, **error_answers(*ALWAYS, *failures)},
        **more,
    )


_Session = Annotated[str, Path(min_length=1, max_length=128)]


async def _start(request: Annotated[models.StartSessionRequest | None, Body()] = None) -> Any:
    """Make a session. `url` is where it is told of, also after its end."""


async def _stop(
    session_id: _Session,
    sandbox_id: Annotated[
        str | None, Query(max_length=200, description="Accepted, and not needed.")
    ] = None,
) -> Any:
    """End a session: its processes and its files are gone. Its log and artifacts stay."""


async def _execute(request: models.ExecuteCodeRequest) -> Any:
    """Run code in a session. The files it makes under /workspace are kept as artifacts."""


async def _list(
    session_id: _Session,
    path: Annotated[str, Query(min_length=1)] = models.WORKSPACE,
    recursive: bool = False,
    limit: Annotated[int, Query(ge=1, le=100_000)] = 1000,
) -> Any:
    """What is in a folder of a live session."""


async def _write() -> Any:
    """Store a file in a session: as JSON with its content, or as a form like `upload_file`'s."""
