"""RemoteBackend: Sandboxes over HTTP. The only place that knows httpx."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from email.message import Message
from typing import Any, TypeVar
from urllib.parse import unquote

import httpx
from pydantic import TypeAdapter, ValidationError

from sandbox_sdk.backends.base import Download, Sandboxes, to_run
from sandbox_sdk.protocol.errors import Internal, RuntimeUnavailable, SandboxError
from sandbox_sdk.protocol.events import CommandEvent, event_id
from sandbox_sdk.protocol.models import (
    DEFAULT_TENANT,
    WORKSPACE,
    CleanupResult,
    CreateSessionRequest,
    DownloadInfo,
    ExecuteRequest,
    ExecuteResult,
    Health,
    ListResult,
    Model,
    Session,
    SessionInfo,
    Target,
    UploadResult,
    Verdict,
)

_CONNECT_S = 5.0
_ANSWER_S = 60.0
_Answer = TypeVar("_Answer", bound=Model)
_EVENT: TypeAdapter[CommandEvent] = TypeAdapter(CommandEvent)


class RemoteBackend(Sandboxes):
    """A server somewhere else. Use as an async context manager, or close it.

    The tenant is the one of the API key; the argument of the interface is not sent.
    """

    def __init__(self, url: str | None = None, *, api_key: str | None = None) -> None:
        url = url or os.environ.get("SANDBOX_URL") or "http://127.0.0.1:8000"
        api_key = api_key or os.environ.get("SANDBOX_API_KEY")
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(_ANSWER_S, connect=_CONNECT_S, pool=None)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        self._client = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=timeout, limits=limits
        )

    def __repr__(self) -> str:
        return f"<RemoteBackend {self._client.base_url}>"

    async def __aenter__(self) -> RemoteBackend:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.aclose()

    async def create_session(
        self, request: CreateSessionRequest, *, tenant: str = DEFAULT_TENANT
    ) -> Session:
        return await self._post("/create_session", request, Session)

    async def execute(
        self, request: ExecuteRequest, *, tenant: str = DEFAULT_TENANT
    ) -> ExecuteResult:
        return await self._post("/execute", to_run(request), ExecuteResult, wait_s=request.timeout)

    async def check(self, request: ExecuteRequest, *, tenant: str = DEFAULT_TENANT) -> Verdict:
        return await self._post("/execute", request.model_copy(update={"dry_run": True}), Verdict)

    async def stream(
        self, request: ExecuteRequest, *, tenant: str = DEFAULT_TENANT
    ) -> AsyncGenerator[CommandEvent]:
        async for event in self._events(to_run(request).model_dump(exclude_none=True), {}):
            yield event

    async def follow(
        self, target: Target, command_id: str, *, offset: int = 0, tenant: str = DEFAULT_TENANT
    ) -> AsyncGenerator[CommandEvent]:
        body = target.model_dump(exclude_none=True)
        resume = {"last-event-id": event_id(command_id, offset)}
        async for event in self._events(body, resume):
            yield event

    async def _events(
        self, body: dict[str, Any], headers: dict[str, str]
    ) -> AsyncGenerator[CommandEvent]:
        headers = {"accept": "text/event-stream", **headers}
        async with self._streamed("POST", "/execute", json=body, headers=headers) as answer:
            name, data = "", ""
            async for line in answer.aiter_lines():
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    data = value
                elif not line and data:
                    yield _event(name, data)
                    name = data = ""

    async def upload_file(
        self,
        target: Target,
        path: str,
        chunks: AsyncIterable[bytes],
        *,
        tenant: str = DEFAULT_TENANT,
    ) -> UploadResult:
        boundary = os.urandom(16).hex()
        fields = {**target.model_dump(exclude_none=True), "path": path}
        with _translated():
            answer = await self._client.post(
                "/upload_file",
                content=_multipart(boundary, fields, chunks),
                headers={"content-type": f"multipart/form-data; boundary={boundary}"},
                timeout=None,
            )
        return _answer(answer, UploadResult)

    @contextlib.asynccontextmanager
    async def download_file(
        self, target: Target, path: str, *, tenant: str = DEFAULT_TENANT
    ) -> AsyncIterator[Download]:
        params = {**target.model_dump(exclude_none=True), "path": path}
        async with self._streamed("GET", "/download_file", params=params) as answer:
            yield Download(_download_info(path, answer.headers), _chunks(answer))

    async def list_files(
        self,
        target: Target,
        *,
        path: str = WORKSPACE,
        recursive: bool = False,
        limit: int = 1000,
        tenant: str = DEFAULT_TENANT,
    ) -> ListResult:
        more = {"path": path, "recursive": recursive, "limit": limit}
        return await self._get("/list_files", target, ListResult, more)

    async def session(self, target: Target, *, tenant: str = DEFAULT_TENANT) -> SessionInfo:
        return await self._get("/session", target, SessionInfo)

    async def cleanup(self, target: Target, *, tenant: str = DEFAULT_TENANT) -> CleanupResult:
        return await self._post("/cleanup", target, CleanupResult)

    async def health(self) -> Health:
        with _translated():
            answer = await self._client.get("/health")
        return Health.model_validate_json(answer.content)

    async def _post(
        self, path: str, request: Any, model: type[_Answer], *, wait_s: float = 0.0
    ) -> _Answer:
        timeout = httpx.Timeout(_ANSWER_S + wait_s, connect=_CONNECT_S, pool=None)
        with _translated():
            answer = await self._client.post(
                path, json=request.model_dump(exclude_none=True), timeout=timeout
            )
        return _answer(answer, model)

    async def _get(
        self, path: str, target: Target, model: type[_Answer], more: dict[str, Any] | None = None
    ) -> _Answer:
        params = {**target.model_dump(exclude_none=True), **(more or {})}
        with _translated():
            answer = await self._client.get(path, params=params)
        return _answer(answer, model)

    @contextlib.asynccontextmanager
    async def _streamed(
        self, method: str, path: str, **options: Any
    ) -> AsyncIterator[httpx.Response]:
        with _translated():
            async with self._client.stream(method, path, timeout=None, **options) as answer:
                if answer.is_error:
                    await answer.aread()
                    raise _error(answer)
                yield answer


@contextlib.contextmanager
def _translated() -> Any:
    """httpx's errors stay in this file."""
    try:
        yield
    except httpx.HTTPError as exc:
        raise RuntimeUnavailable(
            f"the server cannot be reached or broke off ({type(exc).__name__}: {exc}); try again"
        ) from exc


def _answer(answer: httpx.Response, model: type[_Answer]) -> _Answer:
    if answer.is_error:
        raise _error(answer)
    try:
        return model.model_validate_json(answer.content)
    except ValidationError as exc:
        raise Internal(
            f"the server's answer is not understood: {exc.error_count()} errors"
        ) from exc


def _error(answer: httpx.Response) -> SandboxError:
    try:
        return _told_error(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        return Internal(f"the server answered {answer.status_code} without saying why")


def _told_error(body: dict[str, Any]) -> SandboxError:
    return SandboxError.from_wire(str(body["code"]), str(body["message"]), body.get("details"))


def _event(name: str, data: str) -> CommandEvent:
    try:
        body = json.loads(data)
        if name == "error":
            raise _told_error(body.get("error", body))
        return _EVENT.validate_python({"event": name, **body})
    except (ValueError, KeyError, TypeError) as exc:
        raise Internal("the server sent an event that is not understood") from exc


async def _multipart(
    boundary: str, fields: dict[str, str], chunks: AsyncIterable[bytes]
) -> AsyncIterator[bytes]:
    head = "".join(
        f'--{boundary}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    )
    yield head.encode()
    yield (
        f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="upload"\r\n'
        "content-type: application/octet-stream\r\n\r\n"
    ).encode()
    async for chunk in chunks:
        yield chunk
    yield f"\r\n--{boundary}--\r\n".encode()


async def _chunks(answer: httpx.Response) -> AsyncIterator[bytes]:
    with _translated():
        async for chunk in answer.aiter_raw():
            yield chunk


def _download_info(path: str, headers: httpx.Headers) -> DownloadInfo:
    disposition = Message()
    disposition["content-disposition"] = headers.get("content-disposition", "")
    folder = headers.get("content-type", "").startswith("application/x-tar")
    name = disposition.get_filename() or path.rstrip("/").rpartition("/")[2]
    return DownloadInfo(
        filename=name.removesuffix(".tar") if folder else name,
        path=unquote(headers.get("x-sandbox-path", path)),
        type="directory" if folder else "file",
        size=None if folder else int(headers.get("content-length", 0)),
        sha256=headers.get("etag", "").strip('"') or None,
        modified_at=headers.get("x-sandbox-modified-at", "1970-01-01T00:00:00Z"),
    )
