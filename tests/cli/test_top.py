"""`sandbox top`, on a terminal and without one."""

import json

import pytest

from tests.cli.program import Program

pytestmark = pytest.mark.timeout(600)  # Many processes, each with its own start.


def test_one_look(sandbox: Program, thread: str) -> None:
    sandbox.output("run", "-t", thread, "head -c 5000000 /dev/zero > zeros")
    heads, *rows = sandbox.output("top", "--once").splitlines()
    assert heads.split()[:4] == ["THREAD", "STATE", "IDLE", "CPU"]
    (mine,) = [row.split() for row in rows if row.startswith(thread)]
    assert (mine[1], mine[3], mine[-1]) == ("idle", "?", "bubblewrap")
    assert sandbox.output("top", "--sort", "memory").split()[:9] == heads.split()
    assert "none of cpu, memory" in sandbox("top", "--sort", "colour").stderr


def test_a_line_for_every_look(sandbox: Program, thread: str) -> None:
    sandbox.output("run", "-t", thread, "true")
    with sandbox.popen("top", "--json", "--every", "0.1") as top:
        assert top.stdout is not None
        for _ in range(3):
            sessions = json.loads(top.stdout.readline())["sessions"]
            assert thread in [session["thread_id"] for session in sessions]
        top.terminate()


def test_a_screen_that_changes(sandbox: Program, thread: str) -> None:
    with sandbox.terminal("top", "--every", "0.2", size=(20, 150), term="xterm") as screen:
        screen.expect("THREAD")
        sandbox.output("run", "-t", thread, "true")
        screen.expect(thread)
        with sandbox.popen("run", "-t", thread, "while :; do :; done") as busy:
            screen.expect(f"{thread}  busy")
            sandbox.output("rm", thread)
            busy.wait(60)
        screen.type("\x03")
        assert screen.wait() == 130
