"""Commands on a terminal: on every runtime by the warden, and over every way to a Sandboxes."""

import asyncio
import re
from typing import Any

import pytest

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.events import ExitEvent, OutputEvent
from sandbox_sdk.protocol.models import Pty
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_server.runtime.agent import CommandResult
from sandbox_server.runtime.warden import WardenClient

from .test_background import ended, said, start
from .test_sandboxes import run, thread

PATIENCE_S = 60.0
SIZE = (24, 80)


class Typist:
    """Somebody at a terminal of a warden."""

    def __init__(self, warden: WardenClient, command_id: str) -> None:
        self.warden = warden
        self.command_id = command_id
        self._seen = 0

    async def type(self, text: str) -> None:
        await self.warden.send_stdin(self.command_id, text.encode())

    async def sees(self, text: str) -> str:
        """Wait until something new is on the screen; returns all up to there."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                result = await self.warden.result(self.command_id)
                output = result.output
                at = output.find(text, self._seen)
                if at >= 0:
                    seen = output[self._seen : at + len(text)]
                    self._seen = at + len(text)
                    return seen
                assert result.exit_code is None, f"ended without {text!r}: {output[self._seen :]!r}"
                await asyncio.sleep(0.03)

    async def left(self) -> CommandResult:
        async with asyncio.timeout(PATIENCE_S):
            await self.warden.ended(self.command_id)
        return await self.warden.result(self.command_id)


async def terminal(warden: WardenClient, command: str = "", **options: Any) -> Typist:
    env = {"TERM": "xterm-256color", **options.pop("env", {})}
    command_id = await warden.start(
        command, pty=SIZE, env=env, **{"timeout_s": 120, "stdin_open": True, **options}
    )
    return Typist(warden, command_id)


@pytest.mark.kernel
async def test_a_command_has_a_terminal(warden: WardenClient) -> None:
    result = await warden.run(
        "tty; stty size; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all; echo $TERM; exit 3",
        pty=(30, 100), env={"TERM": "vt100"},
    )  # fmt: skip
    assert re.fullmatch(r"/dev/pts/\d+\r\n30 100\r\nall\r\nvt100\r\n", result.output)
    assert result.exit_code == 3
    assert (await warden.run("cd /tmp", pty=SIZE)).state_saved
    assert (await warden.run("pwd; [ -t 1 ] || echo none")).output == "/tmp\nnone\n"


async def test_a_terminal_is_resized(warden: WardenClient) -> None:
    typist = await terminal(
        warden, "trap 'stty size; exit' WINCH; stty size; while :; do sleep 0.05; done"
    )
    await typist.sees("24 80")
    summary = await warden.resize(typist.command_id, rows=40, cols=132)
    assert summary.pty == (40, 132)
    await typist.sees("40 132")
    await typist.left()
    assert (await warden.resize(typist.command_id, rows=1, cols=1)).running is False
    with pytest.raises(errors.InvalidRequest, match="between 1 and"):
        await warden.resize(typist.command_id, rows=0, cols=1)
    plain = await warden.start("sleep 60")
    with pytest.raises(errors.InvalidRequest, match="has no terminal"):
        await warden.resize(plain, rows=40, cols=132)


async def test_control_characters_reach_the_foreground(warden: WardenClient) -> None:
    typist = await terminal(warden)
    await typist.sees("$ ")
    await typist.type("sh -c 'echo sl''eeps; exec sleep 1000'\r")
    await typist.sees("sleeps\r\n")
    await typist.type("\x03")
    await typist.sees("$ ")
    await typist.type("echo code $?\r")
    await typist.sees("code 130")
    await typist.sees("$ ")
    await typist.type("sh -c 'echo sl''eeps; exec sleep 2000'\r")
    await typist.sees("sleeps\r\n")
    await typist.type("\x1a")
    await typist.sees("Stopped")
    await typist.sees("$ ")
    await typist.type("fg\r")
    await typist.sees("fg\r\nsh -c")
    await typist.sees("\r\n")
    await typist.type("\x03")
    await typist.sees("$ ")
    await typist.type("\x04")
    assert (await typist.left()).exit_code == 130


async def test_who_types_goes_on_from_the_last_command_and_leaves_a_state(
    warden: WardenClient,
) -> None:
    await warden.run(
        "set -o pipefail; mkdir -p a/b; cd a; here=1; greet() { echo hello $1; }; alias up='cd ..'"
    )
    typist = await terminal(warden)
    await typist.sees("$ ")
    await typist.type("echo $here $PWD; greet you\r")
    await typist.sees("1 /workspace/a\r\nhello you\r\n")
    await typist.type("here=2; cd b; greet() { echo bye; }; exit 4\r")
    result = await typist.left()
    assert (result.exit_code, result.state_saved) == (4, True)
    after = await warden.run(
        "echo $here $PWD; greet; up; pwd; set -o | grep pipefail; set -o | grep -c 'monitor.*on';"
        " echo ${PS1-none} ${HISTFILE-none} $TERM"
    )
    lines = after.output.split("\n")
    assert lines[:3] == ["2 /workspace/a/b", "bye", "/workspace/a"]
    assert lines[3].split() == ["pipefail", "on"]
    assert lines[4:6] == ["0", "none none dumb"]


async def test_programs_for_terminals(warden: WardenClient) -> None:
    typist = await terminal(warden, "python3 -q")
    await typist.sees(">>> ")
    await typist.type("6 * 7\r")
    await typist.sees("42")
    await typist.sees(">>> ")  # What is typed between two prompts is lost, if it is Ctrl-D.
    await typist.type("\x04")
    assert (await typist.left()).exit_code == 0
    typist = await terminal(warden, "seq 1000 | less")
    await typist.sees("23")
    await typist.type("G")
    await typist.sees("1000")
    await typist.type("q")
    assert (await typist.left()).exit_code == 0


async def test_an_editor_writes_a_file(warden: WardenClient) -> None:
    """A Debian machine has vim as vi, if it has it at all."""
    editor = (await warden.run("command -v vim || command -v vi")).output.strip()
    typist = await terminal(warden, f"{editor} -u NONE note.txt")
    await typist.sees("note.txt")
    await typist.type("ihéllo\x1b:wq\r")
    assert (await typist.left()).exit_code == 0
    assert (await warden.run("cat note.txt")).output == "héllo\n"


async def test_a_large_output_keeps_its_end(warden: WardenClient) -> None:
    result = await warden.run(
        "head -c 10000000 /dev/zero | tr '\\0' x; echo; echo the end", pty=SIZE, timeout_s=120
    )
    assert result.output_bytes >= 10_000_000
    assert result.output.endswith("the end\r\n")
    assert result.truncated


@pytest.mark.kernel
async def test_the_end_of_a_terminal(warden: WardenClient) -> None:
    """Its last output is there, what it left goes on, and a kill ends everything on it."""
    for _ in range(20):
        assert (await warden.run("printf last", pty=SIZE)).output == "last"
    typist = await terminal(
        warden, "trap '' HUP; (while :; do echo on; sleep 0.05; done) & echo up"
    )
    await typist.sees("up")
    await typist.left()
    assert (await warden.run("pgrep -f 'sleep 0.0[5]' >/dev/null; jobs; echo ok")).output == "ok\n"
    typist = await terminal(warden)
    await typist.sees("$ ")
    await typist.type("setsid sleep 4441 & sleep 4442\r")
    await typist.sees("sleep 4442\r\n")
    await asyncio.sleep(0.1)
    await warden.signal(typist.command_id, 9)
    assert (await typist.left()).signal == "KILL"
    assert (await warden.run("pgrep -fc 'sleep 444[12]'")).output == "0\n"


@pytest.mark.seam
@pytest.mark.wire
@pytest.mark.bash
async def test_a_terminal_over_every_way(sandboxes: Sandboxes) -> None:
    command_id = await start(sandboxes, "t", "", pty=Pty(rows=10, cols=40), timeout=None)
    await said(sandboxes, "t", command_id, "$ ")
    (listed,) = (await sandboxes.commands(thread("t"))).commands
    assert listed.pty is not None
    assert (listed.pty.rows, listed.pty.cols) == (10, 40)
    await sandboxes.send_stdin(thread("t"), command_id, b"stty size\r")
    await said(sandboxes, "t", command_id, "\n10 40\r\n")
    resized = await sandboxes.resize(thread("t"), command_id, rows=20, cols=50)
    assert resized.pty is not None
    await sandboxes.send_stdin(thread("t"), command_id, b"stty size; kept=yes\r")
    shown = await said(sandboxes, "t", command_id, "\n20 50\r\n")
    text, at = "", shown.output_bytes
    await sandboxes.send_stdin(thread("t"), command_id, b"exit\r")
    async for event in sandboxes.follow(thread("t"), command_id, offset=at):
        if isinstance(event, OutputEvent):
            text += event.data
        elif isinstance(event, ExitEvent):
            assert event.exit_code == 0
    assert text.endswith("exit\r\n")
    assert (await ended(sandboxes, "t", command_id)).exit_code == 0
    assert (await run(sandboxes, "t", "echo $kept")).output == "yes\n"
    with pytest.raises(errors.NotFound):
        await sandboxes.resize(thread("t"), "none", rows=1, cols=1)
    with pytest.raises(errors.InvalidRequest):
        await sandboxes.resize(thread("t"), command_id, rows=0, cols=1)
