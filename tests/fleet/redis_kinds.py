"""The kinds of Redis that a fleet may have: one, one that sentinels choose, a cluster."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from redis.asyncio import Redis

from tests.fleet.redis_server import RedisServer, redis_program
from tests.ports import free_port

SLOTS = 16384
PATIENCE_S = 30.0
SENTINEL = """\
bind 127.0.0.1
port {port}
dir {folder}
logfile {folder}/sentinel.log
sentinel monitor sandboxes 127.0.0.1 {master} 1
sentinel down-after-milliseconds sandboxes 500
sentinel failover-timeout sandboxes 3000
"""


@contextlib.asynccontextmanager
async def one(folder: Path) -> AsyncIterator[str]:
    """Its url."""
    async with _running(RedisServer(folder)) as server:
        yield server.url


@contextlib.asynccontextmanager
async def watched(folder: Path) -> AsyncIterator[tuple[str, RedisServer]]:
    """A server with a replica, and a sentinel that makes it take over. Its url, and the server."""
    async with contextlib.AsyncExitStack() as stack:
        master = await stack.enter_async_context(_running(RedisServer(folder / "master")))
        follows = ["--replicaof", "127.0.0.1", str(master.port)]
        await stack.enter_async_context(_running(RedisServer(folder / "replica", options=follows)))
        port = await stack.enter_async_context(_sentinel(folder, master.port))
        yield f"redis+sentinel://127.0.0.1:{port}/sandboxes", master


@contextlib.asynccontextmanager
async def cluster(folder: Path, *, nodes: int = 3) -> AsyncIterator[str]:
    """Its url. Every node has its share of the slots."""
    async with contextlib.AsyncExitStack() as stack:
        servers, buses = [], []
        for number in range(nodes):
            buses.append(free_port())
            server = RedisServer(
                folder / str(number),
                options=["--cluster-enabled", "yes", "--cluster-port", str(buses[-1])],
            )
            servers.append(await stack.enter_async_context(_running(server)))
        for number, server in enumerate(servers):
            async with Redis(port=server.port, decode_responses=True) as client:
                first, after = (SLOTS * n // nodes for n in (number, number + 1))
                await client.execute_command("CLUSTER ADDSLOTSRANGE", first, after - 1)
                await client.execute_command("CLUSTER MEET", "127.0.0.1", servers[0].port, buses[0])
        for server in servers:
            await _until(server.port, "CLUSTER INFO", "ok", name="cluster_state")
        yield f"redis+cluster://127.0.0.1:{servers[0].port}"


@contextlib.asynccontextmanager
async def _running(server: RedisServer) -> AsyncIterator[RedisServer]:
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def _sentinel(folder: Path, master: int) -> AsyncIterator[int]:
    port, config = free_port(), folder / "sentinel.conf"
    config.write_text(SENTINEL.format(port=port, folder=folder, master=master))
    process = await asyncio.create_subprocess_exec(
        str(redis_program()), str(config), "--sentinel", stdout=asyncio.subprocess.DEVNULL
    )
    try:
        # It looks for replicas of its own accord, every ten seconds or when it has just begun.
        await _until(port, "SENTINEL MASTER", "1", "sandboxes", name="num-slaves")
        yield port
    finally:
        process.kill()
        await process.wait()


async def _until(port: int, command: str, wanted: str, *words: str, name: str) -> None:
    async with asyncio.timeout(PATIENCE_S), Redis(port=port, decode_responses=True) as client:
        while True:
            with contextlib.suppress(OSError, ConnectionError):
                told = await client.execute_command(command, *words)
                if str(told.get(name)) == wanted:
                    return
            await asyncio.sleep(0.05)
