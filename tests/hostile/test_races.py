"""What one user leaves is not there for the next, and clocks that jump change nothing (42, 46).

In tests/contract/test_recovery.py: a box that goes in the middle of a command, destroying twice,
cancelled creations, servers that are killed.
"""

import ast
import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import sandbox_warden
from sandbox_sdk.protocol import errors
from sandbox_server.runtime.warden.client import WardenClient
from tests.contract.conftest import MakeBox
from tests.waiting import until_running

from .conftest import SESSION_S, SMALL, answers

LEAVE = """
secret=remembered; export SECRET=remembered; echo secret >> ~/.bash_history
for place in /workspace /tmp /dev/shm ~; do echo secret | tee $place/secret > $place/.secret; done
python3 -c 'import ctypes; print(ctypes.CDLL(None).shmget(4711, ctypes.c_size_t(4096), 0o1666))'
python3 -c 'import socket, time; s = socket.socket(1); s.bind("\\0secret"); time.sleep(100)' &
sleep 1234.5 &
"""
LOOK = """
echo "$secret$SECRET"; env | grep -i secret; fc -l 2>/dev/null; cat ~/.bash_history 2>/dev/null
find /workspace /tmp /dev/shm ~ /dev/mqueue -mindepth 1 ! -name lost+found 2>/dev/null
tail -n +2 /proc/sysvipc/shm 2>/dev/null; grep '[s]ecret' /proc/net/unix
cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -E '[s]ecret|[1]234\\.5'; true
"""


async def test_nothing_of_a_former_user_is_there_for_the_next(make_box: MakeBox) -> None:
    before = await make_box(limits=SMALL)
    async with WardenClient(before) as former:
        assert (await former.run(LEAVE)).exit_code == 0
        assert "secret" in (await former.run(LOOK)).output
        together = await look(make_box)
    await before.destroy()
    assert [together, await look(make_box)] == ["", ""]


async def look(make_box: MakeBox) -> str:
    async with WardenClient(await make_box(limits=SMALL)) as next_one:
        found = (await next_one.run(LOOK)).output.strip()
        state = await next_one.state()
        assert (state.state, len(state.commands)) == ({}, 1)
    return found


async def test_ten_commands_of_a_box_that_goes_are_all_told(make_box: MakeBox) -> None:
    box = await make_box()
    async with WardenClient(box) as warden:
        commands = [asyncio.create_task(warden.run("sleep 100")) for _ in range(10)]
        await until_running(warden, 10)
        await asyncio.gather(box.destroy(), box.destroy(), box.destroy())
        async with asyncio.timeout(SESSION_S):
            ends = await asyncio.gather(*commands, return_exceptions=True)
    assert {type(end) for end in ends} == {errors.SessionLost}


async def test_transfers_of_a_box_that_goes_are_told(make_box: MakeBox) -> None:
    box = await make_box(limits=SMALL)
    under_way = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        for number in range(10_000):
            yield bytes(1000)
            await asyncio.sleep(0.01)
            if number == 10:
                under_way.set()

    async with WardenClient(box) as warden:
        upload = asyncio.create_task(warden.put("file", endless()))
        await under_way.wait()
        await box.destroy()
        async with asyncio.timeout(SESSION_S):
            with pytest.raises(errors.RuntimeUnavailable):
                await upload
            with pytest.raises(errors.SessionLost):
                await warden.stat("file")


async def test_boxes_made_and_ended_at_once_do_not_mix(make_box: MakeBox) -> None:
    async def life(name: str) -> str:
        box = await make_box(limits=SMALL)
        async with WardenClient(box) as warden:
            await warden.run(f"echo {name} > file; name={name}")
            output = (await warden.run("cat file; echo $name")).output
        await box.destroy()
        return output

    names = [f"box{n}" for n in range(6)]
    assert await asyncio.gather(*map(life, names)) == [f"{name}\n{name}\n" for name in names]


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_clock_that_jumps_ends_nothing_early(
    monkeypatch: pytest.MonkeyPatch, warden: WardenClient, hours: int
) -> None:
    real = time.time
    running = asyncio.create_task(warden.run("sleep 3; echo done", timeout_s=60))
    limited = asyncio.create_task(warden.run("sleep 100", timeout_s=3))
    await until_running(warden)
    monkeypatch.setattr(time, "time", lambda: real() + hours * 3600)
    assert (await running).output == "done\n"
    assert (await limited).timed_out
    await answers(warden, SESSION_S)


async def test_the_warden_never_asks_the_wall_clock() -> None:
    """A box cannot be given another clock than its machine has: what is not read cannot matter.
    But for the times of files, which are of that clock: if it jumps, an artifact may be missed."""
    wall = {"time.time", "time.time_ns", "time.localtime", "datetime.now", "datetime.utcnow"}
    for path in Path(sandbox_warden.__file__).parent.glob("*.py"):
        if path.name == "marks.py":
            continue
        nodes = ast.walk(ast.parse(path.read_text()))
        asked = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
        assert not asked & wall, path
