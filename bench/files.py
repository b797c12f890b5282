"""How fast a file gets into a box and out again: from a file of the host and to one, as with
`docker cp`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from aiodocker.containers import DockerContainer

from bench import processes
from bench import results as r
from bench.contestants import Command, WrongAnswer
from bench.measure import orders, per_s, time_s
from bench.results import Results
from bench.stage import Stage, all_cpus
from sandbox_server.runtime.agent import BoxAgent

SIZE = 100 << 20
CHUNK = 256 << 10
_INSIDE = "/workspace/blob"


@dataclass(frozen=True)
class Mover:
    """A way in and a way out."""

    upload: Command
    download: Command


async def measure_files(stage: Stage, found: Results, *, count: int) -> None:
    with _two_paths() as (source, target):
        async with _movers(stage, source, target) as movers:
            for order in orders(list(movers), count):
                for name in order:
                    await _turn(found, name, movers[name], target)


@contextmanager
def _two_paths() -> Iterator[tuple[Path, Path]]:
    """A file to send, and a place for what comes back."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        source = Path(folder, "source")
        source.write_bytes(os.urandom(SIZE))
        yield source, Path(folder, "target")


async def _turn(found: Results, name: str, mover: Mover, target: Path) -> None:
    found.add(r.UPLOAD, name, per_s(SIZE, await time_s(mover.upload)))
    found.add(r.DOWNLOAD, name, per_s(SIZE, await time_s(mover.download)))
    _take(target)


def _take(target: Path) -> None:
    """Every download makes a new file."""
    size = target.stat().st_size
    target.unlink()
    if size != SIZE:
        raise WrongAnswer(f"{size} bytes of {SIZE} came back")


@asynccontextmanager
async def _movers(stage: Stage, source: Path, target: Path) -> AsyncIterator[dict[str, Mover]]:
    async with AsyncExitStack() as stack:
        made: dict[str, Mover] = {}
        if stage.docker is not None:
            container = await stack.enter_async_context(stage.container())
            made[r.COPY] = _docker_cp(container, source, target)
        for runtime in stage.runtimes:
            _, client = await stack.enter_async_context(stage.box(runtime))
            made[r.box(runtime)] = _in_box(client, source, target)
            _, client = await stack.enter_async_context(stage.box(runtime, all_cpus()))
            made[r.box(runtime, note=r.ALL_CPUS)] = _in_box(client, source, target)
        yield made


def _docker_cp(container: DockerContainer, source: Path, target: Path) -> Mover:
    inside = f"{container.id}:{_INSIDE}"

    async def upload() -> None:
        await processes.run("docker", "cp", str(source), inside)

    async def download() -> None:
        await processes.run("docker", "cp", inside, str(target))

    return Mover(upload, download)


def _in_box(client: BoxAgent, source: Path, target: Path) -> Mover:
    async def upload() -> None:
        stored = await client.put(_INSIDE, _chunks(source))
        if stored.size != SIZE:
            raise WrongAnswer(f"{stored.size} bytes of {SIZE} were stored")

    async def download() -> None:
        with target.open("wb") as file:
            async with client.get(_INSIDE) as chunks:
                async for chunk in chunks:
                    file.write(chunk)

    return Mover(upload, download)


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk
