"""`sandbox shell`, typed into a terminal, and fed by a script."""

import json
from pathlib import Path

import pytest

from tests.cli.program import Program

pytestmark = pytest.mark.timeout(600)  # Many processes, each with its own start.


def test_a_conversation(sandbox: Program, thread: str) -> None:
    prompt = f"{thread}:/workspace$ "
    with sandbox.terminal("shell", "--thread", thread) as terminal:
        terminal.expect(prompt)
        terminal.type("cd /tmp; name=world\n")
        terminal.expect(f"{thread}:/tmp$ ")
        terminal.type("echo hel''lo $name\n")
        terminal.expect("hello world")
        terminal.type("cd; cd /workspace\n")
        terminal.expect(prompt)
        terminal.type("\x04")
        assert terminal.wait() == 0
    assert sandbox.output("run", "-t", thread, "echo $name") == "world\n"


def test_commands_of_several_lines(sandbox: Program, thread: str) -> None:
    with sandbox.terminal("shell", "-t", thread) as terminal:
        for first, *more, told in (
            ["if true; then", "echo y''es", "fi", "yes\r\n"],
            ["cat <<END", "a\\", "b''c", "END", "ab''c\r\n"],
            ['printf %s\\\\n "one', 'two" | tac', "two\r\none\r\n"],
            ["echo ta''il \\", "of it", "tail of it\r\n"],
            ["for i in 1 2; do", "echo n=$((i*7))", "done |", "tail -n 1", "n=14\r\n"],
        ):
            terminal.expect(f"{thread}:/workspace$ ")
            terminal.type(f"{first}\n")
            for line in more:
                terminal.expect("> ")
                terminal.type(f"{line}\n")
            terminal.expect(told)
        terminal.expect("$ ")
        terminal.type("echo ) \n")
        terminal.expect("syntax error")
        terminal.expect("$ ")
        terminal.type("exit 9\n")
        assert terminal.wait() == 9


def test_ctrl_c_ends_the_command_and_not_the_shell(sandbox: Program, thread: str) -> None:
    with sandbox.terminal("shell", "-t", thread) as terminal:
        terminal.expect("$ ")
        terminal.type("x=kept\n")
        terminal.expect("$ ")
        terminal.type("(setsid sleep 1001 &); echo run''ning; sleep 1002\n")
        terminal.expect("running")
        terminal.type("\x03")
        terminal.expect("$ ")
        terminal.type("half a li\x03")
        terminal.expect("$ ")
        terminal.type("pgrep -f 'sleep 100[12]' || echo n''one $x\n")
        terminal.expect("none kept")
        terminal.expect("$ ")
        terminal.type("\x04")
        assert terminal.wait() == 0
        assert "Traceback" not in terminal.shown


def test_what_was_typed_is_remembered(sandbox: Program, thread: str) -> None:
    with sandbox.terminal("shell", "-t", thread) as terminal:
        terminal.expect("$ ")
        terminal.type("echo remember''ed\n")
        terminal.expect("remembered")
        terminal.expect("$ ")
        terminal.type("\x04")
        terminal.wait()
    with sandbox.terminal("shell", "-t", thread) as terminal:
        terminal.expect("$ ")
        terminal.type("\x1b[A\n")
        terminal.expect("remembered")
        terminal.expect("$ ")
        terminal.type("\x04")
        terminal.wait()
    history = Path(sandbox.env["XDG_STATE_HOME"], "sandbox", "history")
    assert history.stat().st_mode & 0o777 == 0o600


def test_without_a_thread_it_leaves_nothing(sandbox: Program) -> None:
    before = len(sandbox.json("ps")["sessions"])
    assert sandbox.output("shell", stdin="cd /tmp\npwd\n") == "/tmp\n"
    assert len(sandbox.json("ps")["sessions"]) == before


def test_a_script(sandbox: Program, thread: str) -> None:
    done = sandbox(
        "shell", "-t", thread, stdin="if true\nthen echo yes\nfi\necho err >&2\n(exit 4)\n"
    )
    assert (done.stdout, done.stderr, done.returncode) == ("yes\n", "err\n", 4)


def test_json_lines(sandbox: Program, thread: str) -> None:
    lines = sandbox.output("shell", "-t", thread, "--json", stdin="echo 1\n").splitlines()
    events = [json.loads(line) for line in lines]
    assert [each["data"] for each in events if each["event"] == "stdout"] == ["1\n"]


def test_in_this_process(alone: Program) -> None:
    assert alone.output("shell", stdin="a=1\necho $((a + 1))\n") == "2\n"
