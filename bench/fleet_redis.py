"""A Redis of a benchmark's own, and what it tells of its work."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import tempfile
import time
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from dataclasses import dataclass

from redis.asyncio import Redis
from redis.exceptions import RedisError

from bench.processes import ended

_READY_S = 60.0


@contextlib.asynccontextmanager
async def redis_server() -> AsyncIterator[str]:
    """The url of one on a free port, with the persistence that a fleet should have."""
    program = os.environ.get("SANDBOX_TEST_REDIS") or shutil.which("redis-server")
    if program is None:
        raise RuntimeError("no redis-server on this machine")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="bench-fleet-") as folder:
        process = await asyncio.create_subprocess_exec(
            program, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder,
            "--appendonly", "yes", "--save", "", stdout=DEVNULL,
        )  # fmt: skip
        try:
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            await ended(process)


@contextlib.asynccontextmanager
async def redis_client(url: str) -> AsyncIterator[Redis]:
    """A connection to one that may still be starting."""
    deadline = time.monotonic() + _READY_S
    async with Redis.from_url(url) as client:
        while True:
            try:
                await client.ping()
                break
            except RedisError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)
        yield client


@dataclass(frozen=True)
class Counters:
    """What a Redis has done so far."""

    commands: float
    reads: float
    """How often it read from a connection: once for each question."""
    bytes_in: float
    bytes_out: float
    cpu_s: float
    memory: float
    at: float

    @classmethod
    async def read(cls, client: Redis) -> Counters:
        info = await client.info()
        return cls(
            commands=info["total_commands_processed"],
            reads=info["total_reads_processed"],
            bytes_in=info["total_net_input_bytes"],
            bytes_out=info["total_net_output_bytes"],
            cpu_s=info["used_cpu_user"] + info["used_cpu_sys"],
            memory=info["used_memory"],
            at=time.monotonic(),
        )


@dataclass(frozen=True)
class Cost:
    """What one call, or one second, costs Redis."""

    round_trips: float = 0.0
    commands: float = 0.0
    """Those that scripts give are counted too."""
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    cpu_us: float = 0.0

    @classmethod
    def between(
        cls, before: Counters, after: Counters, *, count: float, anyway: Cost | None = None
    ) -> Cost:
        """`anyway` is what a second costs in which nothing is asked for."""
        seconds = after.at - before.at
        idle = anyway or cls()

        def each(gained: float, idling: float) -> float:
            return max(gained - idling * seconds, 0.0) / count

        return cls(
            round_trips=each(after.reads - before.reads, idle.round_trips),
            commands=each(after.commands - before.commands, idle.commands),
            bytes_in=each(after.bytes_in - before.bytes_in, idle.bytes_in),
            bytes_out=each(after.bytes_out - before.bytes_out, idle.bytes_out),
            cpu_us=each(1e6 * (after.cpu_s - before.cpu_s), idle.cpu_us),
        )
