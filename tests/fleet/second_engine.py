"""A Docker engine of its own: to a fleet, another machine."""

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

IMAGE = "sandbox-secure:latest"
PATIENCE_S = 60.0


class SecondEngine:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.host = f"unix://{folder}/docker.sock"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        settings = self._folder / "daemon.json"
        # Not those of this machine. Boxes outlive the engine, unless they are told to go, too.
        settings.write_text('{"live-restore": true}')
        with (self._folder / "log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                "dockerd", "--config-file", str(settings),
                "--data-root", str(self._folder / "data"),
                "--exec-root", str(self._folder / "exec"), "--pidfile", str(self._folder / "pid"),
                "-H", self.host, "--bridge=none", "--iptables=false", "--ip-forward=false",
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        async with asyncio.timeout(PATIENCE_S):
            while await self._run("docker", "-H", self.host, "version") != 0:
                await asyncio.sleep(0.1)
        if await self._run("docker", "-H", self.host, "image", "inspect", IMAGE) != 0:
            copied = f"docker save {IMAGE} | docker -H {self.host} load"
            assert await self._run("sh", "-c", copied) == 0

    async def restart(self) -> None:
        """The engine alone; its boxes live on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        await self._process.wait()
        await self.start()

    async def switch_off(self) -> None:
        """The machine is gone: its boxes first, then its engine."""
        if self._process is None or self._process.returncode is not None:
            return
        every = f"docker -H {self.host} ps -aq | xargs -r docker -H {self.host} rm -f"
        await self._run("sh", "-c", every)
        self._process.send_signal(signal.SIGTERM)
        await self._process.wait()
        self._end_late_boxes()

    def _end_late_boxes(self) -> None:
        """A box that was just being made when the others went is in no list of the engine's. What
        watches over a box names this engine's socket, and its box is its child."""
        command_lines = {int(each.name): _read(each / "cmdline") for each in _processes()}
        watchers = {pid for pid, line in command_lines.items() if f"{self._folder}/exec" in line}
        for each in _processes():
            parent = _read(each / "stat").rpartition(")")[2].split()[1:2]
            if parent and int(parent[0]) in watchers:
                watchers.add(int(each.name))
        for pid in watchers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def remove(self) -> None:
        await self.switch_off()
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            place = line.split()[4]
            if place.startswith(str(self._folder)):
                await self._run("umount", "-l", place)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _run(self, *command: str) -> int:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        return await process.wait()


def _processes() -> list[Path]:
    return sorted(Path("/proc").glob("[0-9]*"), key=lambda each: int(each.name))


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


@contextlib.asynccontextmanager
async def second_engine() -> AsyncIterator[SecondEngine]:
    # The paths of its sockets must be short.
    engine = SecondEngine(Path(tempfile.mkdtemp(prefix="sandbox-machine-")))
    try:
        await engine.start()
        yield engine
    finally:
        await engine.remove()


def can_be_had() -> bool:
    """An engine takes root, and the image of the first one."""
    runtimes = os.environ.get("SANDBOX_TEST_RUNTIMES", "").split(",")
    return "docker" in runtimes and os.geteuid() == 0 and shutil.which("dockerd") is not None
