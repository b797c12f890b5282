"""`sandbox run`: the right streams, the right exit code, and Ctrl-C."""

import json
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from tests.cli.program import SANDBOX, Program

pytestmark = pytest.mark.timeout(600)  # Many processes, each with its own start.


def test_streams_and_exit_code(sandbox: Program) -> None:
    done = sandbox("run", "echo out; echo err >&2; exit 3")
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 3)


def test_output_comes_as_it_is_written(sandbox: Program, thread: str) -> None:
    with sandbox.popen("run", "-t", thread, "echo first; read line; echo then $line") as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "first\n"
        process.stdin.write("second\n")
        process.stdin.flush()
        assert process.stdout.readline() == "then second\n"
        assert process.wait(60) == 0, "it ends although its stdin is still open"


def test_a_run_without_thread_leaves_nothing(sandbox: Program) -> None:
    before = len(sandbox.json("ps")["sessions"])
    assert sandbox.output("run", "pwd") == "/workspace\n"
    assert len(sandbox.json("ps")["sessions"]) == before


def test_limits_and_provider_of_a_new_sandbox(sandbox: Program, thread: str) -> None:
    runtime = sandbox.json("health")["runtime"]
    small = ("--memory", "128m", "--pids", "64", "--disk", "32m", "--provider", runtime)
    assert sandbox.output("run", "-t", thread, *small, "echo here") == "here\n"
    limits = sandbox.json("ps", thread)["session"]["limits"]
    assert (limits["memory_bytes"], limits["pids"], limits["disk_bytes"]) == (
        128 << 20, 64, 32 << 20,
    )  # fmt: skip
    done = sandbox("run", "-t", thread, "--memory", "256m", "echo there")
    assert (done.stdout, done.returncode) == ("there\n", 0)
    assert "made without this limits.memory" in done.stderr


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--memory", "900g", "900 GiB is more than a session may have"),
        ("--memory", "1e400", "is not a size"),
        ("--cpus", "nan", "limits.cpus"),
        ("--pids", "-3", "limits.pids"),
        ("--provider", "e2b", "pip install agent-sandbox[e2b]"),
    ],
)
def test_what_a_sandbox_cannot_have(sandbox: Program, option: str, value: str, says: str) -> None:
    done = sandbox("run", option, value, "true")
    assert (done.stdout, done.returncode) == ("", 125)
    assert says in done.stderr


def test_a_thread_keeps_its_state(sandbox: Program, thread: str) -> None:
    sandbox.output("run", "--thread", thread, "cd /tmp; n=5")
    assert sandbox.output("run", "--thread", thread, "pwd; echo $n") == "/tmp\n5\n"


def test_what_is_piped_in(sandbox: Program) -> None:
    text = "línea\n" * 20_000
    assert sandbox.output("run", "wc -c", stdin=text) == f"{len(text.encode())}\n"
    assert sandbox.output("run", "cat | tail -n 1", stdin=text) == "línea\n"
    assert sandbox.output("run", "-n", "cat", stdin="not for you") == ""


def test_input_larger_than_what_waits_unread(sandbox: Program) -> None:
    size = 5 << 20
    done = sandbox("run", "sleep 1; wc -c", stdin="x" * size)
    assert (done.stdout, done.returncode) == (f"{size}\n", 0)


def test_input_that_nobody_reads(sandbox: Program) -> None:
    done = sandbox("run", "true", stdin="x" * (3 << 20))
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_in_a_pipeline(sandbox: Program) -> None:
    line = f"seq 3 | {SANDBOX} run 'sort -r' | {SANDBOX} run 'paste -sd,'"
    done = subprocess.run(
        ["bash", "-c", line],
        env=sandbox.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "3,2,1\n"


def test_options(sandbox: Program) -> None:
    done = sandbox("run", "echo $A $B; pwd", "-e", "A=1", "--env", "B=x=y", "--cwd", "/tmp")
    assert done.stdout == "1 x=y\n/tmp\n"
    done = sandbox("run", "--timeout", "0.5", "echo soon; sleep 1000")
    assert (done.stdout, done.returncode) == ("soon\n", 124)
    assert "timeout" in done.stderr


def test_a_hint_comes_after_the_output(sandbox: Program, thread: str) -> None:
    done = sandbox("run", "-t", thread, "sudo ls")
    said, hint = done.stderr.splitlines()
    assert "sudo: command not found" in said
    assert hint.startswith("hint: nobody is root in this sandbox")
    assert sandbox("logs", thread).stderr == done.stderr
    events = sandbox("run", "-t", thread, "--json", "sudo ls").stdout.splitlines()
    assert json.loads(events[-1])["hint"] == hint.removeprefix("hint: ")


def test_the_usual_timeout_holds_with_input_too(alone: Program) -> None:
    done = alone("run", "echo soon; sleep 1000", stdin="x", env={"SANDBOX_COMMAND_TIMEOUT": "0.5"})
    assert (done.stdout, done.returncode) == ("soon\n", 124)


def test_files(sandbox: Program) -> None:
    (sandbox.folder / "a.txt").write_text("one\n")
    (sandbox.folder / "b:c.txt").write_text("two\n")
    args = ("--file", "a.txt", "--file", "a.txt:d/e.txt", "--file", "b:c.txt")
    assert sandbox.output("run", *args, "cat a.txt d/e.txt b:c.txt") == "one\none\ntwo\n"


def test_json_lines(sandbox: Program) -> None:
    done = sandbox("run", "--json", "echo out; echo err >&2; exit 3")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in events] == ["start", "stdout", "stderr", "exit"]
    assert (events[1]["data"], events[2]["data"], events[3]["exit_code"]) == ("out\n", "err\n", 3)
    assert (done.stderr, done.returncode) == ("", 3)


def test_bytes_that_are_no_text(sandbox: Program) -> None:
    done = sandbox("run", r"printf 'a\xffb\n'")
    assert (done.stdout, done.returncode) == ("a\ufffdb\n", 0)


@pytest.mark.parametrize("kind", ["a terminal", "pipes"])
def test_ctrl_c_kills_the_command_and_all_it_started(
    sandbox: Program, thread: str, kind: str
) -> None:
    command = "(setsid sleep 1001 &); trap '' INT TERM; echo run''ning; sleep 1002"
    if kind == "pipes":
        with sandbox.popen("run", "-t", thread, command) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"
            process.send_signal(2)
            assert process.wait(60) == 130
    else:
        with sandbox.terminal("run", "-t", thread, command) as terminal:
            terminal.expect("running")
            terminal.type("\x03")
            assert terminal.wait() == 130
            assert "Traceback" not in terminal.shown
    assert sandbox.output("run", "-t", thread, "pgrep -f 'sleep 100[12]' || echo none") == "none\n"


def test_ctrl_c_ends_a_session_of_ones_own(sandbox: Program) -> None:
    before = len(sandbox.json("ps")["sessions"])
    with sandbox.terminal("run", "echo run''ning; sleep 1000") as terminal:
        terminal.expect("running")
        terminal.type("\x03")
        assert terminal.wait() == 130
    assert len(sandbox.json("ps")["sessions"]) == before


def test_whoever_reads_may_leave(sandbox: Program) -> None:
    line = f"{SANDBOX} run 'yes | head -n 100000' 2>&1 | head -n 1"
    done = subprocess.run(
        ["bash", "-c", line],
        env=sandbox.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "y\n"


def test_in_this_process(alone: Program) -> None:
    done = alone("run", "whoami; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == ("sandboxuser\n", "", 7)


def test_a_thread_in_this_process(alone: Program) -> None:
    try:
        alone.output("run", "-t", "kept", "echo 1 > file")
        assert alone.output("run", "-t", "kept", "cat file") == "1\n"
        assert [each["thread_id"] for each in alone.json("ps")["sessions"]] == ["kept"]
    finally:
        assert alone("rm", "kept").returncode == 0


def test_ctrl_c_in_this_process(alone: Program) -> None:
    """The terminal tells every process of ours; boxes that are to stay do not listen."""
    try:
        with alone.terminal(
            "run", "-t", "kept", "echo 1 > file; echo run''ning; sleep 1001"
        ) as here:
            here.expect("running")
            here.type("\x03")
            assert here.wait() == 130
            assert "Traceback" not in here.shown
        left = alone.output("run", "-t", "kept", "cat file; pgrep -f 'sleep 100[1]' || echo none")
        assert left == "1\nnone\n"
    finally:
        assert alone("rm", "kept").returncode == 0


def test_the_local_file_is_not_there(sandbox: Program) -> None:
    done = sandbox("run", "--file", "nope.txt", "true")
    assert (done.stdout, done.returncode) == ("", 125)
    assert done.stderr == "sandbox: nope.txt: No such file or directory\n"
    assert not Path(sandbox.folder, "nope.txt").exists()


@pytest.mark.parametrize("stdin", ["", ":q\n"])
def test_an_editor_is_refused_at_once(sandbox: Program, thread: str, stdin: str) -> None:
    done = sandbox("run", "-t", thread, "vim notes.txt", stdin=stdin)
    assert done.returncode == 125
    assert done.stderr.startswith("sandbox: `vim` needs a terminal, and commands have none here")
    assert thread not in sandbox.output("ps"), "no box is made for it"


def test_who_waits_for_a_server_is_told(sandbox: Program) -> None:
    """A server that is full, at first."""
    full = {"error": {"code": "capacity", "message": "at capacity: 2 of 2", "request_id": "r"}}
    answers = [
        ("503 Service Unavailable\r\nRetry-After: 3", json.dumps(full)),
        ("200 OK", json.dumps({"sessions": []})),
    ]
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for status, body in answers:
                with listener.accept()[0] as caller:
                    caller.recv(65536)
                    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n"
                    caller.sendall(f"{head}Connection: close\r\n\r\n{body}".encode())

        serving = threading.Thread(target=serve)
        serving.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        done = sandbox("ps", env={"SANDBOX_URL": url})
        serving.join()
    assert done.returncode == 0
    assert done.stderr.startswith(f"sandbox: the server at {url} puts calls off (at capacity: 2")
    assert "trying for another 30 s" in done.stderr
