"""What the service adds to a box: calls over HTTP and in-process, next to the bare box and to
llm-sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from bench import peer
from bench import results as r
from bench.contestants import Command, WrongAnswer, in_box
from bench.latency import PAUSE_S, take_turn
from bench.load import has_hey, measure_burst, measure_cold, measure_load
from bench.measure import Action, orders, time_ms
from bench.results import Results
from bench.served import NAMES, Server, ready, server, service
from bench.stage import Stage
from sandbox_sdk.protocol.models import CreateSessionRequest, ExecuteRequest, Target
from sandbox_sdk.protocol.sandboxes import Sandboxes

SETTLE_S = 0.4
"""Until an engine is done with the boxes that came and went."""
POOL = 5


def lacking() -> list[str]:
    """What of it cannot be measured here, and how it could be."""
    return [
        *([] if peer.installed() else ["llm-sandbox: not installed (make setup)"]),
        *([] if has_hey() else ["hey: not installed (apt-get install hey)"]),
    ]


async def measure_service(
    stage: Stage,
    found: Results,
    *,
    rounds: int,
    batch: int,
    creates: int,
    firsts: int,
    cold_rounds: int,
) -> None:
    runtimes = [name for name in stage.runtimes if name in NAMES]
    await _measure_execute(stage, found, runtimes, rounds=rounds, batch=batch)
    for runtime in runtimes:
        await _measure_create(stage, found, runtime, count=creates)
    await _measure_first(stage, found, runtimes, count=firsts)
    for runtime in runtimes:
        await measure_burst(stage, found, runtime)
        if has_hey():
            await measure_load(stage, found, runtime)
    if r.RUNC in runtimes:
        await measure_cold(stage, found, rounds=cold_rounds)


async def _measure_execute(
    stage: Stage, found: Results, runtimes: list[str], *, rounds: int, batch: int
) -> None:
    async with _executors(stage, runtimes) as contestants:
        for order in orders(list(contestants), rounds):
            for name in order:
                await take_turn(found, r.EXECUTE, name, contestants[name], batch, PAUSE_S)


@asynccontextmanager
async def _executors(stage: Stage, runtimes: list[str]) -> AsyncIterator[dict[str, Command]]:
    async with AsyncExitStack() as stack:
        made: dict[str, Command] = {}
        if stage.docker is not None and peer.installed():
            made[r.LLM_SANDBOX] = await stack.enter_async_context(peer.session(stage))
        for runtime in runtimes:
            _, box = await stack.enter_async_context(stage.box(runtime))
            made[r.box(runtime)] = await in_box(box)
            inside = await stack.enter_async_context(service(stage, runtime, pool=1))
            made[r.in_process(runtime)] = await _execute(inside)
            at, client = await stack.enter_async_context(server(stage, runtime, pool=1))
            made[r.by_sdk(runtime)] = await _execute(client)
            made[r.over_http(runtime)] = _execute_at(at)
        yield made


async def _execute(sandboxes: Sandboxes) -> Command:
    """As in a bare box: x was set by the command before."""
    await sandboxes.execute(ExecuteRequest(thread_id="bench", command="x=hi"))

    async def command() -> None:
        result = await sandboxes.execute(ExecuteRequest(thread_id="bench", command="echo $x"))
        if (result.stdout, result.exit_code) != ("hi\n", 0):
            raise WrongAnswer(result.output)

    return command


def _execute_at(at: Server) -> Command:
    async def command() -> None:
        result = await at.post("/execute", thread_id="bench", command="echo $x")
        if (result["stdout"], result["exit_code"]) != ("hi\n", 0):
            raise WrongAnswer(str(result))

    return command


async def _measure_create(stage: Stage, found: Results, runtime: str, *, count: int) -> None:
    """One at a time, each with the pool full and the machine done with filling it."""
    async with (
        service(stage, runtime, pool=POOL) as inside,
        server(stage, runtime, pool=POOL) as (at, client),
    ):
        request = CreateSessionRequest(thread_id="bench")
        ways: dict[str, tuple[Sandboxes, Action]] = {
            r.in_process(runtime): (inside, lambda: inside.create_session(request)),
            r.over_http(runtime): (client, lambda: at.post("/create_session", thread_id="bench")),
        }
        for order in orders(list(ways), count):
            for name in order:
                sandboxes, create = ways[name]
                for other, _ in ways.values():  # Both fill their pools on the same cores.
                    await ready(other, pool=POOL)
                await asyncio.sleep(SETTLE_S)
                found.add(r.CREATE, name, await time_ms(create))
                await sandboxes.cleanup(Target(thread_id="bench"))


async def _measure_first(stage: Stage, found: Results, runtimes: list[str], *, count: int) -> None:
    async with AsyncExitStack() as stack:
        ways: dict[str, tuple[Sandboxes, int]] = {}
        for runtime in runtimes:
            for note, pool in (("", POOL), (", no pool", 0)):
                _, client = await stack.enter_async_context(server(stage, runtime, pool=pool))
                ways[f"{r.over_http(runtime)}{note}"] = client, pool
        names = [*([r.LLM_SANDBOX] if stage.docker and peer.installed() else []), *ways]
        for order in orders(names, count):
            for name in order:
                took_ms = await (
                    _first_of_peer(stage) if name == r.LLM_SANDBOX else _first(*ways[name])
                )
                found.add(r.FIRST, name, took_ms)


async def _first(sandboxes: Sandboxes, pool: int) -> float:
    await ready(sandboxes, pool=pool)

    async def both() -> None:
        await sandboxes.create_session(CreateSessionRequest(thread_id="first"))
        result = await sandboxes.execute(ExecuteRequest(thread_id="first", command="echo hi"))
        if result.output != "hi\n":
            raise WrongAnswer(result.output)

    took_ms = await time_ms(both)
    await sandboxes.cleanup(Target(thread_id="first"))
    return took_ms


async def _first_of_peer(stage: Stage) -> float:
    async with AsyncExitStack() as stack:

        async def both() -> None:
            await (await stack.enter_async_context(peer.session(stage)))()

        return await time_ms(both)
