"""RoutedTenants: the sandboxes of all workers of a fleet. Stateless."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from typing import TypeVar

from sandbox_sdk.protocol import models
from sandbox_sdk.protocol import operations as op
from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_sdk.protocol.errors import Conflict, RuntimeUnavailable, SandboxError
from sandbox_sdk.protocol.events import (
    AnyEvent,
    CodeErrorEvent,
    EndEvent,
    ExitEvent,
    GapEvent,
    OutputEvent,
    ResultEvent,
    StartEvent,
)
from sandbox_sdk.protocol.operations import Ans, Operation, Req
from sandbox_sdk.protocol.sandboxes import Download, EventsRequest, Sandboxes, Tenants
from sandbox_server import __version__
from sandbox_server.events.log import EventLog
from sandbox_server.fleet.all_workers import AllWorkers, FleetUsage
from sandbox_server.fleet.directory import Directory
from sandbox_server.fleet.router import Attempt, Router
from sandbox_server.fleet.workers import Presence, Worker
from sandbox_server.forking import fork
from sandbox_server.sessions.preview_address import Origin, PreviewAddress, PreviewSite
from sandbox_server.sessions.previews import SessionPreviews
from sandbox_server.storage.history import History

_HELD_S = 5.0
"""A stream that lasted this long resets the patience."""
_REPLAY_BYTES = 1 << 20
"""How much of an upload is kept for a retry."""
_WITH_OFFSET = (OutputEvent, GapEvent, ResultEvent, CodeErrorEvent)
_Aimed = TypeVar("_Aimed", bound=models.Request)
_Answer = TypeVar("_Answer")


class RoutedTenants(Tenants):
    """Serves every tenant's sandboxes on a coordinator."""

    def __init__(
        self,
        directory: Directory,
        router: Router,
        *,
        coordinator_id: str,
        history: History | None = None,
        previews_at: PreviewSite | None = None,
        usage: FleetUsage | None = None,
        events: EventLog | None = None,
    ) -> None:
        """previews_at: where this coordinator serves them; None if the workers tell. events: what
        happens at this coordinator itself."""
        self.previews_at = previews_at
        self.all = AllWorkers(directory, router, history, usage, events)
        self.directory = directory
        self._router = router
        self._id = coordinator_id
        self._began = time.monotonic()

    def __repr__(self) -> str:
        return f"<RoutedTenants {self._id} {self._router!r}>"

    def of(self, tenant: str) -> Sandboxes:
        return RoutedSandboxes(self, self._router, tenant)

    async def previews_of(self, session_id: str) -> SessionPreviews | None:
        """The previews of a session, whoever it belongs to. Raises RuntimeUnavailable."""
        return await self.directory.previews_of(session_id)

    async def health(self) -> models.Health:
        """Unhealthy if no worker serves, degraded if some do not."""
        try:
            workers, registry = await self.directory.workers(), "ok"
        except RuntimeUnavailable as exc:
            workers, registry = [], exc.message
        presence = {worker.id: self.directory.presence(worker) for worker in workers}
        here = [worker for worker in workers if presence[worker.id] == Presence.HERE]
        states = {
            worker.id: worker.phase.value if worker in here else presence[worker.id].value
            for worker in workers
        }
        checks = {"registry": registry}
        for name, state in states.items():
            checks[f"worker {name}"] = "ok" if state == "serving" else state
        missing = self.directory.missing(workers)
        checks |= {f"worker at {url}": "not registered" for url in missing}
        if not any(worker.room for worker in here):
            checks["capacity"] = "full"
        well = all(state == "ok" for state in checks.values())
        return models.Health(
            status="healthy" if well else "degraded" if here and registry == "ok" else "unhealthy",
            role="coordinator",
            worker_id=self._id,
            runtime=", ".join(sorted({worker.runtime for worker in here})) or "none",
            pool_size=sum(worker.warm for worker in here),
            active_sessions=sum(worker.sessions for worker in here),
            capacity=sum(worker.capacity for worker in here),
            version=__version__,
            uptime_s=round(time.monotonic() - self._began, 3),
            checks=checks,
            providers=list({name: None for worker in here for name in worker.providers}),
            workers=[worker_health(worker, states[worker.id]) for worker in workers],
        )


class RoutedSandboxes(Sandboxes):
    """Sends every call to the worker that has its thread."""

    def __init__(self, fleet: RoutedTenants, router: Router, tenant: str) -> None:
        self._fleet = fleet
        self._router = router
        self._tenant = tenant

    async def call(self, operation: Operation[Req, Ans], request: Req) -> Ans:
        if operation is op.HEALTH:
            return await self._fleet.health()  # type: ignore[return-value]
        if (handler := self._fleet.all.handlers.get(operation)) is not None:
            found: Ans = await handler(self._tenant, request)
            return found
        asked = operation.prepare(request) if operation.prepare else request
        if isinstance(asked, models.ForkRequest):
            return await fork(self, asked)  # type: ignore[return-value]
        repeatable = operation.repeatable(asked)
        attempt = self._attempt(asked, creates=operation.creates, repeatable=repeatable)
        if operation is op.EXPOSE:
            await self._previews_at()  # Raises if there are none, before the port is exposed.
        if isinstance(asked, models.CreateSessionRequest | models.RestoreRequest):
            attempt.only = await self._able(asked)
        answer = await self._router.route(
            attempt, lambda worker, target: worker.call(operation, _aimed(asked, target))
        )
        if (
            isinstance(answer, models.ExecuteResult | models.CodeResult)
            and answer.replayed
            and attempt.repeated
        ):
            return answer.model_copy(update={"replayed": False})  # type: ignore[return-value]
        if isinstance(answer, models.Preview) or (
            isinstance(answer, models.PreviewList) and answer.previews
        ):
            address = await self._previews_at()
            return answer if address is None else _with_urls(answer, address)
        return answer

    async def _previews_at(self) -> PreviewAddress | None:
        """Raises RuntimeUnavailable if there are none."""
        site = self._fleet.previews_at
        return None if site is None else await site()

    async def _able(
        self, asked: models.CreateSessionRequest | models.RestoreRequest
    ) -> frozenset[str] | None:
        """The workers that have the checkpoint and the volumes of a new session; None: any. Raises
        Conflict if none has both."""
        everywhere, having = self._fleet.all, None
        if isinstance(asked, models.RestoreRequest):
            thread = models.Target(thread_id=asked.thread_id)
            last = await self._fleet.directory.locate(self._tenant, thread)
            bound = await self._router.bound_to(last.record)
            having = None if bound is None else frozenset({bound})
        elif asked.volumes:
            names = [each.name for each in asked.volumes if each.name is not None]
            having = await everywhere.having(self._tenant, names) if names else None
        if not asked.checkpoint_id:
            return having
        keepers = await everywhere.keepers(self._tenant, asked.checkpoint_id)
        if keepers is None or having is None:
            return keepers if having is None else having
        if not keepers & having:
            raise Conflict("the checkpoint and the volumes are on different workers")
        return keepers & having

    def _attempt(
        self, request: models.Request, *, creates: bool = False, repeatable: bool = True
    ) -> Attempt:
        return Attempt(
            tenant=self._tenant,
            target=_target(request),
            creates=creates,
            repeatable=repeatable,
            backoff=self._router.backoff(),
            provider=request.provider if isinstance(request, models.CreateSessionRequest) else None,
            as_before=not isinstance(request, models.CreateSessionRequest),
        )

    async def events(self, request: EventsRequest) -> AsyncGenerator[AnyEvent]:
        """The events of one command, resumed over reconnects and restarts of the worker."""
        begins = isinstance(request, models.ExecuteRequest | models.RunCodeRequest)
        if isinstance(request, models.ExecuteRequest | models.RunCodeRequest):
            request = op.keyed(request)
        attempt = self._attempt(request, creates=begins)
        start: StartEvent | None = None
        while True:
            worker = await self._router.worker_of(attempt)
            connected = time.monotonic()
            try:
                async with contextlib.AsyncExitStack() as stack:
                    client = stack.enter_context(self._router.client(worker)).of(self._tenant)
                    opened = client.events(_aimed(request, attempt.target))
                    async for event in await stack.enter_async_context(contextlib.aclosing(opened)):
                        if isinstance(event, StartEvent):
                            attempt.target = models.Target(session_id=event.session_id)
                            attempt.pinned = True
                            if start is not None:
                                continue
                            if attempt.repeated:
                                event = event.model_copy(update={"replayed": False})
                            start = event
                            request = _going_on(event, request)
                        elif isinstance(event, ExitEvent | EndEvent) and start is not None:
                            event = event.of(start)
                        elif isinstance(event, _WITH_OFFSET) and start is not None:
                            request = request.model_copy(update={"offset": event.next_offset})
                        attempt.backoff.reset()
                        yield event
                return
            except SandboxError as exc:
                if time.monotonic() - connected > _HELD_S:
                    attempt.backoff.reset()  # A long silence of the command is no failure.
                await self._router.after(exc, worker, attempt)

    async def upload(
        self, request: models.UploadRequest, chunks: AsyncIterable[bytes]
    ) -> models.UploadResult:
        replay = _Replay(chunks)
        return await self._router.route(
            self._attempt(request, creates=True),
            lambda worker, target: worker.upload(_aimed(request, target), replay.chunks()),
            resendable=lambda: replay.whole,
        )

    @contextlib.asynccontextmanager
    async def download(
        self, request: models.DownloadRequest | models.ArtifactTarget
    ) -> AsyncIterator[Download]:
        async with contextlib.AsyncExitStack() as stack:
            if isinstance(request, models.ArtifactTarget):
                worker = await self._fleet.all.keeper(request.artifact_id)
                client = stack.enter_context(self._router.client(worker)).of(self._tenant)
                yield await stack.enter_async_context(client.download(request))
                return

            async def opened(worker: Sandboxes, target: models.Target | None) -> Download:
                download = worker.download(_aimed(request, target))
                return await stack.enter_async_context(download)

            yield await self._router.route(self._attempt(request), opened, until=stack)

    @contextlib.asynccontextmanager
    async def connect(self, request: models.ConnectRequest) -> AsyncIterator[ByteChannel]:
        async with contextlib.AsyncExitStack() as stack:

            async def opened(worker: Sandboxes, target: models.Target | None) -> ByteChannel:
                return await stack.enter_async_context(worker.connect(_aimed(request, target)))

            yield await self._router.route(self._attempt(request), opened, until=stack)


class _Replay:
    """Keeps the first chunks of an upload for a retry: a stopping worker refuses a request before
    it has read much of it."""

    def __init__(self, chunks: AsyncIterable[bytes]) -> None:
        self._rest = aiter(chunks)
        self._kept: list[bytes] = []
        self._size = 0

    @property
    def whole(self) -> bool:
        """Whether everything read so far can be sent again."""
        return self._size <= _REPLAY_BYTES

    async def chunks(self) -> AsyncIterator[bytes]:
        """All chunks, from the beginning for each try."""
        for chunk in list(self._kept):
            yield chunk
        async for chunk in self._rest:
            self._size += len(chunk)
            if self.whole:
                self._kept.append(chunk)
            else:
                self._kept.clear()
            yield chunk


def _with_urls(answer: Ans, address: PreviewAddress) -> Ans:
    """An answer about previews, with the URLs that they have here."""
    if isinstance(answer, models.Preview):
        url = address.url(Origin(answer.session_id, answer.port), answer.token)
        return answer.model_copy(update={"url": url})
    if isinstance(answer, models.PreviewList):
        listed = [_with_urls(each, address) for each in answer.previews]
        return answer.model_copy(update={"previews": listed})
    return answer


def worker_health(worker: Worker, state: str) -> models.WorkerHealth:
    return models.WorkerHealth(
        worker_id=worker.id,
        state=state,
        runtime=worker.runtime,
        sessions=worker.sessions,
        capacity=worker.capacity,
        warm=worker.warm,
        version=worker.version,
    )


def _target(request: models.Request) -> models.Target | None:
    """The thread or session of a request. None for a new session without a thread_id."""
    if isinstance(request, models.Target):
        return models.Target(thread_id=request.thread_id, session_id=request.session_id)
    if isinstance(request, models.CreateSessionRequest) and request.thread_id is not None:
        return models.Target(thread_id=request.thread_id)
    return None


def _aimed(request: _Aimed, target: models.Target | None) -> _Aimed:
    """The request for the session in which an earlier try may have begun."""
    if target is None or target.session_id is None or not isinstance(request, models.Target):
        return request
    return request.model_copy(update=dict(target))


def _going_on(event: StartEvent, request: EventsRequest) -> models.FollowRequest:
    offset = request.offset if isinstance(request, models.FollowRequest) else 0
    of_code = isinstance(request, models.RunCodeRequest | models.FollowCodeRequest)
    follow = models.FollowCodeRequest if of_code else models.FollowRequest
    return follow(
        session_id=event.session_id,
        command_id=event.command_id,
        offset=offset,
        encoding="utf-8" if isinstance(request, models.RunCodeRequest) else request.encoding,
    )
