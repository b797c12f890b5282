"""A kill, a timeout and the end of a box leave nothing of a command, whatever it is just doing."""

import asyncio
import contextlib
import shlex
import uuid
from pathlib import Path
from typing import NamedTuple

import pytest

from sandbox_server.runtime.agent import Output
from sandbox_server.runtime.warden.client import WardenClient
from tests import lanes

from .conftest import MakeBox

KILLS = {"docker": 60, "bubblewrap": 60, "gvisor": 15, "kubernetes": 20, "kubernetes_gvisor": 10}
"""How many at each moment. SANDBOX_TEST_KILLS asks for another number: thousands show what happens
once in a thousand times."""
BATCH = 20

RUNNER = """
import os
while True:
    if os.fork(): os._exit(0)
    os.setsid()
    os.write(1, b'.')
"""
MOMENTS = {
    "at the start": "sleep 7771",
    "in a fork storm": "while :; do sleep 7771 & done",
    "while daemonising": "while :; do (setsid bash -c '(sleep 7771 &)' &); done",
    "with children of all kinds": "(env -i setsid sleep 7771 &); (trap '' TERM; sleep 7771) & wait",
}


class Process(NamedTuple):
    pid: int
    state: str
    parent: int
    session: int
    name: str


async def table(warden: WardenClient) -> list[Process]:
    """All processes of the box, listed without starting one."""
    result = await warden.run(
        "for f in /proc/[0-9]*/stat; do { read -r l < $f; } 2>/dev/null || continue; "
        "p=${f#/proc/}; set -- ${l##*) }; n=${l#* }; echo ${p%/stat} $1 $2 $4 ${n%)*}; done"
    )
    found = [line.split(maxsplit=4) for line in result.stdout.splitlines()]
    return [Process(int(p), s, int(q), int(sid), name) for p, s, q, sid, name in found]


async def survivors(warden: WardenClient) -> list[Process]:
    """What is neither the warden, a nursery or its shell, nor from outside."""
    listed = await table(warden)
    found = [p for p in listed if p.state != "Z" and p.pid != 1 and p.parent != 0]
    name = next(p.name for p in listed if p.pid == 1)
    nurseries = {p.pid for p in found if p.parent == 1 and p.name == name}
    shells = {p.pid for p in found if p.parent in nurseries and p.session in (p.pid, 1, p.parent)}
    return [p for p in found if p.pid not in nurseries | shells]


async def nothing_left(warden: WardenClient) -> None:
    """At once: a command that was killed is over when all of it is dead."""
    assert await survivors(warden) == []


@pytest.mark.rounds
@pytest.mark.kernel
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_kill_leaves_nothing(warden: WardenClient, runtime_name: str, moment: str) -> None:
    kills = KILLS[runtime_name]
    kills = lanes.rounds(kills, "SANDBOX_TEST_KILLS", main=min(kills, BATCH))
    for n in range(kills):
        command_id = await warden.start(MOMENTS[moment], timeout_s=300)
        await asyncio.sleep(n % BATCH * 0.0007)
        await warden.signal(command_id, 9)
        async with asyncio.timeout(30):
            await warden.ended(command_id)
        assert (await warden.result(command_id)).exit_code == 137
        if n % BATCH == BATCH - 1 or n == kills - 1:
            await nothing_left(warden)


@pytest.mark.kernel
async def test_nobody_outruns_a_kill(warden: WardenClient) -> None:
    """A process that is gone before it can be killed, and has left a child in a session of its own.
    Looked for one after the other, such processes are never found."""
    for _ in range(3):
        command_id = await warden.start(
            f"python3 -c {shlex.quote(RUNNER)}; sleep 7771", timeout_s=300
        )
        async with asyncio.timeout(30), contextlib.aclosing(warden.attach(command_id)) as events:
            async for event in events:
                if isinstance(event, Output):
                    break
        await warden.signal(command_id, 9)
        async with asyncio.timeout(30):
            await warden.ended(command_id)
        await nothing_left(warden)


@pytest.mark.kernel
async def test_a_timeout_leaves_nothing(warden: WardenClient, subtests: pytest.Subtests) -> None:
    for moment, command in MOMENTS.items():
        with subtests.test(moment):
            for n in range(4):
                result = await warden.run(command, timeout_s=0.01 + 0.02 * n)
                assert (result.exit_code, result.timed_out) == (124, True)
                await nothing_left(warden)


LOST = (
    "kill -9 $PPID; (setsid bash -c '(sleep 7771 &)' &); (env -i setsid sleep 7772 &); "
    "(SANDBOX_COMMAND_ID=another setsid sleep 7773 &); (sleep 7774 &); echo up; sleep 7775"
)


async def test_a_command_without_its_nursery_is_killed_as_well(warden: WardenClient) -> None:
    for _ in range(3):
        result = await warden.run(LOST, timeout_s=3)
        assert (result.output, result.exit_code) == ("up\n", 124)
        await nothing_left(warden)
    assert (await warden.run("echo ok")).output == "ok\n"


async def test_a_kill_spares_everybody_else(warden: WardenClient) -> None:
    """Loops in the background that never called exec, and commands that began before and after."""
    older = await warden.start("echo up; sleep 5551", timeout_s=300)
    await warden.run("(while :; do sleep 0.05; done) & (setsid sleep 5552 &)")
    killed = await warden.start(LOST, timeout_s=300)
    younger = [await warden.start("echo up; sleep 5553", timeout_s=300) for _ in range(3)]
    await warden.run("(while :; do sleep 0.06; done) &")
    await warden.signal(killed, 9)
    await warden.ended(killed)
    running = {c.command_id for c in (await warden.state()).commands if c.running}
    assert running == {older, *younger}
    for command_id in running:
        await warden.signal(command_id, 9)
        await warden.ended(command_id)
    left = sorted(p.name for p in await survivors(warden) if p.parent == 1)
    assert left == ["(bash", "(bash", "(sleep"]


async def test_a_kill_spares_what_hangs_below_a_nursery_that_is_ending(
    runtime_name: str, warden: WardenClient
) -> None:
    """A command is over, what it left in the background lives, and its nursery takes its time."""
    stop = "while kill -STOP $n; do :; done"
    if runtime_name.endswith("gvisor"):
        # There, what is stopped without end never gets a turn: its command ends by its timeout.
        stop = "for i in {1..50}; do kill -STOP $n; done"
    killed = await warden.start(LOST, timeout_s=300)
    for _ in range(3):  # So that the next has a nursery that is younger than the killed one.
        await warden.start("sleep 5551", timeout_s=300)
    await warden.run(f"n=$PPID; ({stop}; while :; do sleep 0.06; done) 2>/dev/null &")
    await warden.signal(killed, 9)
    await warden.ended(killed)
    assert "(bash" in [p.name for p in await survivors(warden)]


@pytest.mark.kernel
async def test_the_end_of_a_box_leaves_nothing(make_box: MakeBox) -> None:
    box = await make_box()
    mark = f"77{uuid.uuid4().int % 10**9}"
    async with WardenClient(box) as warden:
        for command in MOMENTS.values():
            await warden.start(command.replace("7771", mark), timeout_s=300)
        await box.destroy()
    async with asyncio.timeout(30):
        while on_the_host(mark):
            await asyncio.sleep(0.05)


def on_the_host(mark: str) -> list[str]:
    """Processes of this machine that were started with the mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


@pytest.mark.kernel
async def test_a_request_to_end_does_not_reach_the_warden(warden: WardenClient) -> None:
    """As a kubelet sends it to a pod that is evicted: gVisor does not shield PID 1 from it. What
    commands start takes it."""
    done = await warden.run("kill -TERM 1; sleep 60 & kill -TERM $!; wait $!; echo $?")
    assert done.stdout == "143\n"
    assert (await warden.run("echo on")).stdout == "on\n"
