"""Programs of this machine that are asked for something short."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE


async def output_of(*words: str) -> bytes:
    """What a program prints. If cancelled, it is killed and waited for. Raises OSError."""
    process = await asyncio.create_subprocess_exec(
        *words, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    return output
