"""Waiting for what a test is about to rely on, instead of for a while."""

import asyncio

from sandbox_server.runtime.warden import WardenClient

PATIENCE_S = 30.0


async def until_running(warden: WardenClient, count: int = 1) -> None:
    """Returns when so many commands run in a box."""
    async with asyncio.timeout(PATIENCE_S):
        while sum(command.running for command in (await warden.state()).commands) < count:
            await asyncio.sleep(0.02)
