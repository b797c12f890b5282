"""Crossing: a Sandboxes that lives in the background loop, for callers in any event loop."""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator

from sandbox_sdk.backends.base import Download, Sandboxes
from sandbox_sdk.background import Background, coming_from
from sandbox_sdk.protocol.events import CommandEvent
from sandbox_sdk.protocol.models import (
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
    Session,
    SessionInfo,
    SessionList,
    SignalName,
    StdinReceipt,
    Target,
    UploadResult,
    Verdict,
)


class Crossing(Sandboxes):
    """Every call is carried over into the background loop, and what it returns back."""

    _background: Background

    @abstractmethod
    async def _place(self) -> Sandboxes:
        """Where calls go. Asked in the background loop, for every call anew."""

    async def create_session(
        self, request: CreateSessionRequest, *, tenant: str = DEFAULT_TENANT
    ) -> Session:
        async def call() -> Session:
            return await (await self._place()).create_session(request, tenant=tenant)

        return await self._background.cross(call)

    async def execute(
        self, request: ExecuteRequest, *, tenant: str = DEFAULT_TENANT
    ) -> ExecuteResult:
        async def call() -> ExecuteResult:
            return await (await self._place()).execute(request, tenant=tenant)

        return await self._background.cross(call)

    def stream(
        self, request: ExecuteRequest, *, tenant: str = DEFAULT_TENANT
    ) -> AsyncGenerator[CommandEvent]:
        async def events() -> AsyncGenerator[CommandEvent]:
            async for event in (await self._place()).stream(request, tenant=tenant):
                yield event

        return self._background.cross_each(events)

    def follow(
        self, target: Target, command_id: str, *, offset: int = 0, tenant: str = DEFAULT_TENANT
    ) -> AsyncGenerator[CommandEvent]:
        async def events() -> AsyncGenerator[CommandEvent]:
            place = await self._place()
            async for event in place.follow(target, command_id, offset=offset, tenant=tenant):
                yield event

        return self._background.cross_each(events)

    async def check(self, request: ExecuteRequest, *, tenant: str = DEFAULT_TENANT) -> Verdict:
        async def call() -> Verdict:
            return await (await self._place()).check(request, tenant=tenant)

        return await self._background.cross(call)

    async def result(
        self, target: Target, command_id: str, *, tenant: str = DEFAULT_TENANT
    ) -> ExecuteResult:
        async def call() -> ExecuteResult:
            return await (await self._place()).result(target, command_id, tenant=tenant)

        return await self._background.cross(call)

    async def commands(self, target: Target, *, tenant: str = DEFAULT_TENANT) -> CommandList:
        async def call() -> CommandList:
            return await (await self._place()).commands(target, tenant=tenant)

        return await self._background.cross(call)

    async def signal(
        self,
        target: Target,
        command_id: str,
        *,
        signal: SignalName = "TERM",
        tenant: str = DEFAULT_TENANT,
    ) -> CommandInfo:
        async def call() -> CommandInfo:
            place = await self._place()
            return await place.signal(target, command_id, signal=signal, tenant=tenant)

        return await self._background.cross(call)

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
        async def call() -> StdinReceipt:
            return await (await self._place()).send_stdin(
                target, command_id, data, eof=eof, offset=offset, tenant=tenant
            )

        return await self._background.cross(call)

    async def upload_file(
        self,
        target: Target,
        path: str,
        chunks: AsyncIterable[bytes],
        *,
        tenant: str = DEFAULT_TENANT,
    ) -> UploadResult:
        brought = coming_from(asyncio.get_running_loop(), chunks)

        async def call() -> UploadResult:
            return await (await self._place()).upload_file(target, path, brought, tenant=tenant)

        return await self._background.cross(call)

    @contextlib.asynccontextmanager
    async def download_file(
        self, target: Target, path: str, *, tenant: str = DEFAULT_TENANT
    ) -> AsyncIterator[Download]:
        stack = contextlib.AsyncExitStack()

        async def enter() -> Download:
            opened = (await self._place()).download_file(target, path, tenant=tenant)
            return await stack.enter_async_context(opened)

        async def pieces() -> AsyncGenerator[bytes]:
            async for chunk in download.chunks:
                yield chunk

        try:
            download = await self._background.cross(enter)
            yield Download(download.info, self._background.cross_each(pieces))
        finally:
            await self._background.cross(stack.aclose)

    async def list_files(
        self,
        target: Target,
        *,
        path: str = WORKSPACE,
        recursive: bool = False,
        limit: int = 1000,
        tenant: str = DEFAULT_TENANT,
    ) -> ListResult:
        async def call() -> ListResult:
            return await (await self._place()).list_files(
                target, path=path, recursive=recursive, limit=limit, tenant=tenant
            )

        return await self._background.cross(call)

    async def session(self, target: Target, *, tenant: str = DEFAULT_TENANT) -> SessionInfo:
        async def call() -> SessionInfo:
            return await (await self._place()).session(target, tenant=tenant)

        return await self._background.cross(call)

    async def sessions(self, *, tenant: str = DEFAULT_TENANT) -> SessionList:
        async def call() -> SessionList:
            return await (await self._place()).sessions(tenant=tenant)

        return await self._background.cross(call)

    async def cleanup(self, target: Target, *, tenant: str = DEFAULT_TENANT) -> CleanupResult:
        async def call() -> CleanupResult:
            return await (await self._place()).cleanup(target, tenant=tenant)

        return await self._background.cross(call)

    async def health(self) -> Health:
        async def call() -> Health:
            return await (await self._place()).health()

        return await self._background.cross(call)
