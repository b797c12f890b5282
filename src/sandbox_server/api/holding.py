"""An answer that holds something open for as long as it is being sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class HoldingResponse(StreamingResponse):
    """Leaves `held` when the answer has been sent, or could not be."""

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        *,
        held: AsyncExitStack,
        headers: dict[str, str],
        media_type: str,
    ) -> None:
        super().__init__(chunks, headers=headers, media_type=media_type)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._held:
            await super().__call__(scope, receive, send)
