"""Commands and terminals through e2b's SDK."""

from typing import Any

import pytest
from e2b import (
    AuthenticationException,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    SandboxNotRunningException,
    TimeoutException,
)
from e2b.sandbox.commands.command_handle import PtySize

from tests.e2b.servers import Blocking
from tests.e2b.waiting import eventually


def test_a_command_runs_in_the_home(box: Any) -> None:
    done = box.commands.run("echo out; echo err >&2; pwd; echo $HOME")
    out, cwd, home = done.stdout.splitlines()
    assert (out, done.stderr, done.exit_code) == ("out", "err\n", 0)
    assert cwd == home


def test_commands_share_nothing(box: Any) -> None:
    box.commands.run("cd /tmp; export A=1; B=2")
    assert box.commands.run("echo $A$B; pwd").stdout != "12\n/tmp\n"


def test_variables_and_folder(box: Any) -> None:
    box.commands.run("mkdir -p 'a b'")
    done = box.commands.run('echo "$GREETING"; pwd', envs={"GREETING": 'it\'s "fine"'}, cwd="a b")
    greeting, cwd = done.stdout.splitlines()
    assert greeting == 'it\'s "fine"'
    assert cwd.endswith("/a b")


def test_a_failure_is_an_exception(box: Any) -> None:
    with pytest.raises(CommandExitException) as raised:
        box.commands.run("echo seen; echo why >&2; exit 7")
    assert (raised.value.exit_code, raised.value.stdout, raised.value.stderr) == (
        7,
        "seen\n",
        "why\n",
    )


def test_a_command_ends_with_its_time(box: Any) -> None:
    with pytest.raises(TimeoutException):
        box.commands.run("echo $$ > pid; exec sleep 1000", timeout=1)
    eventually(lambda: box.commands.run("kill -0 $(cat pid) 2>/dev/null || echo gone").stdout)


def test_a_command_of_a_sandbox_that_is_killed(box: Any) -> None:
    handle = box.commands.run("exec sleep 1000", background=True)
    box.kill()
    with pytest.raises(SandboxNotRunningException, match="killed or reached its end of life"):
        handle.wait()


def test_output_is_exact(box: Any) -> None:
    """Characters that come in pieces, bytes that are no text, and more than is kept."""
    done = box.commands.run("printf '\\xc3'; sleep 0.3; printf '\\xa9'")
    assert done.stdout == "é"
    assert box.commands.run("printf 'a\\xff\\xfeb'").stdout == "a��b"
    many = box.commands.run("head -c 3000000 /dev/zero | tr '\\0' x").stdout
    assert many == "x" * 3_000_000


def test_input(box: Any) -> None:
    handle = box.commands.run("cat; echo done", background=True, stdin=True)
    box.commands.send_stdin(handle.pid, "typed\n")
    box.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "typed\ndone\n"


def test_input_in_a_stream(box: Any) -> None:
    handle = box.commands.run("wc -c", background=True, stdin=True)
    pieces = ["a" * 700_000, b"b" * 3_000_000, "c"]
    if isinstance(box, Blocking):
        stream = box.commands.stream_input(handle.pid)
        for piece in pieces:
            stream.send(piece)
        stream.close()
    else:
        box.commands.stream_input(handle.pid, pieces)
    box.commands.close_stdin(handle.pid)
    assert handle.wait().stdout.strip() == "3700001"


def test_input_for_a_command_that_takes_none(box: Any) -> None:
    handle = box.commands.run("sleep 1000", background=True)
    with pytest.raises(Exception, match=r"(?i)stdin"):
        box.commands.send_stdin(handle.pid, "x")
    assert handle.kill()


def test_a_process_is_listed_killed_and_found_again(box: Any) -> None:
    handle = box.commands.run("echo begun; sleep 1000", background=True, envs={"A": "1"})
    (found,) = [each for each in box.commands.list() if each.pid == handle.pid]
    assert (found.cmd, found.args) == ("/bin/bash", ["-l", "-c", "echo begun; sleep 1000"])
    assert found.envs == {"A": "1"}
    assert box.commands.kill(handle.pid)
    with pytest.raises(CommandExitException) as raised:
        handle.wait()
    assert raised.value.exit_code == -1
    assert box.commands.kill(handle.pid) is False
    assert box.commands.list() == []


def test_the_pid_is_the_one_in_the_box(box: Any) -> None:
    handle = box.commands.run("echo $$", background=True)
    assert handle.wait().stdout == f"{handle.pid}\n"


def test_a_client_that_leaves_finds_its_command_again(box: Any) -> None:
    handle = box.commands.run(
        "echo early; while [ ! -e go ]; do sleep 0.05; done; echo late", background=True
    )
    handle.disconnect()
    again = box.commands.connect(handle.pid)
    box.files.write("go", "")
    assert "late" in again.wait().stdout


def test_no_such_process(box: Any) -> None:
    with pytest.raises(NotFoundException):
        box.commands.connect(4_000_000)
    assert box.commands.kill(4_000_000) is False
    with pytest.raises(NotFoundException):
        box.commands.send_stdin(4_000_000, "x")


def test_a_folder_that_is_not_there(box: Any) -> None:
    with pytest.raises(InvalidArgumentException, match="nowhere"):
        box.commands.run("pwd", cwd="/nowhere")


def test_users(box: Any) -> None:
    assert box.commands.run("whoami", user="user").stdout == box.commands.run("whoami").stdout
    with pytest.raises(AuthenticationException, match="root"):
        box.commands.run("whoami", user="root")


def test_a_terminal(box: Any) -> None:
    seen: list[bytes] = []
    more = {"on_data": seen.append} if isinstance(box, Blocking) else {}
    handle = box.pty.create(PtySize(rows=33, cols=99), envs={"PS1": "", "NAME": "x"}, **more)
    box.pty.resize(handle.pid, PtySize(rows=44, cols=111))
    box.pty.send_stdin(handle.pid, b"stty size; echo $NAME-$TERM; exit 5\n")
    with pytest.raises(CommandExitException) as raised:
        handle.wait(**({} if more else {"on_pty": seen.append}))
    assert raised.value.exit_code == 5
    shown = b"".join(seen).decode()
    assert "44 111" in shown
    assert "x-xterm-256color" in shown


def test_a_terminal_is_killed(box: Any) -> None:
    more = {"on_data": lambda _data: None} if isinstance(box, Blocking) else {}
    handle = box.pty.create(PtySize(rows=24, cols=80), **more)
    assert box.pty.kill(handle.pid)
    eventually(lambda: box.pty.kill(handle.pid) is False)


def test_git(box: Any) -> None:
    box.git.init("repo")
    box.files.write("repo/a.txt", "1")
    assert box.git.status("repo").file_status[0].name == "a.txt"
