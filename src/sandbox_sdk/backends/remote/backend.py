"""RemoteBackend itself: a line or two for every operation."""

from __future__ import annotations

import contextlib
import os
import ssl
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator
from typing import Any, TypeVar

from anyio.lowlevel import current_token
from pydantic import ValidationError

from sandbox_sdk.backends.base import Download, Sandboxes, to_run
from sandbox_sdk.backends.remote.events import events_of
from sandbox_sdk.backends.remote.forms import (
    UploadForm,
    download_info,
    stdin_pieces,
    stdin_text,
)
from sandbox_sdk.backends.remote.listing import read_listing
from sandbox_sdk.backends.remote.patience import FIRST_CONTACT_S
from sandbox_sdk.backends.remote.server import Call, Server
from sandbox_sdk.protocol.errors import Internal, Unreachable
from sandbox_sdk.protocol.events import CommandEvent
from sandbox_sdk.protocol.models import (
    COMMAND_TIMEOUT_S,
    DEFAULT_TENANT,
    WORKSPACE,
    CleanupResult,
    CommandInfo,
    CommandList,
    CreateSessionRequest,
    ExecuteRequest,
    ExecuteResult,
    Health,
    ListResult,
    Model,
    Request,
    Session,
    SessionInfo,
    SessionList,
    SignalName,
    SignalRequest,
    StdinReceipt,
    StdinRequest,
    Target,
    UploadResult,
    Verdict,
)

DEFAULT_URL = "http://127.0.0.1:8000"
_AT_ONCE = 128 * 1024
_Answer = TypeVar("_Answer", bound=Model)


class RemoteBackend(Sandboxes):
    """A server somewhere else, `http(s)://…`, or on this machine, `unix:///path/of/its/socket`.

    Use as an async context manager, or close it. Several may use one: the last closes it.

    url and api_key: by default those in SANDBOX_URL and SANDBOX_API_KEY. The tenant is the one of
    the key; the argument of the interface is not sent, unless for_tenants.

    retry_for_s: how long a call is repeated while the server restarts, is full or wants to be asked
    later, always in a way that nothing is done twice. 0: never. A server that has never answered is
    given up sooner.

    read_timeout_s: how long the server may take for an answer, beyond the timeout of a command.

    verify: False trusts any certificate; a context of your own trusts what it says.

    for_tenants: calls are sent on for the tenant that they name. Only a coordinator's key may.

    nearby: for many calls to a server that is reached without a proxy, at a third of the CPU time.
    Takes aiohttp, which a server has.
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
        for_tenants: bool = False,
        nearby: bool = False,
    ) -> None:
        self._server = Server(
            url or os.environ.get("SANDBOX_URL") or DEFAULT_URL,
            api_key=api_key or os.environ.get("SANDBOX_API_KEY"),
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=read_timeout_s,
            retry_for_s=retry_for_s,
            verify=verify,
            nearby=nearby,
        )
        self._for_tenants = for_tenants
        self._command_timeout_s = COMMAND_TIMEOUT_S
        self._health_for_s = min(retry_for_s, FIRST_CONTACT_S)
        self._users: Counter[object] = Counter()

    def __repr__(self) -> str:
        return f"<RemoteBackend {self._server.url}>"

    async def __aenter__(self) -> RemoteBackend:
        self._users[current_token()] += 1
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._users[current_token()] -= 1
        if not self._users[current_token()]:
            await self.close()

    async def close(self) -> None:
        """Close the connections of this event loop."""
        self._users.pop(current_token(), None)
        await self._server.close()

    # Sessions

    async def create_session(
        self, request: CreateSessionRequest, *, tenant: str = DEFAULT_TENANT
    ) -> Session:
        repeatable = request.thread_id is not None
        return await self._post(
            "/create_session", request, Session, tenant=tenant, repeatable=repeatable
        )

    async def session(self, target: Target, *, tenant: str = DEFAULT_TENANT) -> SessionInfo:
        return await self._get("/session", SessionInfo, target, tenant=tenant)

    async def sessions(self, *, tenant: str = DEFAULT_TENANT) -> SessionList:
        return await self._get("/sessions", SessionList, tenant=tenant)

    async def cleanup(self, target: Target, *, tenant: str = DEFAULT_TENANT) -> CleanupResult:
        return await self._post("/cleanup", target, CleanupResult, tenant=tenant)

    async def health(self) -> Health:
        call = Call(method="GET", path="/health", repeatable=True, accepts=(503,))
        return _checked(Health, await self._server.ask(call, retry_for_s=self._health_for_s))

    # Commands

    async def execute(
        self, request: ExecuteRequest, *, tenant: str = DEFAULT_TENANT
    ) -> ExecuteResult:
        keyed = _keyed(to_run(request))
        try:
            return await self._run(keyed, tenant)
        except Unreachable as exc:
            # By default commands may take longer there than was thought. The key joins this one.
            unsaid = exc.silent and request.timeout is None
            if not (unsaid and await self._learn_timeout(keyed, tenant)):
                raise
            return await self._run(keyed, tenant)

    async def _run(self, request: ExecuteRequest, tenant: str) -> ExecuteResult:
        timeout_s = request.timeout or self._command_timeout_s
        work_s = 0.0 if request.background else timeout_s
        return await self._post(
            "/execute", request, ExecuteResult, tenant=tenant, repeatable=True, work_s=work_s
        )

    async def _learn_timeout(self, request: ExecuteRequest, tenant: str) -> bool:
        """Whether the server gives a command more time than was thought, where it is not told."""
        target = Target(thread_id=request.thread_id, session_id=request.session_id)
        told_s = (await self.session(target, tenant=tenant)).limits.command_timeout_s
        longer = told_s > self._command_timeout_s
        self._command_timeout_s = max(told_s, self._command_timeout_s)
        return longer

    async def check(self, request: ExecuteRequest, *, tenant: str = DEFAULT_TENANT) -> Verdict:
        dry = request.model_copy(update={"dry_run": True})
        return await self._post("/execute", dry, Verdict, tenant=tenant, repeatable=True)

    def stream(
        self, request: ExecuteRequest, *, tenant: str = DEFAULT_TENANT
    ) -> AsyncGenerator[CommandEvent]:
        body = _body(_keyed(to_run(request)))
        return events_of(self._server, body, tenant=self._named(tenant))

    def follow(
        self, target: Target, command_id: str, *, offset: int = 0, tenant: str = DEFAULT_TENANT
    ) -> AsyncGenerator[CommandEvent]:
        return events_of(
            self._server,
            _body(target),
            tenant=self._named(tenant),
            command_id=command_id,
            offset=offset,
        )

    async def result(
        self, target: Target, command_id: str, *, tenant: str = DEFAULT_TENANT
    ) -> ExecuteResult:
        return await self._get(
            "/command", ExecuteResult, target, tenant=tenant, command_id=command_id
        )

    async def commands(self, target: Target, *, tenant: str = DEFAULT_TENANT) -> CommandList:
        return await self._get("/commands", CommandList, target, tenant=tenant)

    async def signal(
        self,
        target: Target,
        command_id: str,
        *,
        signal: SignalName = "TERM",
        tenant: str = DEFAULT_TENANT,
    ) -> CommandInfo:
        request = SignalRequest(**_body(target), command_id=command_id, signal=signal)
        # A handler must not run twice. There is none for KILL.
        repeatable = signal == "KILL"
        return await self._post(
            "/command/signal", request, CommandInfo, tenant=tenant, repeatable=repeatable
        )

    async def send_stdin(
        self,
        target: Target,
        command_id: str,
        data: bytes,
        *,
        eof: bool = False,
        offset: int | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> StdinReceipt:
        pieces = stdin_pieces(data)
        for number, piece in enumerate(pieces, start=1):
            text, encoding = stdin_text(piece)
            request = StdinRequest(
                **_body(target),
                command_id=command_id,
                data=text,
                encoding=encoding,
                eof=eof and number == len(pieces),
                offset=offset,
            )
            receipt = await self._post(
                "/command/stdin",
                request,
                StdinReceipt,
                tenant=tenant,
                repeatable=offset is not None,
            )
            offset = None if offset is None else offset + len(piece)
        return receipt

    # Files

    async def upload_file(
        self,
        target: Target,
        path: str,
        chunks: AsyncIterable[bytes],
        *,
        tenant: str = DEFAULT_TENANT,
    ) -> UploadResult:
        form = UploadForm({**_body(target), "path": path}, chunks)
        call = Call(
            method="POST",
            path="/upload_file",
            headers={"content-type": form.content_type},
            content=form.content,
            tenant=self._named(tenant),
        )
        return _checked(UploadResult, await self._server.ask(call))

    @contextlib.asynccontextmanager
    async def download_file(
        self, target: Target, path: str, *, tenant: str = DEFAULT_TENANT
    ) -> AsyncIterator[Download]:
        params = {**_body(target), "path": path}
        call = Call(
            method="GET",
            path="/download_file",
            params=params,
            repeatable=True,
            tenant=self._named(tenant),
        )
        async with self._server.open(call) as answer:
            chunks = self._server.chunks(call, answer)
            yield Download(download_info(path, answer.headers), chunks)

    async def list_files(
        self,
        target: Target,
        *,
        path: str = WORKSPACE,
        recursive: bool = False,
        limit: int = 1000,
        tenant: str = DEFAULT_TENANT,
    ) -> ListResult:
        params = {**_body(target), "path": path, "recursive": recursive, "limit": limit}
        call = Call(
            method="GET",
            path="/list_files",
            params=params,
            repeatable=True,
            tenant=self._named(tenant),
        )
        body = await self._server.ask(call)
        if len(body) <= _AT_ONCE:
            return _checked(ListResult, body)
        with _understood():
            return await read_listing(body)

    # Together

    def _named(self, tenant: str) -> str | None:
        """Whose call it is, where the server is told."""
        return tenant if self._for_tenants else None

    async def _get(
        self,
        route: str,
        model: type[_Answer],
        target: Target | None = None,
        *,
        tenant: str,
        **more: Any,
    ) -> _Answer:
        params = {**(_body(target) if target else {}), **more}
        call = Call(
            method="GET", path=route, params=params, repeatable=True, tenant=self._named(tenant)
        )
        return _checked(model, await self._server.ask(call))

    async def _post(
        self,
        route: str,
        request: Request,
        model: type[_Answer],
        *,
        tenant: str,
        repeatable: bool = False,
        work_s: float = 0.0,
    ) -> _Answer:
        call = Call(
            method="POST",
            path=route,
            json=_body(request),
            repeatable=repeatable,
            work_s=work_s,
            tenant=self._named(tenant),
        )
        return _checked(model, await self._server.ask(call))


def _body(request: Request) -> dict[str, Any]:
    """Only what was asked for: a server of an earlier version refuses fields it does not know."""
    return request.model_dump(mode="json", exclude_defaults=True)


def _keyed(request: ExecuteRequest) -> ExecuteRequest:
    """Under a key it may be asked for any number of times, and runs once."""
    key = request.idempotency_key or uuid.uuid4().hex
    return request.model_copy(update={"idempotency_key": key})


def _checked(model: type[_Answer], body: bytes) -> _Answer:
    with _understood():
        return model.model_validate_json(body)


@contextlib.contextmanager
def _understood() -> Iterator[None]:
    try:
        yield
    except ValueError as exc:
        count = exc.error_count() if isinstance(exc, ValidationError) else 1
        raise Internal(f"the server's answer is not understood: {count} errors") from exc
