"""How fast the output of a command arrives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

from aiodocker.containers import DockerContainer

from bench import processes
from bench import results as r
from bench.contestants import Command, WrongAnswer
from bench.measure import orders, per_s, time_s
from bench.results import Results
from bench.stage import Stage, all_cpus
from sandbox_server.runtime.agent import BoxAgent, Output

SIZE = 100 << 20
SCRIPT = f"head -c {SIZE} /dev/zero"
_TIMEOUT_S = 300.0


async def measure_stdout(stage: Stage, found: Results, *, count: int) -> None:
    async with _contestants(stage) as contestants:
        for order in orders(list(contestants), count):
            for name in order:
                found.add(r.STDOUT, name, per_s(SIZE, await time_s(contestants[name])))


@asynccontextmanager
async def _contestants(stage: Stage) -> AsyncIterator[dict[str, Command]]:
    async with AsyncExitStack() as stack:
        made: dict[str, Command] = {}
        if stage.docker is not None:
            container = await stack.enter_async_context(stage.container())
            free = await stack.enter_async_context(stage.container(all_cpus()))
            made[r.EXEC_CLI] = _exec_cli(container)
            made[f"{r.EXEC_CLI}, {r.ALL_CPUS}"] = _exec_cli(free)
            made[r.EXEC_API] = _exec_api(container)
        for runtime in stage.runtimes:
            _, client = await stack.enter_async_context(stage.box(runtime))
            made[r.box(runtime)] = _in_box(client)
            _, client = await stack.enter_async_context(stage.box(runtime, all_cpus()))
            made[r.box(runtime, note=r.ALL_CPUS)] = _in_box(client)
        yield made


def _exec_cli(container: DockerContainer) -> Command:
    async def command() -> None:
        await processes.run("docker", "exec", container.id, "bash", "-c", SCRIPT)

    return command


def _exec_api(container: DockerContainer) -> Command:
    async def command() -> None:
        made = await container.exec(["bash", "-c", SCRIPT])
        size = 0
        async with made.start() as stream:
            while message := await stream.read_out():
                size += len(message.data)
        _check(size)

    return command


def _in_box(client: BoxAgent) -> Command:
    async def command() -> None:
        size = 0
        async with aclosing(client.stream(SCRIPT, timeout_s=_TIMEOUT_S)) as events:
            async for event in events:
                if isinstance(event, Output):
                    size += len(event.data)
        _check(size)

    return command


def _check(size: int) -> None:
    if size != SIZE:
        raise WrongAnswer(f"{size} bytes of {SIZE} arrived")
