"""A real Redis of a test's own."""

import asyncio
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from redis.asyncio import Redis

from sandbox_server.fleet.store import Store
from tests.ports import free_port


def redis_program() -> str | None:
    """None where there is no Redis: the end of the run says so."""
    return os.environ.get("SANDBOX_TEST_REDIS") or shutil.which("redis-server")


async def up_for_long(store: Store) -> None:
    """As if this Redis had been up for long: a new one is not believed at once."""
    run_id = (await store.uptime(outage_s=60, keep_s=600)).run_id
    now = await store.now_ms()
    await store.set(store.marker_key, f"{run_id} 0", ttl_s=600)
    for field, value in {"born": 0, "last": now, "since": 0, "most": 0}.items():
        await store.set_field(store.uptime_key, field, str(value))


class RedisServer:
    """A process that can be stopped, killed, started again and emptied."""

    def __init__(
        self, folder: Path, *, persistent: bool = False, options: Sequence[str] = ()
    ) -> None:
        """options: more words for its command line."""
        self.folder = folder
        self._options = ["--appendonly", "yes"] if persistent else ["--save", ""]
        self._options += options
        self._process: asyncio.subprocess.Process | None = None
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"

    async def start(self) -> None:
        program = redis_program()
        assert program, "no redis-server on this machine"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._process = await asyncio.create_subprocess_exec(
            program, "--port", str(self.port), "--bind", "127.0.0.1",
            "--dir", str(self.folder), "--logfile", str(self.folder / "redis.log"),
            *self._options, stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        async with asyncio.timeout(30), Redis(port=self.port) as client:
            while True:
                try:
                    await client.ping()
                    return
                except OSError:
                    await asyncio.sleep(0.02)
                except Exception as exc:
                    if "LOADING" not in str(exc) and "onnect" not in str(exc):
                        raise
                    await asyncio.sleep(0.02)

    async def stop(self, *, politely: bool = False) -> None:
        """Like a machine that is switched off: kill -9. Politely, it writes everything down."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(signal.SIGTERM if politely else signal.SIGKILL)
            await self._process.wait()

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def flush(self) -> None:
        async with Redis(port=self.port) as client:
            await client.flushall()

    async def keys_without_ttl(self) -> list[str]:
        async with Redis(port=self.port, decode_responses=True) as client:
            return [key async for key in client.scan_iter() if await client.pttl(key) < 0]

    async def everything(self) -> str:
        """All names of keys, as one text."""
        async with Redis(port=self.port, decode_responses=True) as client:
            return "\n".join([key async for key in client.scan_iter()])
