"""kill -9 of the server at any moment of a checkpoint, a restore and a hibernation: no half
checkpoint is ever listed, no thread is lost, nothing is left behind."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol.errors import RuntimeUnavailable, SandboxError
from sandbox_sdk.protocol.models import (
    CheckpointRequest,
    CreateSessionRequest,
    ExecuteRequest,
    ForkRequest,
    RestoreRequest,
    Target,
    UndoRequest,
)
from sandbox_server.runtime import disk_pool
from tests import lanes
from tests.contract.conftest import RUNTIMES, make_runtime
from tests.server_process import ServerProcess, running

ROUNDS = lanes.rounds(4, "CHAOS_ROUNDS")
IDLE_S = 1.0
MAKE = "echo {n} > n; x={n}; head -c 6M /dev/urandom > data; sha256sum data > sum"
CHECK = "cat n; echo $x; sha256sum --quiet -c sum && echo whole"
_Answer = TypeVar("_Answer")


async def insist(call: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """What a patient caller does."""
    for _ in range(300):
        try:
            return await call()
        except RuntimeUnavailable:
            await asyncio.sleep(0.1)
    raise AssertionError("the server never came back")


class Thread:
    """A thread, and the numbers that it may be at."""

    def __init__(self, client: RemoteBackend) -> None:
        self._client = client
        self.number = 0
        self.at: dict[str, int] = {}
        """Numbers by checkpoint."""
        self.told: list[object] = []
        """How each command found the thread."""

    async def run(self, command: str, *, key: str) -> str:
        request = ExecuteRequest(thread_id="t", command=command, idempotency_key=key)
        result = await insist(lambda: self._client.execute(request))
        self.told.append((key, result.session_state, result.generation, result.resumed))
        return result.output

    async def go_on(self) -> None:
        self.number += 1
        await self.run(MAKE.format(n=self.number), key=f"make {self.number}")

    async def checkpoint(self) -> None:
        made = await self._client.checkpoint(CheckpointRequest(thread_id="t", name="by hand"))
        self.at[made.checkpoint_id] = self.number

    async def restore(self) -> None:
        if self.at:
            wanted = random.choice([*self.at])
            await self._client.restore(RestoreRequest(thread_id="t", checkpoint_id=wanted))

    async def hibernate(self) -> None:
        await asyncio.sleep(IDLE_S + 2)

    async def begin(self) -> None:
        """To go on, but nobody waits."""
        made, key = MAKE.format(n=self.number + 1), f"make {self.number + 1}"
        request = ExecuteRequest(thread_id="t", command=made, idempotency_key=key)
        await self._client.execute(request)

    async def undo(self) -> None:
        await self._client.undo(UndoRequest(thread_id="t"))

    async def check_points(self, numbers: list[int], round_: int) -> None:
        """Every point can be gone back to, and back from."""
        for number in numbers:
            now = (await insist(lambda: self._client.history("t", limit=1))).entries[0].number
            wanted = UndoRequest(thread_id="t", to=number)
            await insist(lambda wanted=wanted: self._client.undo(wanted))  # type: ignore[misc]
            output = await self.run(CHECK, key=f"point {round_} {number}")
            assert output.split()[2:] == ["whole"] or number == 1
            back = UndoRequest(thread_id="t", to=now + 1)
            await insist(lambda back=back: self._client.undo(back))  # type: ignore[misc]

    async def check(self, allowed: set[int], round_: int) -> int:
        number, variable, whole = (await self.run(CHECK, key=f"check {round_}")).split()
        assert (whole, variable) == ("whole", number)
        assert int(number) in allowed, (self.told, self.at)
        return int(number)

    async def check_checkpoints(self, round_: int) -> None:
        """Every one that is listed is whole, and of a number that was."""
        found = (await insist(self._client.checkpoints)).checkpoints
        for each in found[:2]:
            name = f"fork-{round_}-{each.checkpoint_id[-6:]}"
            wanted = ForkRequest(checkpoint_id=each.checkpoint_id, into=[name])
            await insist(lambda wanted=wanted: self._client.fork(wanted))  # type: ignore[misc]
            request = ExecuteRequest(thread_id=name, command=CHECK)
            output = (await insist(lambda request=request: self._client.execute(request))).output  # type: ignore[misc]
            assert output.split()[2:] == ["whole"]
            self.at.setdefault(each.checkpoint_id, int(output.split()[0]))
            assert self.at[each.checkpoint_id] == int(output.split()[0])
            await insist(lambda name=name: self._client.cleanup(Target(thread_id=name)))  # type: ignore[misc]


async def killed_in(
    server: ServerProcess, work: Callable[[], Awaitable[None]], after_s: float
) -> None:
    doing = asyncio.ensure_future(work())
    await asyncio.sleep(after_s)
    await server.stop()
    with contextlib.suppress(SandboxError, OSError):
        await doing
    await server.start()
    await server.ready()


@pytest.mark.rounds
@pytest.mark.timeout(120 + 30 * ROUNDS)
@pytest.mark.parametrize(
    ("runtime", "copies"),
    [
        pair
        for pair in (("docker", "disks"), ("bubblewrap", "disks"), ("bubblewrap", "files"))
        if pair[0] in RUNTIMES
    ],
)
async def test_checkpoints_and_kills(runtime: str, copies: str, state_dir: Path) -> None:
    chance = random.Random(16)
    pool = "true" if copies == "disks" else "false"
    settings = {"SANDBOX_CHECKPOINT_QUOTA": "100m", "SANDBOX_DISK_POOL": pool}
    async with (
        running(runtime, state_dir, **settings) as server,
        RemoteBackend(server.url, retry_for_s=1) as client,
    ):
        await insist(client.health)
        wanted = CreateSessionRequest(thread_id="t", persist=True, idle_timeout_s=IDLE_S)
        await insist(lambda: client.create_session(wanted))
        thread = Thread(client)
        for round_ in range(ROUNDS):
            await thread.go_on()
            work = (thread.checkpoint, thread.restore, thread.hibernate)[round_ % 3]
            longest_s = IDLE_S + 1.5 if work == thread.hibernate else 0.5
            await killed_in(server, work, chance.uniform(0, longest_s))
            allowed = {thread.number}
            if work == thread.restore:
                allowed |= set(thread.at.values())
            thread.number = await thread.check(allowed, round_)
            await thread.check_checkpoints(round_)
        await insist(lambda: client.cleanup(Target(thread_id="t")))
        health = await client.health()
        assert health.active_sessions == 0
        async with make_runtime(runtime, state_dir) as boxes:
            left = await boxes.boxes(server.name)
        assert len(left) <= health.pool_size + 2, "boxes that belong to nobody"


@pytest.mark.rounds
@pytest.mark.timeout(120 + 30 * ROUNDS)
@pytest.mark.parametrize("runtime", [name for name in RUNTIMES if name != "gvisor"])
async def test_undo_and_kills(runtime: str, state_dir: Path) -> None:
    """kill -9 in commands that keep a point, and in undos: a command is undone as a whole or not,
    and no entry of the history is half."""
    if why := disk_pool.outlook(state_dir, wanted=True):
        pytest.skip(f"undo: {why}")
    chance = random.Random(17)
    async with (
        running(runtime, state_dir) as server,
        RemoteBackend(server.url, retry_for_s=1) as client,
    ):
        await insist(client.health)
        wanted = CreateSessionRequest(thread_id="t", history=True)
        await insist(lambda: client.create_session(wanted))
        thread = Thread(client)
        for round_ in range(ROUNDS):
            await thread.go_on()
            work = (thread.begin, thread.undo)[round_ % 2]
            await killed_in(server, work, chance.uniform(0, 0.3))
            allowed = {thread.number, thread.number - 1}
            if work == thread.begin:
                await thread.go_on()  # Under the key of the one that was begun.
                allowed = {thread.number}
            thread.number = await thread.check(allowed, round_)
            history = await insist(lambda: client.history("t", limit=250))
            assert all(each.files is not None for each in history.entries if each.what != "undo")
            await thread.check_points([each.number for each in history.entries][:3], round_)
        await insist(lambda: client.cleanup(Target(thread_id="t")))
        assert (await client.history("t")).entries == []
