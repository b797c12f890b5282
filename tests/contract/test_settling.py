"""The end of a command whose shell is over: nothing can put it off, and a kill still works."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from sandbox_server.runtime.streams import ByteStream
from sandbox_server.runtime.warden.client import WardenBox, WardenClient
from sandbox_warden import frames

from .test_kills import nothing_left, survivors

PATIENCE_S = 30.0
SOON_S = 8.0
"""Less than a slow reader may hold up a command for."""
CHANNEL = 7
LEFT = 29_000
"""What is in the pipe when the shell is over: it fits into the smallest one there is."""
TAKEN = frames.WINDOW - frames.WINDOW // 4096 * frames.OFFSET.size
"""What a reader gets at least before it grants more: each piece has its offset besides."""
WRITTEN = TAKEN + LEFT
OVER = "while [ -e /proc/$(cat /tmp/shell) ]; do sleep 0.02; done"
BACKGROUND = """
echo $$ >/tmp/shell
(until [ -e /tmp/go ]; do sleep 0.02; done
 head -c 20000 </proc/self/fd/1 >/dev/null; touch /tmp/read
 timeout 1 cat </proc/self/fd/1 >/dev/null; touch /tmp/drained; sleep 7771) &
"""


class SlowReader:
    """Follows a command, and takes no more than the first MiB of its output."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._decoder = frames.Decoder()

    async def run(self, command: str, *, timeout_s: float) -> None:
        hello = {"version": 1, "epoch": 1}
        body = {
            "command": command, "command_id": "slow", "digest": "d", "timeout_s": timeout_s,
            "output_limit": 4096, "follow": True,
        }  # fmt: skip
        await self._stream.write(frames.encode_json(frames.HELLO, 1, hello))
        await self._stream.write(frames.encode_json(frames.RUN, CHANNEL, body))

    async def take_more(self) -> None:
        credit = frames.OFFSET.pack(frames.WINDOW)
        await self._stream.write(frames.encode(frames.CREDIT, CHANNEL, credit))

    async def result(self) -> dict[str, object]:
        async with asyncio.timeout(PATIENCE_S):
            while data := await self._stream.read():
                for kind, channel, payload in self._decoder.feed(data):
                    if channel == CHANNEL and kind in (frames.REPLY, frames.ERROR):
                        return frames.decode_json(payload)
        raise AssertionError("the stream is closed")


@pytest.fixture
async def reader(box: WardenBox) -> AsyncIterator[SlowReader]:
    stream = await box.open_stream()
    yield SlowReader(stream)
    await stream.close()


async def until_over(
    warden: WardenClient, reader: SlowReader, end: str = "", *, timeout_s: float = 300
) -> asyncio.Task[dict[str, object]]:
    """A command whose shell is over, with output that its reader does not take, and a child."""
    await reader.run(f"{BACKGROUND} head -c {WRITTEN} /dev/zero; {end}", timeout_s=timeout_s)
    taking = asyncio.create_task(reader.result())
    await warden.run(f"until [ -s /tmp/shell ]; do sleep 0.02; done; {OVER}")
    return taking


async def test_a_child_that_reads_along_does_not_put_off_the_end(warden: WardenClient) -> None:
    """It takes from the pipe what was there when the shell ended."""
    for _ in range(20):
        async with asyncio.timeout(PATIENCE_S):
            await warden.run(
                "cat </proc/self/fd/1 >/dev/null & for i in {1..300}; do echo $i; done"
            )


async def test_what_a_child_has_taken_is_not_waited_for(
    warden: WardenClient, reader: SlowReader
) -> None:
    taking = await until_over(warden, reader)
    await warden.run("touch /tmp/go; until [ -e /tmp/drained ]; do sleep 0.02; done")
    await reader.take_more()
    result = await taking
    assert result["exit_code"] == 0
    assert TAKEN <= int(str(result["output_bytes"])) < WRITTEN - 20_000 + 4096


@pytest.mark.kernel
async def test_a_kill_works_although_the_shell_is_over(
    warden: WardenClient, reader: SlowReader
) -> None:
    taking = await until_over(warden, reader, "exit 3")
    assert len(await survivors(warden)) > 0
    await warden.signal("slow", 9)
    async with asyncio.timeout(SOON_S):
        await warden.ended("slow")
    await nothing_left(warden)
    await reader.take_more()
    assert (await taking)["exit_code"] == 3


async def test_a_timeout_works_although_the_shell_is_over(
    warden: WardenClient, reader: SlowReader
) -> None:
    taking = await until_over(warden, reader, timeout_s=2)
    async with asyncio.timeout(SOON_S):
        while any(c.running for c in (await warden.state()).commands):
            await asyncio.sleep(0.05)
    await nothing_left(warden)
    await reader.take_more()
    result = await taking
    assert (result["exit_code"], result["timed_out"]) == (124, True)


async def test_writers_after_the_end_do_not_hold_up_anybody(warden: WardenClient) -> None:
    """Children that write for ever, one of them with nobody left who reads."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.3):
            await warden.run("yes & yes >&2 & echo begun")
    result = await warden.run("yes & yes >&2 & echo begun", timeout_s=60)
    assert result.exit_code == 0
    for _ in range(5):
        assert (await warden.run("echo ok")).output == "ok\n"
