"""`sandbox shell`: a terminal of a sandbox, and lines fed by a script."""

import json

import pytest

from tests.cli.program import Program, Terminal

pytestmark = pytest.mark.timeout(600)  # Many processes, each with its own start.
PROMPT = "sandboxuser\x1b[0m:\x1b[34m"


def at_prompt(terminal: Terminal) -> None:
    terminal.expect(PROMPT)
    terminal.expect("$ ")


def test_it_goes_on_from_the_last_command_and_leaves_its_state(
    sandbox: Program, thread: str
) -> None:
    sandbox.output("run", "-t", thread, "cd /tmp; name=world")
    with sandbox.terminal("shell", "--thread", thread) as terminal:
        at_prompt(terminal)
        terminal.type("echo hel''lo $name in $PWD; name=all\r")
        terminal.expect("hello world in /tmp\r\n")
        at_prompt(terminal)
        terminal.type("\x04")
        assert terminal.wait() == 0
    assert sandbox.output("run", "-t", thread, "echo $name") == "all\n"


def test_it_is_a_terminal(sandbox: Program, thread: str) -> None:
    with sandbox.terminal("shell", "-t", thread, size=(30, 100)) as terminal:
        at_prompt(terminal)
        terminal.type("stty size; ec")
        terminal.type("\t ta''b\r")
        terminal.expect("\n30 100\r\n")
        terminal.expect("tab\r\n")
        terminal.resize(rows=40, cols=132)
        at_prompt(terminal)
        terminal.type("until [ \"$(stty size)\" = '40 132' ]; do :; done; echo res''ized\r")
        terminal.expect("resized\r\n")
        terminal.type("sh -c 'echo re''ady; exec sleep 1001'\r")
        terminal.expect("ready\r\n")
        terminal.type("\x1a")
        terminal.expect("Stopped")
        at_prompt(terminal)
        terminal.type("fg\r")
        terminal.expect("sh -c")
        terminal.expect("\r\n")
        terminal.type("\x03")
        at_prompt(terminal)
        terminal.type("sh -c 'echo re''ady; cat > note'\r")
        terminal.expect("ready\r\n")
        terminal.type("text\r\x04")
        at_prompt(terminal)
        terminal.type("exit 9\r")
        assert terminal.wait() == 9
        assert "Traceback" not in terminal.shown
    assert sandbox.output("run", "-t", thread, "cat note") == "text\n"


def test_it_is_left_and_come_back_to(sandbox: Program, thread: str) -> None:
    with sandbox.terminal("shell", "-t", thread) as terminal:
        at_prompt(terminal)
        terminal.type("x=kept; (sleep 0.3; echo la''ter) &\r")
        at_prompt(terminal)
        terminal.type("\x1d")
        terminal.expect("detached; come back with `sandbox shell --thread")
        terminal.expect("--attach ")
        command_id = terminal.shown.split("`")[0]
        assert terminal.wait() == 0
    for name in (command_id, "last"):
        with sandbox.terminal("shell", "-t", thread, "--attach", name) as terminal:
            terminal.expect("later")
            terminal.type("echo still $x\r")
            terminal.expect("still kept\r\n")
            terminal.type("\x1d")
            assert terminal.wait() == 0
    with sandbox.terminal("shell", "-t", thread, "--attach", "none") as terminal:
        terminal.expect(f"no terminal 'none' of this thread runs; there is {command_id}")
        assert terminal.wait() == 125
    done = sandbox("shell", "-t", thread, "--attach", "last", stdin="")
    assert "--attach needs a terminal here" in done.stderr


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
