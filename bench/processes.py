"""Programs of the host, run to their end and never left behind."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ProgramFailed(Exception):
    """A program ended with an exit code other than 0."""


@asynccontextmanager
async def started(*argv: str, stdout: int = PIPE) -> AsyncIterator[Process]:
    """A running program. Who leaves early ends it."""
    process = await asyncio.create_subprocess_exec(*argv, stdin=DEVNULL, stdout=stdout)
    try:
        yield process
    finally:
        await ended(process)


async def ended(process: Process) -> None:
    """Killed, where it still runs."""
    if process.returncode is None:
        process.kill()
        await process.wait()


async def output_of(*argv: str) -> bytes:
    """What a program writes to stdout. Raises ProgramFailed."""
    async with started(*argv) as process:
        output, _ = await process.communicate()
        return _checked(process, argv, output)


async def run(*argv: str) -> None:
    """Run a program with its stdout in /dev/null. Raises ProgramFailed."""
    async with started(*argv, stdout=DEVNULL) as process:
        await process.wait()
        _checked(process, argv)


def _checked(process: Process, argv: tuple[str, ...], output: bytes = b"") -> bytes:
    if process.returncode:
        raise ProgramFailed(f"{' '.join(argv)} ended with {process.returncode}")
    return output
