"""Many calls at once: bursts, a server without a pool, and `hey`."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import re
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from aiodocker.containers import DockerContainer

from bench import processes
from bench import results as r
from bench.contestants import WrongAnswer
from bench.measure import orders, time_ms, time_s
from bench.results import Results
from bench.served import Server, ready, server
from bench.stage import Stage
from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.protocol.models import CreateSessionRequest, ExecuteRequest, Target
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_server.pool.plan import PoolSettings
from sandbox_server.runtime import loop_disk
from sandbox_server.runtime.base import Limits
from sandbox_server.runtime.docker.config import container_name
from sandbox_server.runtime.docker.runtime import DISK_FOLDER

COLD_SESSIONS = 48
COLD_PAUSE_S = 2.0
HEY_REQUESTS, HEY_AT_ONCE, HEY_THREADS = 1000, 50, 20


def has_hey() -> bool:
    return shutil.which("hey") is not None


async def measure_burst(stage: Stage, found: Results, runtime: str) -> None:
    names = [f"burst-{number}" for number in range(r.BURST_SIZE)]
    async with server(stage, runtime, pool=r.BURST_POOL) as (_, client):
        each: list[float] = []
        failed: list[str] = []

        async def create(name: str) -> None:
            try:
                each.append(await time_ms(lambda: _create(client, name)))
            except SandboxError as exc:
                failed.append(exc.code)

        whole_s = await time_s(lambda: _all(create, names))
        found.add(r.BURST, r.over_http(runtime), *each)
        found.add(r.BURST_WHOLE, r.over_http(runtime), 1000 * whole_s)
        found.add(r.FAILURES, f"{runtime}: burst", len(failed))
        await _all(lambda name: _answers(client, name), names)


async def measure_cold(stage: Stage, found: Results, *, rounds: int) -> None:
    """Contestants take turns: sessions of a server without a pool, and what the engine does when it
    is asked for the same containers, as many at a time."""
    async with server(stage, r.RUNC, pool=0) as (at, client):
        rates = {
            r.ENGINE_ALONE: lambda: _engine_rate(stage),
            r.over_http(r.RUNC): lambda: _session_rate(at, client),
        }
        for order in orders(list(rates), rounds):
            for name in order:
                await asyncio.sleep(COLD_PAUSE_S)
                found.add(r.COLD, name, await rates[name]())


async def _session_rate(at: Server, client: Sandboxes) -> float:
    names = [f"cold-{number}" for number in range(COLD_SESSIONS)]
    took_s = await time_s(
        lambda: _all(lambda name: at.post("/create_session", thread_id=name), names)
    )
    await _all(lambda name: client.cleanup(Target(thread_id=name)), names)
    return COLD_SESSIONS / took_s


async def _engine_rate(stage: Stage) -> float:
    assert stage.docker is not None
    docker = stage.docker
    slots = asyncio.Semaphore(PoolSettings().concurrency)
    made: list[DockerContainer] = []
    with contextlib.ExitStack() as disks:
        async with stage.made_box(r.RUNC) as box:
            about = await docker.containers.container(container_name(box.id)).show()
        configs = [_with_own_disk(about, stage.spec().limits, disks) for _ in range(COLD_SESSIONS)]

        async def start(config: dict[str, Any]) -> None:
            async with slots:
                container = await docker.containers.create(config)
                made.append(container)
                await container.start()

        try:
            took_s = await time_s(lambda: _all(start, configs))
        finally:
            await asyncio.gather(*(container.delete(force=True, v=True) for container in made))
    return COLD_SESSIONS / took_s


def _with_own_disk(
    about: Mapping[str, Any], limits: Limits, disks: contextlib.ExitStack
) -> dict[str, Any]:
    """The configuration of a box for another container. Where boxes have disks it gets one too, as
    two containers on one disk are started faster than on two."""
    config = copy.deepcopy({**about["Config"], "HostConfig": about["HostConfig"]})
    for mount in config["HostConfig"]["Mounts"]:
        options = mount.get("VolumeOptions", {}).get("DriverConfig", {}).get("Options", {})
        if "device" in options:
            disk = loop_disk.new_disk(
                DISK_FOLDER, size=limits.disk_bytes, inodes=limits.inodes, label="bench"
            )
            options["device"] = disks.enter_context(disk).device
    return config


async def measure_load(stage: Stage, found: Results, runtime: str) -> None:
    async with server(stage, runtime, pool=r.BURST_POOL) as (at, client):
        await _create(client, "one")
        await _hey(found, r.hey(runtime, r.CREATE_ONE), at, [("/create_session", _body("one"))],
                   requests=HEY_REQUESTS, at_once=HEY_AT_ONCE)  # fmt: skip
        names = [f"many-{number}" for number in range(HEY_THREADS)]
        await _all(lambda name: _create(client, name), names)
        await ready(client, pool=r.BURST_POOL)
        calls = [("/execute", _body(name, command="echo hi")) for name in names]
        await _hey(found, r.hey(runtime, r.EXECUTE_TWENTY), at, calls,
                   requests=HEY_REQUESTS // HEY_THREADS + 1, at_once=3)  # fmt: skip


async def _hey(
    found: Results,
    name: str,
    at: Server,
    calls: Sequence[tuple[str, str]],
    *,
    requests: int,
    at_once: int,
) -> None:
    rate, failed = await hey_rate(at, calls, requests=requests, at_once=at_once)
    found.add(r.LOAD, name, rate)
    found.add(r.FAILURES, name, failed)


async def hey_rate(
    at: Server, calls: Sequence[tuple[str, str]], *, requests: int, at_once: int
) -> tuple[float, int]:
    """One `hey` for each of the calls, all at the same time: answers a second, and how many calls
    failed."""
    told: list[str] = []

    async def one(call: tuple[str, str]) -> None:
        path, body = call
        argv = ("hey", "-n", str(requests), "-c", str(at_once), "-m", "POST", "-t", "60",
                "-T", "application/json", "-d", body, f"{at.url}{path}")  # fmt: skip
        told.append((await processes.output_of(*argv)).decode())

    took_s = await time_s(lambda: _all(one, calls))
    good = sum(successes(text) for text in told)
    return good / took_s, requests * len(calls) - good


def successes(report: str) -> int:
    """How many answers of 2xx `hey` has counted."""
    return sum(int(count) for count in re.findall(r"\[2\d\d\]\s+(\d+) responses", report))


def _body(thread_id: str, **more: str) -> str:
    return json.dumps({"thread_id": thread_id, **more})


async def _create(client: Sandboxes, name: str) -> None:
    await client.create_session(CreateSessionRequest(thread_id=name))


async def _answers(client: Sandboxes, name: str) -> None:
    result = await client.execute(ExecuteRequest(thread_id=name, command="echo $((6*7))"))
    if result.output != "42\n":
        raise WrongAnswer(result.output)


async def _all(action: Callable[[Any], Awaitable[object]], items: Sequence[Any]) -> None:
    await asyncio.gather(*(action(item) for item in items))
