"""RemoteBackend: the sandboxes of a server, over HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from typing import Any, Self
from urllib.parse import quote

from anyio.lowlevel import current_token
from pydantic import ValidationError

from sandbox_sdk.backends.remote.bodies import UploadForm, download_info, read_listing
from sandbox_sdk.backends.remote.events import events_of
from sandbox_sdk.backends.remote.retry import FIRST_CONTACT_S
from sandbox_sdk.backends.remote.server import Call, Server
from sandbox_sdk.backends.remote.spans import begin_call, ending
from sandbox_sdk.backends.remote.websocket_channel import WebSocketChannel
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_sdk.protocol.errors import Internal, Unreachable
from sandbox_sdk.protocol.events import AnyEvent
from sandbox_sdk.protocol.models import (
    KERNEL_S,
    MAX_TIMEOUT_S,
    ArtifactTarget,
    CallToolRequest,
    CodeResult,
    ConnectRequest,
    ContextTarget,
    CreateContextRequest,
    DownloadRequest,
    ExecuteRequest,
    ExecuteResult,
    FileChangesRequest,
    FollowCodeRequest,
    FollowRequest,
    HappeningsRequest,
    Health,
    ListResult,
    OutputEncoding,
    RemoveRequest,
    RenameRequest,
    Request,
    RunCodeRequest,
    Target,
    UploadRequest,
    UploadResult,
    WatchFilesRequest,
    field_errors,
    told,
)
from sandbox_sdk.protocol.operations import Ans, Operation, Req
from sandbox_sdk.protocol.sandboxes import Download, EventsRequest, Sandboxes, Tenants
from sandbox_sdk.tracing import Span

DEFAULT_URL = "http://127.0.0.1:8000"
_AT_ONCE = 128 * 1024
_ENDLESS_S = 30 * 86400.0
"""How long a command without a time limit is waited for."""
FOLDER_S = 600.0
"""How long a server may take to move, remove or watch a folder, whatever is in it."""
_TIMED = (ExecuteRequest, RunCodeRequest)
_REPLAYED = (ExecuteResult, CodeResult)
_STREAMS: dict[type[EventsRequest], str] = {
    ExecuteRequest: "stream",
    FollowRequest: "follow",
    RunCodeRequest: "stream_code",
    FollowCodeRequest: "follow_code",
}


class _Remote(Sandboxes):
    """The sandboxes of one tenant: that of the API key, or the one named in every call."""

    def __init__(
        self, server: Server, *, tenant: str | None = None, begins_traces: bool = True
    ) -> None:
        """begins_traces: else a call has a span only where its caller has one."""
        self._server = server
        self._tenant = tenant
        self._begins_traces = begins_traces

    def _span(self, name: str, method: str, path: str, request: Request) -> Span:
        return begin_call(name, self._server.place, method, path, request, root=self._begins_traces)

    async def call(self, operation: Operation[Req, Ans], request: Req) -> Ans:
        if operation.prepare is not None:
            request = operation.prepare(request)
        with self._span(operation.name, operation.method, operation.path, request) as span:
            return await self._called(operation, request, span)

    async def _called(self, operation: Operation[Req, Ans], request: Req, span: Span) -> Ans:
        try:
            return await self._ask(operation, request, span)
        except Unreachable as exc:
            # The server's default timeout may be longer than we assumed. With its idempotency
            # key the repeat joins the command that runs.
            default = isinstance(request, _TIMED) and request.timeout is None
            if not (exc.silent and default and await self._learn_timeout(request)):
                raise
            return await self._ask(operation, request, span, repeated=True)

    async def _ask(
        self, operation: Operation[Req, Ans], request: Req, span: Span, *, repeated: bool = False
    ) -> Ans:
        path, fields = _placed(operation.path, _body(request))
        call = Call(
            method=operation.method,
            path=path,
            repeatable=operation.repeatable(request),
            work_s=self._work_s(request),
            tenant=self._tenant,
            accepts=(503,) if operation.answer is Health else (),
            json=fields if operation.method == "POST" else None,
            params=fields if operation.method == "GET" else None,
            span=span,
        )
        # Health is for finding out soon whether a server is there at all.
        retry_for_s = FIRST_CONTACT_S if operation.answer is Health else None
        body = await self._server.ask(call, at_most_s=retry_for_s)
        answer = await _understood(operation.answer, body, self._server.url)
        if isinstance(answer, _REPLAYED) and answer.replayed and (repeated or call.repeated):
            # By this call itself, as far as can be known.
            return answer.model_copy(update={"replayed": False})  # type: ignore[return-value]
        return answer

    def _work_s(self, request: Request) -> float:
        """How long the server may work on it before it answers."""
        if isinstance(request, HappeningsRequest | FileChangesRequest):
            return request.wait
        if isinstance(request, RenameRequest | RemoveRequest | WatchFilesRequest):
            return FOLDER_S
        if isinstance(request, CallToolRequest):
            return MAX_TIMEOUT_S  # Only the server knows the timeout of a declared tool.
        if isinstance(request, CreateContextRequest | ContextTarget):
            return KERNEL_S
        if isinstance(request, RunCodeRequest):
            return (request.timeout or self._server.command_timeout_s) + KERNEL_S
        if not isinstance(request, ExecuteRequest) or request.background or request.dry_run:
            return 0.0
        if request.timeout == 0:
            return _ENDLESS_S
        return request.timeout or self._server.command_timeout_s

    async def _learn_timeout(self, request: Any) -> bool:
        """Ask for the server's default timeout. Whether it is longer than was assumed."""
        target = Target(thread_id=request.thread_id, session_id=request.session_id)
        timeout_s = (await self.session(target)).limits.command_timeout_s
        longer = timeout_s > self._server.command_timeout_s
        self._server.command_timeout_s = max(timeout_s, self._server.command_timeout_s)
        return longer

    async def events(self, request: EventsRequest) -> AsyncGenerator[AnyEvent]:
        of_code = isinstance(request, RunCodeRequest | FollowCodeRequest)
        path = op.RUN_CODE.path if of_code else op.EXECUTE.path
        span = self._span(_STREAMS[type(request)], "POST", path, request)
        async with ending(span), contextlib.aclosing(self._events(path, request, span)) as events:
            async for event in events:
                yield event

    def _events(self, path: str, request: EventsRequest, span: Span) -> AsyncGenerator[AnyEvent]:
        if isinstance(request, ExecuteRequest | RunCodeRequest):
            body = _body(op.keyed(request))
            return events_of(
                self._server,
                path,
                body,
                tenant=self._tenant,
                encoding=_encoding(request),
                span=span,
            )
        return events_of(
            self._server,
            path,
            request.model_dump(include={"thread_id", "session_id"}, exclude_none=True),
            tenant=self._tenant,
            command_id=request.command_id,
            offset=request.offset,
            encoding=_encoding(request),
            span=span,
        )

    async def upload(self, request: UploadRequest, chunks: AsyncIterable[bytes]) -> UploadResult:
        form = UploadForm(_form(request), chunks)
        with self._span("upload_file", "POST", "/upload_file", request) as span:
            call = Call(
                method="POST",
                path="/upload_file",
                headers={"content-type": form.content_type},
                content=form.content,
                tenant=self._tenant,
                span=span,
            )
            return await _understood(UploadResult, await self._server.ask(call), self._server.url)

    @contextlib.asynccontextmanager
    async def download(self, request: DownloadRequest | ArtifactTarget) -> AsyncIterator[Download]:
        is_file = isinstance(request, DownloadRequest)
        path = "/download_file" if is_file else "/artifact"
        name = "download_file" if is_file else "download_artifact"
        call = Call(
            method="GET",
            path=path,
            params=_body(request),
            repeatable=True,
            tenant=self._tenant,
            span=self._span(name, "GET", path, request),
        )
        async with ending(call.span), self._server.open(call) as answer:
            chunks = self._server.chunks(call, answer)
            named = request.path if isinstance(request, DownloadRequest) else request.artifact_id
            yield Download(download_info(named, answer.headers), chunks)

    @contextlib.asynccontextmanager
    async def connect(self, request: ConnectRequest) -> AsyncIterator[ByteChannel]:
        call = Call(
            method="GET",
            path="/connect",
            params=_body(request),
            tenant=self._tenant,
            span=self._span("connect", "GET", "/connect", request),
        )
        async with ending(call.span), self._server.websocket(call) as socket:
            channel = WebSocketChannel(socket, self._server.url)
            await channel.opened()
            yield channel


class RemoteBackend(_Remote):
    """A server somewhere else, `http(s)://…`, or on this machine, `unix:///path/of/its/socket`.

    Use it as an async context manager, or close it. If several enter one, the last to leave closes
    it.

    url and api_key: by default those in SANDBOX_URL and SANDBOX_API_KEY.

    retry_for_s: how long a call is retried while the server restarts or is full, such that nothing
    is done twice. 0: never. A server that has never answered is given up sooner.

    read_timeout_s: how long the server may take for an answer, beyond the timeout of a command.

    verify: False trusts any certificate; an SSLContext decides for itself.

    nearby: the server is reached without a proxy, whatever HTTP_PROXY says.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float = 60.0,
        retry_for_s: float = 30.0,
        verify: bool | ssl.SSLContext = True,
        nearby: bool = False,
    ) -> None:
        server = Server(
            url or os.environ.get("SANDBOX_URL") or DEFAULT_URL,
            api_key=api_key or os.environ.get("SANDBOX_API_KEY"),
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=read_timeout_s,
            retry_for_s=retry_for_s,
            verify=verify,
            nearby=nearby,
        )
        super().__init__(server)
        self._users: Counter[object] = Counter()

    def __repr__(self) -> str:
        return f"<RemoteBackend {self._server.url}>"

    async def __aenter__(self) -> Self:
        self._users[current_token()] += 1
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._users[current_token()] -= 1
        if not self._users[current_token()]:
            await self.close()

    async def close(self) -> None:
        """Close the connections of this event loop. Calls without an answer fail."""
        self._users.pop(current_token(), None)
        await self._server.close()


class RemoteTenants(Tenants):
    """A worker as its coordinator uses it: the coordinator says for which tenant a call is.

    Close it. A failed call is not retried here: another worker may have its thread by then.
    """

    def __init__(self, url: str, *, fleet_key: str | None) -> None:
        self._server = Server(url, fleet_key=fleet_key, retry_for_s=0, nearby=True)

    def __repr__(self) -> str:
        return f"<RemoteTenants {self._server.url}>"

    def of(self, tenant: str) -> Sandboxes:
        return _Remote(self._server, tenant=tenant, begins_traces=False)

    async def health(self) -> Health:
        return await _Remote(self._server, begins_traces=False).health()

    async def close(self) -> None:
        """Close the connections of this event loop."""
        await self._server.close()


def _placed(path: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The path with the fields it names, and the other fields."""
    for name in [name for name in fields if f"{{{name}}}" in path]:
        path = path.replace(f"{{{name}}}", quote(str(fields[name]), safe=""))
        fields = {each: value for each, value in fields.items() if each != name}
    return path, fields


def _form(request: UploadRequest) -> dict[str, str]:
    fields = _body(request)
    if "metadata" in fields:
        fields["metadata"] = json.dumps(fields["metadata"])
    return fields


def _body(request: Request) -> dict[str, Any]:
    """Without defaults: a server of an earlier version refuses fields it does not know."""
    return request.model_dump(mode="json", exclude_defaults=True)


async def _understood(model: type[Ans], body: bytes, url: str) -> Ans:
    """The answer in a body. Raises Internal."""
    try:
        if issubclass(model, ListResult) and len(body) > _AT_ONCE:
            return await read_listing(body)  # type: ignore[return-value]
        return model.model_validate_json(body)
    except ValueError as exc:
        wrong = str(exc)
        if isinstance(exc, ValidationError):
            wrong = told(field_errors(exc.errors(include_url=False)))
        raise Internal(
            f"invalid answer from {url}, which is not a sandbox server, or one of another version:"
            f" {wrong[:500]}"
        ) from exc


def _encoding(request: EventsRequest) -> OutputEncoding:
    return request.encoding if isinstance(request, ExecuteRequest | FollowRequest) else "utf-8"
