"""Crossing: a Sandboxes that lives in the background loop, for callers in any event loop."""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator

from sandbox_sdk.background import Background, coming_from
from sandbox_sdk.protocol.channels import ByteChannel
from sandbox_sdk.protocol.events import AnyEvent
from sandbox_sdk.protocol.models import (
    ArtifactTarget,
    ConnectRequest,
    DownloadRequest,
    UploadRequest,
    UploadResult,
)
from sandbox_sdk.protocol.operations import Ans, Operation, Req
from sandbox_sdk.protocol.sandboxes import Download, EventsRequest, Sandboxes


class Crossing(Sandboxes):
    """Every call runs in the background loop, and its result is handed back to the caller's."""

    _background: Background

    @abstractmethod
    async def _place(self) -> Sandboxes:
        """Where calls go. Runs in the background loop, for every call."""

    async def call(self, operation: Operation[Req, Ans], request: Req) -> Ans:
        async def there() -> Ans:
            return await (await self._place()).call(operation, request)

        return await self._background.cross(there)

    def events(self, request: EventsRequest) -> AsyncGenerator[AnyEvent]:
        async def there() -> AsyncGenerator[AnyEvent]:
            async for event in (await self._place()).events(request):
                yield event

        return self._background.cross_each(there)

    async def upload(self, request: UploadRequest, chunks: AsyncIterable[bytes]) -> UploadResult:
        brought = coming_from(asyncio.get_running_loop(), chunks)

        async def there() -> UploadResult:
            return await (await self._place()).upload(request, brought)

        return await self._background.cross(there)

    @contextlib.asynccontextmanager
    async def download(self, request: DownloadRequest | ArtifactTarget) -> AsyncIterator[Download]:
        stack = contextlib.AsyncExitStack()

        async def enter() -> Download:
            opened = (await self._place()).download(request)
            return await stack.enter_async_context(opened)

        async def pieces() -> AsyncGenerator[bytes]:
            async for chunk in download.chunks:
                yield chunk

        try:
            download = await self._background.cross(enter)
            yield Download(download.info, self._background.cross_each(pieces))
        finally:
            await self._background.cross(stack.aclose)

    @contextlib.asynccontextmanager
    async def connect(self, request: ConnectRequest) -> AsyncIterator[ByteChannel]:
        stack = contextlib.AsyncExitStack()

        async def enter() -> ByteChannel:
            return await stack.enter_async_context((await self._place()).connect(request))

        try:
            yield _CrossingChannel(self._background, await self._background.cross(enter))
        finally:
            await self._background.cross(stack.aclose)


class _CrossingChannel(ByteChannel):
    def __init__(self, background: Background, channel: ByteChannel) -> None:
        self._background = background
        self._channel = channel

    async def read(self) -> bytes:
        return await self._background.cross(self._channel.read)

    async def write(self, data: bytes) -> None:
        await self._background.cross(lambda: self._channel.write(data))

    async def end(self) -> None:
        await self._background.cross(self._channel.end)
