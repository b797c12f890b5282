"""The routes of the operation table."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl

from fastapi import Body, Path, Query
from pydantic import ValidationError
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response, StreamingResponse

from sandbox_sdk.protocol import errors, models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.models import ListResult, Model, invalid_fields
from sandbox_sdk.protocol.operations import Operation
from sandbox_server.api import examples
from sandbox_server.api.openapi import error_answers
from sandbox_server.api.route import Asked, KeyedRoute, PublicRoute, Served, bind_target

ALWAYS = (
    errors.InvalidRequest,
    errors.InvalidThreadId,
    errors.Unauthorized,
    errors.Forbidden,
    errors.RuntimeUnavailable,
    errors.Internal,
)
WITH_BODY = (errors.RequestTimeout, errors.FileTooLarge)
_SLICE = 200
"""Entries of a listing to serialize before yielding to the event loop."""
_NOTHING = (b"", b"null")
"""Bodies that mean an empty request."""
_Parsed = TypeVar("_Parsed", bound=models.Request)


def operation_route(operation: Operation[Any, Any], served: Served) -> PublicRoute:
    """The route of one operation."""
    path, scope, about = operation.path, operation.scope, describe(operation)
    if scope == "public":
        return PublicRoute(path, partial(_health, operation, served), **about)
    return KeyedRoute(path, partial(_called, operation), served=served, scope=scope, **about)


async def _called(operation: Operation[Any, Any], asked: Asked) -> Response:
    if operation.method == "POST":
        request = parse_body(operation.request, await asked.body())
    else:
        request = parse_query(operation.request, asked.http)
    bind_target(request)
    return json_response(operation, await asked.sandboxes.call(operation, request))


async def _health(operation: Operation[Any, Any], served: Served, _http: Request) -> Response:
    return json_response(operation, await served.tenants.health())


# Reading and writing


def parse_body(model: type[_Parsed], body: bytes) -> _Parsed:
    """Raises InvalidRequest."""
    try:
        return model.model_validate_json(b"{}" if body in _NOTHING else body)
    except ValidationError as error:
        raise invalid_body(model, body, error) from None


def invalid_body(
    model: type[models.Request], body: bytes, error: ValidationError
) -> errors.InvalidRequest:
    """The errors by field. Pydantic rejects a lone surrogate without naming the field, so parse
    such a body again with json."""
    found = error.errors(include_url=False)
    if found[0]["type"] == "json_invalid":
        try:
            model.model_validate(json.loads(body))
        except ValidationError as named:
            found = named.errors(include_url=False)
        except (ValueError, RecursionError):
            pass
    return invalid_fields(found, known=model.model_fields)


def parse_query(model: type[_Parsed], http: HTTPConnection) -> _Parsed:
    """With what the path names. Unknown query parameters are ignored. Raises InvalidRequest."""
    query = http.scope["query_string"].decode("latin-1")
    given = dict(parse_qsl(query, keep_blank_values=True, errors="replace"))
    given.update(http.path_params)
    known = {name: value for name, value in given.items() if name in model.model_fields}
    try:
        return model.model_validate_strings(known, strict=False)
    except ValidationError as error:
        raise invalid_fields(error.errors(include_url=False)) from None


def json_response(operation: Operation[Any, Any], found: Model) -> Response:
    if isinstance(found, ListResult) and len(found.entries) > _SLICE:
        return StreamingResponse(listing(found), media_type="application/json")
    status = operation.status(found) if operation.status is not None else 200
    headers = {"Retry-After": "5"} if status == 503 else None
    return Response(
        found.model_dump_json(), status_code=status, headers=headers, media_type="application/json"
    )


async def listing(found: ListResult) -> AsyncIterator[str]:
    """The listing as JSON in slices: serializing it at once would block the event loop."""
    rest = found.model_copy(update={"entries": []}).model_dump_json()
    start, end = rest.split('"entries":[]')
    yield f'{start}"entries":['
    for number in range(0, len(found.entries), _SLICE):
        some = found.entries[number : number + _SLICE]
        text = ",".join(entry.model_dump_json() for entry in some)
        yield f",{text}" if number else text
        await asyncio.sleep(0)
    yield f"]{end}"


# Describing


def describe(operation: Operation[Any, Any]) -> dict[str, Any]:
    """The operation's part of the OpenAPI document."""
    return {
        "described": _described(operation),
        "methods": [operation.method],
        "response_model": operation.answer,
        "status_code": 201 if operation is op.CREATE_SESSION else 200,
        "summary": operation.summary,
        "description": operation.description,
        "operation_id": operation.name,
        "tags": [operation.tag],
        "responses": {**examples.ANSWERS[operation], **error_answers(*_errors(operation))},
    }


def _errors(operation: Operation[Any, Any]) -> set[type[errors.SandboxError]]:
    if operation.scope == "public":
        return {errors.Forbidden}
    found: set[type[errors.SandboxError]] = {*ALWAYS, *operation.errors}
    if operation.method == "POST":
        found |= {*WITH_BODY}
    if operation.request is models.EmptyRequest:
        found -= {errors.InvalidRequest, errors.InvalidThreadId}
    return found


def _described(operation: Operation[Any, Any]) -> Callable[..., Any]:
    """A function with the signature of the operation, for FastAPI to inspect. Never called."""

    def described() -> None:
        raise AssertionError("this function only has a signature")

    parameters = _in_path(operation)
    if operation.request is not models.EmptyRequest and not parameters:
        place = Body() if operation.method == "POST" else Query()
        kind: Any = operation.request
        default: Any = inspect.Parameter.empty
        if operation.method == "POST" and _may_be_empty(operation.request):
            kind, default = operation.request | None, None
        parameters = [
            inspect.Parameter(
                "request",
                inspect.Parameter.KEYWORD_ONLY,
                annotation=Annotated[kind, place],
                default=default,
            )
        ]
    described.__name__ = operation.name
    described.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return described


def _in_path(operation: Operation[Any, Any]) -> list[inspect.Parameter]:
    """The fields that the path names. None of our paths leaves others for the query."""
    fields = operation.request.model_fields
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=Annotated[str, *field.metadata, Path(description=field.description)],
        )
        for name, field in fields.items()
        if f"{{{name}}}" in operation.path
    ]


def _may_be_empty(model: type[models.Request]) -> bool:
    try:
        model()
    except ValidationError:
        return False
    return True
