"""A server on embedded boxes, for pages that need no more than one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator


@contextlib.asynccontextmanager
async def server(state: str, **settings: str) -> AsyncIterator[str]:
    """Its url. settings: without SANDBOX_, in lower case."""
    own = {"runtime": "bubblewrap", "state_dir": state, "port": "0", "destroy_on_exit": "1",
           "pool_size": "2", **settings}  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sandbox_server", "--json",
        env={**os.environ, **{f"SANDBOX_{name.upper()}": value for name, value in own.items()}},
        stdout=PIPE, stderr=DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield json.loads(await process.stdout.readline())["url"]
    finally:
        process.terminate()
        await process.wait()
