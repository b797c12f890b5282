"""`python -m bench.server [FILE]`: the server as users run it. With a file, it also writes down how
late its event loop is: a line for every sample, in milliseconds."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from sandbox_sdk.protocol.sandboxes import Tenants
from sandbox_server import logs
from sandbox_server.event_loop import run_server
from sandbox_server.main import serve
from sandbox_server.previews.opening import PreviewPort
from sandbox_server.settings import load

EVERY_S = 0.02


async def main(files: list[str]) -> None:
    settings = load()
    logs.configure(form=settings.log_format, level=settings.log_level)
    watching = [asyncio.create_task(write_lag(Path(file))) for file in files]
    try:
        await serve(settings, on_listening=_nothing)
    finally:
        for task in watching:
            task.cancel()


async def _nothing(url: str, tenants: Tenants, previews: PreviewPort | None) -> None:
    """Nobody waits for a greeting."""


async def write_lag(path: Path) -> None:
    clock = asyncio.get_running_loop().time
    with path.open("w", buffering=1) as file:
        while True:
            due = clock() + EVERY_S
            await asyncio.sleep(EVERY_S)
            file.write(f"{1000 * max(clock() - due, 0):.3f}\n")


if __name__ == "__main__":
    run_server(main(sys.argv[1:]))
