"""Measures of boxes that are pods: one of them, over HTTP, and as many as two nodes hold."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.cluster import CONFIG, Costs, Namespace
from bench.measure import Summary, orders, time_ms
from bench.served import server
from bench.stage import IMAGE, Stage
from sandbox_sdk.protocol.models import CreateSessionRequest, ExecuteRequest
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_server.runtime.agent import BoxAgent
from sandbox_server.runtime.base import Box, BoxSpec, Limits
from sandbox_server.runtime.kubernetes import Access, KubernetesRuntime, PodBox
from sandbox_server.runtime.registry import ClusterOptions, StreamWay

WAYS: tuple[StreamWay, ...] = ("tcp", "exec")
MIB = 1 << 20
SMALL = Limits(
    cpus=0.2, memory_bytes=96 * MIB, pids=64, disk_bytes=16 * MIB, tmp_bytes=4 * MIB,
    shm_bytes=4 * MIB, home_bytes=4 * MIB,
)  # fmt: skip
_REQUESTS = 0.02
AT_ONCE = 8
_BATCH = 50
Samples = dict[str, list[float]]


@dataclass
class Crowd:
    """Many pods that each send a command now and then."""

    pods: int
    nodes: int
    created_s: float
    ways: dict[str, CrowdWay] = field(default_factory=dict)


@dataclass
class CrowdWay:
    opened_s: float
    commands: int
    failed: int
    took: list[float]
    asked: float
    """Requests to the API server about objects as ours meanwhile."""
    cpu_ms: dict[str, float]
    """By part, of a command, without what it takes when nothing is asked."""


def spec(limits: Limits | None = None) -> BoxSpec:
    return BoxSpec(owner="bench", image=IMAGE, deadman_s=900.0, limits=limits or Limits())


def runtime(at: Namespace, way: StreamWay, requests: float = 0.25) -> KubernetesRuntime:
    access = Access.find(CONFIG, namespace=at.name)
    return KubernetesRuntime(access, ClusterOptions(stream=way, requests=requests))


async def one_pod(at: Namespace, *, rounds: int, openings: int) -> dict[str, Samples]:
    """By what is measured and way, in turn."""
    found: dict[str, Samples] = {
        what: {way: [] for way in WAYS} for what in ("first", "open", "ping", "run")
    }
    async with AsyncExitStack() as stack:
        runtimes, boxes = {}, {}
        for way in WAYS:
            runtimes[str(way)] = made = await stack.enter_async_context(runtime(at, way))
            boxes[str(way)] = await made.create(spec())
        for order in orders(WAYS, openings):
            for name in order:
                # As after a restart of the server: it has to give the box a key again.
                unknown = [each for each in await runtimes[name].boxes(spec().owner)
                           if each.id == boxes[name].id]  # fmt: skip
                found["first"][name].append(await _opening_ms(unknown[0]))
                found["open"][name].append(await _opening_ms(unknown[0]))
        agents = {name: await stack.enter_async_context(box.agent()) for name, box in boxes.items()}
        for order in orders(WAYS, rounds):
            for name in order:
                await _batch(agents[name], found, name)
        for box in boxes.values():
            await box.destroy()
    return found


async def _opening_ms(box: Box) -> float:
    began = time.perf_counter()
    async with box.agent():
        return 1000 * (time.perf_counter() - began)


async def _batch(agent: BoxAgent, found: dict[str, Samples], way: str) -> None:
    await agent.ping()
    for _ in range(_BATCH):
        found["ping"][way].append(await time_ms(agent.ping))
    for _ in range(_BATCH):
        found["run"][way].append(await time_ms(lambda: agent.run(":")))


async def over_http(at: Namespace, folder: Path, *, calls: int, sessions: int) -> Samples:
    """Through a server in a process of its own."""
    found: Samples = {"command": [], "warm": [], "cold": []}
    os.environ |= {"SANDBOX_KUBERNETES_KUBECONFIG": CONFIG,
                   "SANDBOX_KUBERNETES_NAMESPACE": at.name, "SANDBOX_IMAGE": IMAGE}  # fmt: skip
    stage = Stage({}, None, folder)
    async with server(stage, "kubernetes", pool=sessions, capacity=50) as (_, client):
        for number in range(sessions):
            found["warm"].append(await _session(client, f"warm-{number}"))
        for number in range(calls + 10):
            took = await time_ms(lambda: _execute(client, "warm-0"))
            if number >= 10:
                found["command"].append(took)
    async with server(stage, "kubernetes", pool=0, capacity=50) as (_, client):
        for number in range(sessions):
            found["cold"].append(await _session(client, f"cold-{number}"))
    return found


async def _session(client: Sandboxes, thread: str) -> float:
    return await time_ms(lambda: client.create_session(CreateSessionRequest(thread_id=thread)))


async def _execute(client: Sandboxes, thread: str) -> None:
    await client.execute(ExecuteRequest(thread_id=thread, command=":"))


async def rates(at: Namespace, *, count: int) -> tuple[float, float]:
    """Pods a second until all of them run: ours, and of `kubectl run`, as many at once."""
    async with runtime(at, "auto", _REQUESTS) as made:
        await (await made.create(spec(SMALL))).destroy()  # The first pays for the warden's map.
        boxes: list[PodBox] = []

        async def make(_number: int) -> None:
            boxes.append(await made.create(spec(SMALL)))

        began = time.perf_counter()
        await _some_at_once(make, count)
        ours = count / (time.perf_counter() - began)
        await _some_at_once(lambda number: boxes[number].destroy(), count)

    async def run(number: int) -> None:
        await at.kubectl("run", f"plain-{number}", f"--image={IMAGE}", "--restart=Never",
                         "--image-pull-policy=IfNotPresent", "--command", "--", "sleep",
                         "600")  # fmt: skip
        await at.kubectl("wait", f"pod/plain-{number}", "--for=condition=Ready", "--timeout=60s")

    began = time.perf_counter()
    await _some_at_once(run, count)
    theirs = count / (time.perf_counter() - began)
    names = [f"plain-{number}" for number in range(count)]
    await at.kubectl("delete", "pod", *names, "--force", "--grace-period=0", "--wait=false")
    return ours, theirs


async def _some_at_once(
    work: Callable[[int], Coroutine[object, object, None]], count: int, at_once: int = AT_ONCE
) -> None:
    slots = asyncio.Semaphore(at_once)

    async def turn(number: int) -> None:
        async with slots:
            await work(number)

    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(turn(number))


async def crowd(at: Namespace, *, count: int, seconds: float, every_s: float) -> Crowd:
    """One set of pods, reached one way and then the other."""
    async with runtime(at, "tcp", _REQUESTS) as made:
        began = time.perf_counter()
        await _some_at_once(lambda _number: _make(made), count)
        created_s = time.perf_counter() - began
        pods = (await at.json("get", "pods"))["items"]
        found = Crowd(count, len({pod["spec"]["nodeName"] for pod in pods}), created_s)
    for way in WAYS:
        async with runtime(at, way, _REQUESTS) as made, _agents(made) as (agents, opened_s):
            found.ways[way] = await _talk(at, agents, opened_s, seconds, every_s)
    async with runtime(at, "exec") as made:
        boxes = await made.boxes(spec().owner)
        await _some_at_once(lambda number: boxes[number].destroy(), len(boxes), 16)
    return found


async def _make(made: KubernetesRuntime) -> None:
    await made.create(spec(SMALL))


@asynccontextmanager
async def _agents(made: KubernetesRuntime) -> AsyncIterator[tuple[list[BoxAgent], float]]:
    boxes = await made.boxes(spec().owner)
    agents: list[BoxAgent] = []
    async with AsyncExitStack() as stack:

        async def connect(number: int) -> None:
            agents.append(await stack.enter_async_context(boxes[number].agent()))

        began = time.perf_counter()
        await _some_at_once(connect, len(boxes))
        yield agents, time.perf_counter() - began


async def _talk(
    at: Namespace, agents: list[BoxAgent], opened_s: float, seconds: float, every_s: float
) -> CrowdWay:
    idle = Costs()
    await asyncio.sleep(seconds / 2)
    idle_s, idle_cpu = idle.since()
    asked, busy, took = await at.requests(), Costs(), list[float]()
    failed = await asyncio.gather(
        *(
            _commands(agent, took, seconds, every_s, number / len(agents))
            for number, agent in enumerate(agents)
        )
    )
    busy_s, busy_cpu = busy.since()
    asked = await at.requests() - asked
    share = {
        part: 1000 * max(spent - idle_cpu.get(part, 0.0) * busy_s / idle_s, 0) / len(took)
        for part, spent in busy_cpu.items()
    }
    return CrowdWay(opened_s, len(took), sum(failed), took, asked, share)


async def _commands(
    agent: BoxAgent, took: list[float], seconds: float, every_s: float, phase: float
) -> int:
    """One now and then; how many failed."""
    loop, failed = asyncio.get_running_loop(), 0
    began = loop.time() + phase * every_s
    for number in range(int(seconds / every_s)):
        await asyncio.sleep(max(began + number * every_s - loop.time(), 0))
        start = time.perf_counter()
        failed += (await agent.run(":")).exit_code != 0
        took.append(1000 * (time.perf_counter() - start))
    return failed


def told(samples: list[float]) -> str:
    summary = Summary.of(samples)
    return f"{summary.p50:.2f} / {summary.p99:.2f}"
