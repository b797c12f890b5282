"""Nothing is lost when a stream is cut, when the server is killed, or when it never comes back."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.agent import CommandResult, Fenced, Output
from sandbox_server.runtime.base import Runtime
from sandbox_server.runtime.streams import ByteStream
from sandbox_server.runtime.warden.client import WardenBox, WardenClient
from tests.run import run_owner
from tests.waiting import until_running

from .conftest import MakeBox, make_runtime

OWN = run_owner(f"-{os.getpid()}")
"""Tests run in several processes, and on docker all of them see one engine."""
COUNT = "for i in $(seq 2000); do echo line $i; done; sleep 0.2; echo end"


async def cut(warden: WardenClient) -> None:
    """Break the stream under the client, as a lost connection would."""
    if warden._link is not None:  # It may be busy replacing the last one.
        await warden._link._stream.close()


@pytest.mark.kernel
async def test_a_stream_goes_on_where_it_was_cut(warden: WardenClient) -> None:
    text = b""
    cuts = 0
    async for event in warden.stream(COUNT):
        if isinstance(event, Output):
            assert event.offset == len(text)
            text += event.data
            if cuts < 3:
                cuts += 1
                await cut(warden)
    assert cuts > 0
    expected = "".join(f"line {i}\n" for i in range(1, 2001)) + "end\n"
    assert text.decode() == expected


async def test_a_call_survives_cuts_and_runs_once(warden: WardenClient) -> None:
    running = asyncio.create_task(
        warden.run("echo x >> /tmp/n; sleep 0.6; wc -l < /tmp/n", key="k")
    )
    for _ in range(3):
        await asyncio.sleep(0.1)
        await cut(warden)
    assert (await running).output == "1\n"
    assert (
        await warden.run("echo x >> /tmp/n; sleep 0.6; wc -l < /tmp/n", key="k")
    ).output == "1\n"


async def test_input_survives_a_cut(warden: WardenClient) -> None:
    data = b"".join(b"%07d\n" % i for i in range(300_000))
    command = "sleep 0.5; md5sum"
    running = asyncio.create_task(warden.run(command, stdin=data))
    await asyncio.sleep(0.2)
    await cut(warden)
    import hashlib

    assert (await running).output.split()[0] == hashlib.md5(data).hexdigest()


@pytest.mark.kernel
async def test_processes_of_the_box_killing_everything_they_can(warden: WardenClient) -> None:
    """kill -9 -1 takes relays and shells along; the session goes on and its state is kept."""
    await warden.run("kept=1")
    for _ in range(5):
        await warden.run("kill -9 -1")
        assert (await warden.run("echo $kept")).output == "1\n"


async def test_processes_of_the_box_stopping_everything_they_can(warden: WardenClient) -> None:
    await warden.run("kept=1; kill -STOP -1", timeout_s=5)
    assert (await warden.run("echo $kept")).output == "1\n"
    result = await warden.run("kill -STOP $PPID; echo stopped; sleep 100", timeout_s=5)
    assert (result.output, result.timed_out) == ("stopped\n", True)
    assert (await warden.run("echo $kept")).output == "1\n"


async def test_two_owners_of_one_epoch_at_once(box: WardenBox, warden: WardenClient) -> None:
    async with WardenClient(box) as second:
        await warden.run("x=1")
        assert (await second.run("echo $x")).output == "1\n"


@pytest.mark.kernel
async def test_a_higher_epoch_fences_the_lower(box: WardenBox, warden: WardenClient) -> None:
    assert (await warden.run("x=1")).exit_code == 0
    async with WardenClient(box, epoch=2) as newer:
        with pytest.raises(Fenced):
            await warden.run("echo old owner")
        with pytest.raises(Fenced):
            await WardenClient(box, epoch=1).connect()
        assert (await newer.run("echo $x")).output == "1\n"


async def test_what_the_owner_left_is_there_for_the_next(
    box: WardenBox, warden: WardenClient
) -> None:
    await warden.set_state({"thread": "t-1", "generation": 3})
    await warden.run("echo kept", command_id="c1", key="k1")
    await warden.close()
    async with WardenClient(box, epoch=5) as later:
        state = await later.state()
        assert state.state == {"thread": "t-1", "generation": 3}
        assert [(c.command_id, c.idempotency_key, c.running) for c in state.commands] == [
            ("c1", "k1", False)
        ]


async def test_a_client_that_was_closed_has_no_stream(
    box: WardenBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also not one that was being opened: nobody would close it."""
    opened: list[ByteStream] = []
    asked, may_open = asyncio.Event(), asyncio.Event()
    open_stream = box.open_stream

    async def slowly() -> ByteStream:
        asked.set()
        await may_open.wait()
        opened.append(await open_stream())
        return opened[-1]

    monkeypatch.setattr(box, "open_stream", slowly)
    client = WardenClient(box)
    asking = asyncio.create_task(client.state())
    await asked.wait()
    await client.close()
    may_open.set()
    with pytest.raises(errors.RuntimeUnavailable):
        await asking
    with pytest.raises(errors.RuntimeUnavailable):
        await client.ping()
    (stream,) = opened
    with pytest.raises(ConnectionError):
        await stream.write(b"x")


@pytest.mark.kernel
async def test_a_box_that_is_gone_is_told(box: WardenBox, warden: WardenClient) -> None:
    await box.destroy()
    with pytest.raises(errors.SessionLost):
        await warden.run("echo anyone")


async def test_a_box_that_goes_in_the_middle_of_a_command_is_told(
    box: WardenBox, warden: WardenClient
) -> None:
    running = asyncio.create_task(warden.run("sleep 100", timeout_s=120))
    await until_running(warden)
    await box.destroy()
    with pytest.raises(errors.SessionLost):
        await running


async def test_a_box_that_goes_while_it_is_asked_is_told(make_box: MakeBox) -> None:
    """Whatever an engine says of a container that it can no longer enter, a loss is a loss."""

    async def ask(box: WardenBox) -> None:
        async with WardenClient(box) as client:
            await client.run("sleep 100", timeout_s=120)

    for delay_s in (0.0, 0.02, 0.05, 0.1):
        box = await make_box()
        async with WardenClient(box):
            pass
        asking = [asyncio.create_task(ask(box)) for _ in range(4)]
        await asyncio.sleep(delay_s)
        ending = asyncio.create_task(box.destroy())
        asking += [asyncio.create_task(ask(box)) for _ in range(4)]
        for error in await asyncio.gather(*asking, return_exceptions=True):
            assert isinstance(error, errors.SessionLost | errors.RuntimeUnavailable)
        await ending


class _Unended:
    """A stream that an engine does not end when its box is gone: seen of gVisor."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.close = stream.close

    async def read(self) -> bytes:
        return await self._stream.read() or await asyncio.get_running_loop().create_future()

    async def write(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            await self._stream.write(data)

    def write_now(self, data: bytes) -> bool:
        return False


async def test_a_box_that_goes_without_a_word_is_told(
    box: WardenBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_stream = box.open_stream

    async def unended() -> _Unended:
        return _Unended(await open_stream())

    monkeypatch.setattr("sandbox_server.runtime.warden.reconnecting_link.SILENCE_S", 0.5)
    monkeypatch.setattr(box, "open_stream", unended)
    async with WardenClient(box) as warden:
        command_id = await warden.start("sleep 100", timeout_s=120)
        await box.destroy()
        for ask in (warden.state, partial(warden.signal, command_id, 9), partial(warden.stat, "/")):
            with pytest.raises(errors.SessionLost):
                await ask()


@pytest.mark.kernel
async def test_the_dead_mans_switch(runtime: Runtime, make_box: MakeBox) -> None:
    box = await make_box(deadman_s=5, owner="deadman" + OWN)
    client = WardenClient(box)
    await client.run("sleep 1000 &")
    await client.start("sleep 1000", timeout_s=None)  # Would keep it for ever.
    await client.close()
    for _ in range(400):
        if not await box.is_alive():
            break
        await asyncio.sleep(0.1)
    assert not await box.is_alive()
    assert await runtime.boxes("deadman" + OWN) == []


async def test_an_owner_that_speaks_keeps_the_box(make_box: MakeBox) -> None:
    box = await make_box(deadman_s=6)
    async with WardenClient(box) as warden:
        enough = time.monotonic() + 8
        while time.monotonic() < enough:
            await asyncio.sleep(0.1)
            await warden.ping()
        assert (await warden.run("echo here")).output == "here\n"


async def test_a_running_command_keeps_the_box(make_box: MakeBox) -> None:
    box = await make_box(deadman_s=4)
    async with WardenClient(box) as warden:
        result = await warden.run("sleep 7; echo done")
    assert result.output == "done\n"


CREATOR = """
import asyncio, sys
from pathlib import Path
import structlog
from tests.contract.conftest import make_runtime
from sandbox_server.runtime.base import BoxSpec
from sandbox_server.runtime.agent import Output
from sandbox_server.runtime.warden.client import WardenClient

async def main():
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    runtime = make_runtime(sys.argv[1], Path(sys.argv[2]))
    box = await runtime.create(BoxSpec(owner=sys.argv[3], deadman_s=300))
    warden = box.agent(epoch=1)
    await warden.run("echo kept > /workspace/file; cd /tmp; name=value", key="first")
    command = "echo begun; sleep 2; echo ended >> /workspace/file; cat /workspace/file"
    async for event in warden.stream(command, key="second", command_id="long"):
        if isinstance(event, Output):
            print(box.id, flush=True)

asyncio.run(main())
"""


@pytest.mark.kernel
async def test_adoption_after_the_server_was_killed(
    runtime: Runtime, runtime_name: str, state_dir: Path
) -> None:
    creator = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CREATOR, runtime_name, str(state_dir), "killed" + OWN,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    assert creator.stdout is not None
    box_id = (await creator.stdout.readline()).decode().strip()
    creator.send_signal(signal.SIGKILL)
    await creator.wait()

    (box,) = await runtime.boxes("killed" + OWN)
    try:
        assert box.id == box_id
        async with box.agent(epoch=2) as warden:
            events = [event async for event in warden.attach("long")]
            assert isinstance(events[-1], CommandResult)
            text = b"".join(e.data for e in events if isinstance(e, Output))
            assert text == b"begun\nkept\nended\n"
            state = await warden.state()
            assert [c.idempotency_key for c in state.commands] == ["first", "second"]
            assert (await warden.run("echo $name; pwd")).output == "value\n/tmp\n"
    finally:
        await box.destroy()
    assert await runtime.boxes("killed" + OWN) == []


@pytest.mark.kernel
async def test_boxes_of_other_owners_are_not_mine(runtime: Runtime, make_box: MakeBox) -> None:
    box = await make_box(owner="me" + OWN)
    assert [found.id for found in await runtime.boxes("me" + OWN)] == [box.id]
    assert await runtime.boxes("you" + OWN) == []


@pytest.mark.kernel
async def test_destroying_twice_is_harmless(box: WardenBox) -> None:
    await box.destroy()
    await box.destroy()
    assert not await box.is_alive()


@pytest.mark.kernel
async def test_a_cancelled_creation_leaves_nothing(runtime_name: str, state_dir: Path) -> None:
    from sandbox_server.runtime.base import BoxSpec

    async with make_runtime(runtime_name, state_dir) as runtime:
        for delay in (0.0, 0.01, 0.03, 0.08, 0.15, 0.25):
            task = asyncio.create_task(
                runtime.create(BoxSpec(owner="cancelled" + OWN, deadman_s=60))
            )
            await asyncio.sleep(delay)
            task.cancel()
            try:
                await (await task).destroy()
            except asyncio.CancelledError:
                continue
        assert await runtime.boxes("cancelled" + OWN) == []
