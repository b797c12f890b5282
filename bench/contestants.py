"""Ways to run a trivial command. Each checks its answer: a fast wrong one does not count."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from aiodocker.containers import DockerContainer

from bench import processes
from bench import results as r
from bench.stage import Stage
from sandbox_server.runtime.agent import BoxAgent

Command = Callable[[], Awaitable[None]]
SCRIPT = "echo hi"


class WrongAnswer(Exception):
    """A contestant did not do what it was asked for."""


@asynccontextmanager
async def commands(stage: Stage) -> AsyncIterator[dict[str, Command]]:
    """Every contestant this machine can offer, by its name."""
    async with AsyncExitStack() as stack:
        made: dict[str, Command] = {r.HOST: host_bash()}
        if stage.docker is not None:
            container = await stack.enter_async_context(stage.container())
            made[r.EXEC_CLI] = exec_cli(container)
            made[r.EXEC_API] = exec_api(container)
        for runtime in stage.runtimes:
            _, client = await stack.enter_async_context(stage.box(runtime))
            made[r.box(runtime)] = await in_box(client)
        yield made


def host_bash() -> Command:
    async def command() -> None:
        _check(await processes.output_of("bash", "-c", SCRIPT), b"hi\n")

    return command


def exec_cli(container: DockerContainer) -> Command:
    async def command() -> None:
        argv = ("docker", "exec", container.id, "bash", "-c", SCRIPT)
        _check(await processes.output_of(*argv), b"hi\n")

    return command


def exec_api(container: DockerContainer) -> Command:
    """What a program needs for an answer: create, start, read to the end, ask for the exit code."""

    async def command() -> None:
        made = await container.exec(["bash", "-c", SCRIPT])
        output = b""
        async with made.start() as stream:
            while message := await stream.read_out():
                output += message.data
        about = await made.inspect()
        _check(output, b"hi\n")
        _check(about["ExitCode"] or 0, 0)

    return command


async def in_box(client: BoxAgent) -> Command:
    """The only contestant whose commands know of each other: x was set by one before."""
    await client.run("x=hi")

    async def command() -> None:
        result = await client.run("echo $x")
        _check(result.stdout, "hi\n")
        _check(result.exit_code, 0)

    return command


def _check(answer: object, wanted: object) -> None:
    if answer != wanted:
        raise WrongAnswer(f"{answer!r} instead of {wanted!r}")
