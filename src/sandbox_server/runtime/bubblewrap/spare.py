"""The spare: one bare box that is ready for the next start."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.runtime.bubblewrap.bare import BareBox
from sandbox_server.runtime.bubblewrap.setup import Setup
from sandbox_server.runtime.bubblewrap.state import StateFolder
from sandbox_server.runtime.bubblewrap.zygote import Zygote

log = structlog.get_logger(__name__)

AFTER_S = 0.01
"""When the next spare is made: until then, the user of a new box waits for its first answer."""


class Spare:
    """remove: ends a box in any stage of its start, given its folder."""

    def __init__(self, state: StateFolder, remove: Callable[[Path], Awaitable[None]]) -> None:
        self._state = state
        self._remove = remove
        self._closing = asyncio.Event()
        self._making: asyncio.Task[BareBox | None] | None = None

    def __repr__(self) -> str:
        ready = self._making is not None and self._making.done()
        return f"<Spare {'ready' if ready else 'none'}>"

    async def take(self) -> BareBox | None:
        """None if there is none yet, or it has ended."""
        if self._making is None or not self._making.done():
            return None
        bare, self._making = self._making.result(), None
        if bare is None or bare.alive():
            return bare
        bare.close()
        await self._remove(bare.folder)
        return None

    def make(self, setup: Setup, zygote: Zygote) -> None:
        """Have one made in the background, if there is none."""
        if self._making is None:
            self._making = asyncio.create_task(self._make(setup, zygote))

    async def _make(self, setup: Setup, zygote: Zygote) -> BareBox | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AFTER_S):
                await self._closing.wait()
                return None
        folder = None
        try:
            folder = self._state.new_box()
            return await asyncio.to_thread(BareBox.start, folder, setup, self._state, zygote)
        except (OSError, RuntimeUnavailable) as exc:
            log.warning("spare.failed", why=str(exc))
            if folder is not None:
                await self._remove(folder)
            return None

    async def close(self) -> None:
        """End it. Idempotent."""
        self._closing.set()
        bare = await self._making if self._making is not None else None
        self._making = None
        if bare is not None:
            bare.close()
            await self._remove(bare.folder)
