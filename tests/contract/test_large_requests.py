"""What does not fit into a frame is refused before it is sent, and everything else arrives."""

import asyncio
import os
from typing import Any

import pytest

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.warden.client import WardenBox, WardenClient
from sandbox_warden import frames

from .test_protocol import HELLO, answers, code_of

MIB = 1 << 20


TOO_LARGE: dict[str, tuple[str, dict[str, Any]]] = {
    "command": (": " + "x" * MIB, {}),
    "utf-8": (": " + "é" * 600_000, {}),
    "escaped": (": " + "\n" * 600_000, {}),
    "env": (":", {"env": {"A": "x" * 1_100_000}}),
    "many": (":", {"env": {f"A{i}": "x" * 90 for i in range(12_000)}}),
    "cwd": (":", {"cwd": "x" * 1_100_000}),
    "key": (":", {"key": "x" * 1_100_000}),
}


@pytest.mark.kernel
async def test_too_large_for_a_frame(warden: WardenClient, subtests: pytest.Subtests) -> None:
    for name, (command, options) in TOO_LARGE.items():
        with subtests.test(name):
            async with asyncio.timeout(20):
                with pytest.raises(errors.InvalidRequest, match=r"1048576"):
                    await warden.run(command, **options)
                with pytest.raises(errors.InvalidRequest):
                    await warden.start(command, **options)
                assert (await warden.run("echo ok")).output == "ok\n"


async def test_text_travels_as_it_is(warden: WardenClient) -> None:
    """360 kB of é were 1.1 MB in ASCII."""
    text = "é" * 180_000
    result = await warden.run(f": {text}\nprintf %s ${{#A}}", env={"A": "ü" * 60_000})
    assert result.output == "60000"
    assert (await warden.run("wc -c", stdin=text.encode())).output == "360000\n"


async def test_paths_and_state_that_are_too_long(warden: WardenClient) -> None:
    path = "x" * 2 * MIB
    for call in (warden.list(path), warden.stat(path), warden.put(path, nothing())):
        with pytest.raises(errors.InvalidPath):
            await call
    with pytest.raises(errors.InvalidPath):
        async with warden.get(path):
            pass
    with pytest.raises((errors.InvalidPath, errors.FileMissing)) as caught:
        await warden.run("pwd", cwd="y" * 500_000)
    assert len(caught.value.message) < 2000
    for size in (65 * 1024, 2 * MIB):
        with pytest.raises(errors.InvalidRequest):
            await warden.set_state({"x": "y" * size})
    assert (await warden.run("echo ok")).output == "ok\n"


async def nothing() -> Any:
    yield b""


HALF_A_PAIR = "\ud800"


HALVES: dict[str, tuple[str, dict[str, Any]]] = {
    "command": (f"echo {HALF_A_PAIR}", {}),
    "env": (":", {"env": {"A": HALF_A_PAIR}}),
    "stdin": (":", {"stdin": b"x", "env": {"A": HALF_A_PAIR}}),
}


async def test_half_a_surrogate_pair_is_refused_and_begins_nothing(
    warden: WardenClient, subtests: pytest.Subtests
) -> None:
    """More at once than there are shells at hand: those that wait for one are refused too."""
    for name, (command, options) in HALVES.items():
        with subtests.test(name):
            calls = [warden.run(command, **options) for _ in range(8)]
            async with asyncio.timeout(20):
                ended = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(each) for each in ended] == [errors.InvalidRequest] * 8
            assert not [each for each in (await warden.state()).commands if each.running]
            assert (await warden.run("echo ok")).output == "ok\n"


async def test_a_byte_that_is_no_text_arrives(warden: WardenClient) -> None:
    text = b"\xff".decode("utf-8", "surrogateescape")
    result = await warden.run(f"printf '{text}' | od -An -tx1")
    assert result.output.strip() == "ff"


async def test_a_frame_that_is_too_long(box: WardenBox) -> None:
    """The warden's own bounds hold for whoever speaks to it."""
    long = frames.HEADER.pack(frames.MAX_PAYLOAD + 1, frames.RUN, 5) + os.urandom(64)
    received = await answers(box, HELLO, long)
    assert code_of(received[-1]) == "bad_frame"
