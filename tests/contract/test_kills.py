"""A kill, a timeout and the end of a box leave nothing of a command, whatever it is just doing."""

import asyncio
import os
from typing import NamedTuple

import pytest

from sandbox_server.runtime.warden.client import WardenClient

KILLS = int(os.environ.get("SANDBOX_TEST_KILLS", "60"))
"""How many for each way of being killed; thousands show what happens once in a thousand times."""
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
    """What is neither the warden, a nursery, a shell that starts, waits or asks, nor from outside."""
    found = [p for p in await table(warden) if p.state != "Z" and p.pid != 1 and p.parent != 0]
    nurseries = {p.pid for p in found if p.parent == 1 and p.session == 1}
    shells = {p.pid for p in found if p.parent in nurseries and p.session in (p.pid, 1)}
    return [p for p in found if p.pid not in nurseries | shells]


async def nothing_left(warden: WardenClient) -> None:
    """At once: a command that was killed is over when all of it is dead."""
    assert await survivors(warden) == []


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_kill_leaves_nothing(warden: WardenClient, moment: str) -> None:
    for n in range(KILLS):
        command_id = await warden.start(MOMENTS[moment], timeout_s=300)
        await asyncio.sleep(n % BATCH * 0.0007)
        await warden.signal(command_id, 9)
        async with asyncio.timeout(30):
            await warden.ended(command_id)
        assert (await warden.result(command_id)).exit.exit_code == 137
        if n % BATCH == BATCH - 1 or n == KILLS - 1:
            await nothing_left(warden)
