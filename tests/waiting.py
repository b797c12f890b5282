"""Waiting for what a test is about to rely on, instead of for a while."""

import asyncio
from collections.abc import Awaitable, Callable

from sandbox_server.runtime.warden import WardenClient

PATIENCE_S = 30.0


async def until_running(warden: WardenClient, count: int = 1) -> None:
    """Returns when so many commands run in a box."""
    async with asyncio.timeout(PATIENCE_S):
        while sum(command.running for command in (await warden.state()).commands) < count:
            await asyncio.sleep(0.02)


async def until_true(condition: Callable[[], Awaitable[bool]]) -> None:
    """Returns when a condition is met."""
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():
            await asyncio.sleep(0.02)
