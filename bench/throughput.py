"""How many commands one machine runs, what each costs it, and how late the latest are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from bench import callers, cpu, flames, peer
from bench import results as r
from bench.contestants import SCRIPT, Command, exec_api, host_bash, in_box
from bench.latency import PAUSE_S
from bench.measure import orders, time_ms
from bench.memory import family
from bench.results import Results
from bench.served import NAMES, Server, server, service
from bench.stage import Stage
from sandbox_sdk.protocol.models import CreateSessionRequest, ExecuteRequest
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_server.pool.plan import PoolSettings
from sandbox_server.runtime.base import Box
from sandbox_server.runtime.bubblewrap.state import Record, StateFolder
from sandbox_server.runtime.docker.config import container_name

CALLERS = (1, 8, 32, 128)
_FEW = 8
"""Most sessions of llm-sandbox at once: each needs a container of its own."""
_BUSY = 8
"""Callers while flame graphs are taken."""
_AT_ONCE = PoolSettings().concurrency


async def measure_throughput(
    stage: Stage, found: Results, *, seconds: float, commands: int, starts: int
) -> None:
    runtimes = [name for name in stage.runtimes if name in NAMES]
    for runtime in runtimes:
        await _measure_server(stage, found, runtime, seconds=seconds, commands=commands)
    await _measure_others(stage, found, seconds=seconds)
    await _measure_tight(stage, found, runtimes, count=commands)
    for runtime in runtimes:
        found.add(r.STARTS, r.box(runtime), await _starts_per_s(stage, runtime, starts))


async def _measure_server(
    stage: Stage, found: Results, runtime: str, *, seconds: float, commands: int
) -> None:
    name = r.over_http(runtime)
    async with server(stage, runtime, pool=0) as (at, client):
        threads = await _sessions(client, max(CALLERS))
        for count in CALLERS:
            bodies = [{"thread_id": thread, "command": SCRIPT} for thread in threads[:count]]
            began, busy = time.perf_counter(), cpu.of_machine()
            tally = await callers.call(at.url, bodies, wanted='"hi\\n"', for_s=seconds)
            whole_s, busy = time.perf_counter() - began, cpu.of_machine() - busy
            found.add(r.RATE, r.with_callers(name, count), len(tally.took_ms) / whole_s)
            found.add(r.RATE_LATENCY, r.with_callers(name, count), *tally.took_ms)
            found.add(r.FAILED, r.with_callers(name, count), tally.failed)
            if count == 1:
                found.add(r.CPU_MACHINE, name, 1000 * busy / len(tally.took_ms))
        in_server = await _server_cpu_ms(at, threads[0], commands)
        await _host_cpu(found, commands)  # Beside each of ours: a machine may become slower.
        bodies = [{"thread_id": thread, "command": SCRIPT} for thread in threads[:_BUSY]]
        load = asyncio.create_task(callers.call(at.url, bodies, wanted="hi", for_s=flames.TAKES_S))
        await flames.take(found, f"server_{NAMES[runtime]}", at.pid)
        await load
    await _measure_box_cpu(stage, found, runtime, in_server, commands)


async def _sessions(client: Sandboxes, count: int) -> list[str]:
    threads = [f"caller-{number}" for number in range(count)]
    slots = asyncio.Semaphore(_AT_ONCE)

    async def create(thread: str) -> None:
        async with slots:
            await client.create_session(CreateSessionRequest(thread_id=thread))
            await client.execute(ExecuteRequest(thread_id=thread, command=SCRIPT))

    await asyncio.gather(*map(create, threads))
    return threads


async def _server_cpu_ms(at: Server, thread: str, count: int) -> float:
    before = cpu.of_process(at.pid)
    for _ in range(count):
        await asyncio.sleep(PAUSE_S)
        await at.post("/execute", thread_id=thread, command=SCRIPT)
    return 1000 * (cpu.of_process(at.pid) - before) / count


async def _measure_box_cpu(
    stage: Stage, found: Results, runtime: str, in_server_ms: float, count: int
) -> None:
    async with stage.box(runtime) as (box, client):
        command = await in_box(client)
        for _ in range(_BUSY):
            await command()
        warden = await _warden_pid(stage, runtime, box)
        used, own = await client.usage(), cpu.of_one_thread(warden)
        for _ in range(count):
            await asyncio.sleep(PAUSE_S)
            await command()
        own = 1000 * (cpu.of_one_thread(warden) - own) / count
        whole = 1000 * ((await client.usage()).cpu_s - used.cpu_s) / count
        found.add(r.CPU, f"server: {runtime}", in_server_ms)
        found.add(r.CPU, f"warden: {runtime}", own)
        found.add(r.CPU, f"shell and the rest of the box: {runtime}", whole - own)
        found.add(r.CPU, r.server_and_box(runtime), in_server_ms + whole)
        load = asyncio.create_task(_repeat(command, flames.TAKES_S))
        await flames.take(found, f"warden_{NAMES[runtime]}", warden)
        await load


async def _warden_pid(stage: Stage, runtime: str, box: Box) -> int:
    if runtime == r.BUBBLEWRAP:
        record = Record.read(StateFolder(stage.state_dir).folder(box.id))
        assert record is not None, "the box lives"
        inside = [process.pid for process in family(record.keeper) if _is_first(process.pid)]
        return inside[0]
    assert stage.docker is not None
    about = await stage.docker.containers.container(container_name(box.id)).show()
    return int(about["State"]["Pid"])


def _is_first(pid: int) -> bool:
    """Whether it is PID 1 of a namespace of its own."""
    with open(f"/proc/{pid}/status") as file:
        numbers = next(line.split()[1:] for line in file if line.startswith("NSpid:"))
    return len(numbers) > 1 and numbers[-1] == "1"


async def _repeat(command: Command, for_s: float) -> int:
    until, count = time.perf_counter() + for_s, 0
    while time.perf_counter() < until:
        await command()
        count += 1
    return count


async def _host_cpu(found: Results, count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(PAUSE_S)  # As for ours: after a pause the caches are cold.
        found.add(r.CPU, r.HOST, 1000 * cpu.of_program("bash", "-c", SCRIPT))


async def _measure_others(stage: Stage, found: Results, *, seconds: float) -> None:
    for count in CALLERS:
        await _rate(found, r.HOST, [host_bash()] * count, seconds)
    if stage.docker is None:
        return
    async with stage.container() as container:
        for count in CALLERS:
            await _rate(found, r.EXEC_API, [exec_api(container)] * count, seconds)
    if peer.installed():
        async with AsyncExitStack() as stack:
            made = [await stack.enter_async_context(peer.session(stage)) for _ in range(_FEW)]
            for count in (1, _FEW):
                await _rate(found, r.LLM_SANDBOX, made[:count], seconds)


async def _rate(found: Results, name: str, commands: Sequence[Command], seconds: float) -> None:
    began, busy = time.perf_counter(), cpu.of_machine()
    counts = await asyncio.gather(*(_repeat(command, seconds) for command in commands))
    whole_s, busy = time.perf_counter() - began, cpu.of_machine() - busy
    found.add(r.RATE, r.with_callers(name, len(commands)), sum(counts) / whole_s)
    if len(commands) == 1:
        found.add(r.CPU_MACHINE, name, 1000 * busy / sum(counts))


async def _measure_tight(
    stage: Stage, found: Results, runtimes: Sequence[str], *, count: int
) -> None:
    """Long turns: a box that runs into its CPU limit does so only after a while."""
    async with _tight(stage, runtimes) as contestants:
        for order in orders(list(contestants), 2):
            for name in order:
                for _ in range(count):
                    found.add(r.TIGHT_CALLS, name, await time_ms(contestants[name]))


@asynccontextmanager
async def _tight(stage: Stage, runtimes: Sequence[str]) -> AsyncIterator[dict[str, Command]]:
    async with AsyncExitStack() as stack:
        made: dict[str, Command] = {r.HOST: host_bash()}
        if stage.docker is not None and peer.installed():
            made[r.LLM_SANDBOX] = await stack.enter_async_context(peer.session(stage))
        for runtime in runtimes:
            inside = await stack.enter_async_context(service(stage, runtime, pool=1))
            made[r.in_process(runtime)] = _execute(inside)
            at, _ = await stack.enter_async_context(server(stage, runtime, pool=1))
            made[r.over_http(runtime)] = _post(at)
        for command in made.values():
            await command()
        yield made


def _execute(sandboxes: Sandboxes) -> Command:
    async def command() -> None:
        await sandboxes.execute(ExecuteRequest(thread_id="tight", command=SCRIPT))

    return command


def _post(at: Server) -> Command:
    async def command() -> None:
        await at.post("/execute", thread_id="tight", command=SCRIPT)

    return command


async def _starts_per_s(stage: Stage, runtime: str, count: int) -> float:
    """Boxes that have answered a command, so many at a time as a pool starts."""
    slots, over = asyncio.Semaphore(_AT_ONCE), asyncio.Event()
    left = count

    async def start() -> None:
        nonlocal left
        async with AsyncExitStack() as stack:
            async with slots:
                _, client = await stack.enter_async_context(stage.box(runtime))
                await client.run(SCRIPT)
            left -= 1
            if left == 0:
                over.set()
            await over.wait()  # Their ends are not counted.

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(start())
        await over.wait()
        took_s = time.perf_counter() - began
    return count / took_s
