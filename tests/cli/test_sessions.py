"""ps, logs, kill, rm."""

import json

import pytest

from tests.cli.program import Program

pytestmark = pytest.mark.timeout(600)  # Many processes, each with its own start.


def newest(sandbox: Program, thread: str) -> str:
    return str(sandbox.json("ps", thread)["commands"][-1]["command_id"])


def test_ps(sandbox: Program, thread: str) -> None:
    sandbox.output("run", "-t", thread, "true")
    (mine,) = [each for each in sandbox.json("ps")["sessions"] if each["thread_id"] == thread]
    assert (mine["state"], mine["generation"], mine["runtime"]) == ("idle", 1, "bubblewrap")
    table = sandbox.output("ps")
    assert table.splitlines()[0].split()[:2] == ["THREAD", "STATE"]
    assert [line for line in table.splitlines() if line.startswith(thread)]


def test_ps_of_a_thread(sandbox: Program, thread: str) -> None:
    sandbox("run", "-t", thread, "echo 1234; exit 5")
    (command,) = sandbox.json("ps", thread)["commands"]
    assert (command["running"], command["exit_code"], command["output_bytes"]) == (False, 5, 5)
    assert f"{command['command_id']}  exit 5" in sandbox.output("ps", thread)
    document = sandbox.json("ps", "--thread", thread)
    assert document["session"]["thread_id"] == thread
    heads, session, _, commands, *_ = sandbox.output("ps", "--thread", thread).splitlines()
    assert (heads.split()[0], session.split()[0], commands.split()[0]) == (
        "THREAD",
        thread,
        "COMMAND",
    )
    assert sandbox("ps", thread, "--thread", "another").returncode == 2
    missing = sandbox("ps", "--thread", "nobody-here")
    assert missing.returncode == 125
    assert missing.stderr.startswith("sandbox: thread 'nobody-here' has no session")


def test_logs(sandbox: Program, thread: str) -> None:
    sandbox("run", "-t", thread, "echo old")
    old = newest(sandbox, thread)
    sandbox("run", "-t", thread, "echo out; echo err >&2")
    done = sandbox("logs", thread)
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 0)
    assert sandbox("logs", thread, old).stdout == "old\n"
    assert sandbox.json("logs", thread)["output"] == "out\nerr\n"


def test_logs_that_are_followed(sandbox: Program, thread: str) -> None:
    with sandbox.popen("run", "-t", thread, "echo one; read; echo two") as running:
        assert running.stdout is not None
        assert running.stdin is not None
        assert running.stdout.readline() == "one\n"
        with sandbox.popen("logs", thread, "--follow") as logs:
            assert logs.stdout is not None
            assert logs.stdout.readline() == "one\n"
            running.stdin.write("\n")
            running.stdin.flush()
            assert logs.stdout.readline() == "two\n"
            assert logs.wait(60) == 0
        assert running.wait(60) == 0
    events = [
        json.loads(line) for line in sandbox("logs", thread, "-f", "--json").stdout.split("\n")[:-1]
    ]
    assert events[-1]["exit_code"] == 0


def test_ctrl_c_leaves_the_command_alone(sandbox: Program, thread: str) -> None:
    with sandbox.popen("run", "-t", thread, "echo one; read; echo two") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "one\n"
        with sandbox.terminal("logs", thread, "--follow") as logs:
            logs.expect("one")
            logs.type("\x03")
            assert logs.wait() == 130
            assert "Traceback" not in logs.shown
        running.communicate("\n", timeout=60)
        assert running.returncode == 0


def test_kill(sandbox: Program, thread: str) -> None:
    with sandbox.popen("run", "-t", thread, "echo started; sleep 1000") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "started\n"
        command_id = newest(sandbox, thread)
        assert sandbox.json("kill", thread, command_id)["command_id"] == command_id
        assert running.wait(60) == 137
    assert sandbox("kill", thread, command_id).returncode == 0, "a second time is no error"
    done = sandbox("kill", thread, command_id, "--signal", "NOPE")
    assert done.returncode == 2
    assert "TERM" in done.stderr


def test_rm(sandbox: Program) -> None:
    for name in ("rm-1", "rm-2"):
        sandbox.output("run", "-t", name, "true")
    done = sandbox("rm", "rm-1", "rm-none", "rm-2")
    assert done.returncode == 125
    assert done.stderr.startswith("sandbox: rm-none: ")
    assert done.stderr.count("\n") == 1
    left = {each["thread_id"] for each in sandbox.json("ps")["sessions"]}
    assert not left & {"rm-1", "rm-2"}
    sandbox.output("run", "-t", "rm-1", "true")
    assert sandbox.json("rm", "rm-1") == {
        "threads": [{"thread_id": "rm-1", "status": "cleaned up"}]
    }


def test_rm_all(alone: Program) -> None:
    """In-process, where no server has to be running."""
    alone.output("run", "--thread", "all-1", "true")
    assert alone.json("rm", "--all") == {
        "threads": [{"thread_id": "all-1", "status": "cleaned up"}]
    }
    assert "name the threads to end, or pass --all" in alone("rm").stderr


def test_what_is_not_there(sandbox: Program, thread: str) -> None:
    sandbox.output("run", "-t", thread, "true")
    for args in (
        ["ps", "none"],
        ["logs", "none"],
        ["logs", thread, "none"],
        ["kill", thread, "none"],
    ):
        done = sandbox(*args)
        assert (done.stdout, done.returncode) == ("", 125), args
        assert done.stderr.startswith("sandbox: "), args
        assert done.stderr.count("\n") == 1, args
        told = json.loads(sandbox(*args, "--json").stdout)
        assert told["error"]["code"].endswith("not_found"), args


def test_a_session_stands_still_and_ends_in_time(sandbox: Program, thread: str) -> None:
    sandbox.output("run", "-t", thread, "true")
    assert sandbox.output("pause", thread) == f"{thread}: paused, ends when it is idle\n"
    assert sandbox.json("unpause", thread)["state"] == "idle"
    assert sandbox.json("lifetime", thread, "10m")["end_at"] is not None
    assert sandbox.output("lifetime", thread, "0") == f"{thread}: idle, ends when it is idle\n"
    assert sandbox("lifetime", thread, "soon").returncode == 2
    assert sandbox.json("ps", "--metadata", "user=42")["sessions"] == []
    sandbox.output("rm", thread)
    assert sandbox("pause", thread).returncode == 125


def test_egress(sandbox: Program, thread: str) -> None:
    sandbox.output("run", "-t", thread, "true")
    assert sandbox.output("egress", thread) == f"{thread}: network none\n"
    told = sandbox.output("egress", thread, "--deny", "192.0.2.1", "--deny", "198.51.100.0/24")
    assert told.splitlines()[1:] == ["  deny 192.0.2.1", "  deny 198.51.100.0/24"]
    assert sandbox.json("egress", thread)["deny"] == ["192.0.2.1", "198.51.100.0/24"]
    assert sandbox("egress", thread, "--allow", "192.0.2.1").returncode == 125
    assert sandbox("egress", thread, "--reset", "--deny", "192.0.2.1").returncode == 2
    assert sandbox.json("egress", thread, "--reset") == {"allow": [], "deny": []}
