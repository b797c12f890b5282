"""A shell that has ended its command in order runs the next one. Nobody can tell, but for the time
it takes: whatever a command changes beyond the state is gone with it."""

import asyncio

import pytest

from sandbox_server.runtime.warden.client import WardenClient
from sandbox_warden.shell import MOST_COMMANDS
from tests.waiting import until_running

from .conftest import RUNTIMES

pytestmark = [
    pytest.mark.one_way,
    # gVisor has no subreapers: every command is a new shell there.
    pytest.mark.parametrize("runtime_name", [name for name in RUNTIMES if name != "gvisor"]),
]


async def pid(warden: WardenClient) -> str:
    return (await warden.run("echo $$")).stdout


@pytest.mark.kernel
async def test_the_shell_of_an_ordinary_command_goes_on(warden: WardenClient) -> None:
    pids = {await pid(warden)}
    for command in ("x=1; cd /tmp", "false", "ls | wc -l", "(exit 3)", "f() { :; }; alias a=b"):
        await warden.run(command)
        pids.add(await pid(warden))
    assert len(pids) == 1
    assert (await warden.run("echo $x $PWD; type -t f a")).output == "1 /tmp\nfunction\nalias\n"


FUNCTIONS = """
descriptor() { exec 3>/tmp/three; }
elsewhere() { exec >/tmp/elsewhere; }
limits() { ulimit -n 100; }
traps() { trap 'echo trapped' EXIT; trap 'echo usr1' USR1; }
debug() { trap 'echo debug' DEBUG; }
strict() { set -eu; }
traced() { set -x; }
left() { sleep 60 & }
closing() { exec 203<&- 205>&-; }
"""

LEFT = {
    "descriptor": ("[[ -e /proc/$$/fd/3 ]]; echo $?", "1\n"),
    "elsewhere": ("echo back", "back\n"),
    "limits": ("ulimit -n", "4096\n"),
    "traps": ("trap -p USR1; echo ok", "ok\n"),
    "debug": ("echo ok", "ok\n"),
    "strict": ("set +eu; echo ok", "ok\n"),
    "traced": ("{ set +x; } 2>/dev/null; echo ok", "ok\n"),
    "left": ("until pkill -x sleep; do :; done; echo $?", "0\n"),
    "closing": ("echo ok", "ok\n"),
    "cd /tmp; mkdir gone; cd gone; rmdir ../gone": ("pwd", "/workspace\n"),
    "exit 3": ("echo ok", "ok\n"),
    "kill -9 $$": ("echo ok", "ok\n"),
}


async def test_what_is_not_state_does_not_go_on(
    warden: WardenClient, subtests: pytest.Subtests
) -> None:
    """By functions: nothing in the text of the command says what it does."""
    await warden.run(FUNCTIONS)
    for number, (command, (look, seen)) in enumerate(LEFT.items()):
        with subtests.test(command):
            before = await pid(warden)
            await warden.run(f"kept={number}")
            done = await warden.run(command, timeout_s=10)
            assert not done.timed_out
            result = await warden.run(look, timeout_s=10)
            assert result.stdout == seen
            assert await pid(warden) != before
            assert (await warden.run("echo $kept; type -t left")).stdout == f"{number}\nfunction\n"


async def test_limits_that_a_program_sets_on_its_shell_are_gone(warden: WardenClient) -> None:
    """A plain command can open nothing in its shell, but a program may limit the one above it."""
    lower = (
        "import os, resource\nresource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (64, 64))\n"
    )
    await warden.run("cat > /tmp/lower.py", stdin=lower.encode())
    look = "grep -c 'Max open files  *4096 ' /proc/self/limits"
    assert (await warden.run(look)).output == "1\n"
    assert (await warden.run("python3 /tmp/lower.py")).exit_code == 0
    assert (await warden.run(look)).output == "1\n"


async def test_output_and_exit_code_of_such_commands_are_their_own(warden: WardenClient) -> None:
    await warden.run(FUNCTIONS)
    result = await warden.run("traps; (exit 7)")
    assert (result.output, result.exit_code) == ("trapped\n", 7)
    result = await warden.run("debug; echo one; (exit 5)")
    assert (set(result.stdout.splitlines()), result.exit_code) == ({"debug", "one"}, 5)
    assert "__sandbox" not in result.output
    result = await warden.run("traced; echo two")
    assert (result.stdout, result.exit_code) == ("two\n", 0)
    assert "__sandbox" not in result.stderr
    result = await warden.run("{ set +x; } 2>/dev/null; strict; false; echo never")
    assert (result.stdout, result.exit_code) == ("", 1)
    result = await warden.run("set +eu; elsewhere; echo hidden; (exit 4)")
    assert (result.output, result.exit_code) == ("", 4)


async def test_variables_of_a_call_are_taken_back(warden: WardenClient) -> None:
    await warden.run("A=1; export B=2; declare -a C=(x y)")
    env = {"A": "5", "B": "6", "C": "7", "D": "8"}
    assert (await warden.run("echo $A $B $C $D", env=env)).output == "5 6 7 8\n"
    look = "echo $A $B ${C[1]} ${D-none}; env | grep -c '^[ABCD]='"
    assert (await warden.run(look)).output == "1 2 y none\n1\n"


async def test_a_waiting_shell_that_is_killed_is_not_missed(warden: WardenClient) -> None:
    await warden.run("x=1; cd /tmp")
    first = (await pid(warden)).strip()
    await warden.run(f"(sleep 0.2; kill -9 {first}) > /dev/null 2>&1 & disown; x=2")
    await asyncio.sleep(0.5)
    for _ in range(3):
        assert (await warden.run("echo $x $PWD")).output == "2 /tmp\n"
    second = (await pid(warden)).strip()
    other = await warden.run(f"sleep 0.3; kill -9 {second}; sleep 1", timeout_s=0.1)
    assert other.timed_out
    assert (await warden.run("echo $x $PWD")).output == "2 /tmp\n"


async def test_commands_at_once_and_the_state_of_the_last_to_end(warden: WardenClient) -> None:
    await warden.run("x=0")
    slow = asyncio.create_task(warden.run("sleep 0.5; x=slow"))
    await asyncio.sleep(0.1)
    assert (await warden.run("x=$x-quick; echo $x")).output == "0-quick\n"
    await slow
    assert (await warden.run("echo $x")).output == "slow\n"
    quick = asyncio.create_task(warden.run("cat; x=fed", stdin=b"in"))
    assert (await quick).output == "in"
    assert (await warden.run("echo $x")).output == "fed\n"


HIDDEN = {
    "a function": ("f() { x=2; }", "f", "$x", "2"),
    "an alias": ("alias f='x=3;'", "f", "$x", "3"),
    "a reference": ("declare -n r='a[i=4]'; a=(1 2 3 4 5)", "echo $r", "$i", "4"),
}


async def test_what_changes_the_state_behind_a_plain_name_is_kept(
    warden: WardenClient, subtests: pytest.Subtests
) -> None:
    """The state of a command that only starts programs is that of the one before, and not saved
    again. These only look so."""
    for name, (before, command, look, seen) in HIDDEN.items():
        with subtests.test(name):
            await warden.run(f"unset -f f; unalias -a; {before}")
            await warden.run("echo hi | cat")
            await warden.run(command)
            await warden.run("echo hi | cat")
            assert (await warden.run("kill -9 $$")).exit_code == 137
            assert (await warden.run(f"echo {look}")).stdout == f"{seen}\n"


async def test_programs_leave_the_state_as_it_was(warden: WardenClient) -> None:
    await warden.run("x=1; cd /tmp")
    for command in ("echo hi", "ls -l | head -2 > listing 2>&1", "echo $x; pwd", "cat listing"):
        await warden.run(command)
    assert (await warden.run("kill -9 $$")).exit_code == 137
    assert (await warden.run("echo $x $PWD")).stdout == "1 /tmp\n"
    await warden.run("mkdir -p here && cd here")
    moved = await warden.run("mv /tmp/here /tmp/there")
    assert moved.state_saved
    assert (await warden.run("pwd -P")).stdout == "/tmp/there\n"


async def test_a_plain_command_that_ends_last_leaves_the_state_it_began_with(
    warden: WardenClient,
) -> None:
    await warden.run("x=first")
    assert (await warden.run("echo $x")).stdout == "first\n"
    wait = "import os, time\nwhile not os.path.exists('/tmp/end'): time.sleep(0.01)"
    slow = asyncio.create_task(warden.run(f'python3 -c "{wait}"'))
    await until_running(warden)
    await warden.run("x=second")
    await warden.mkdir("/tmp/end")
    await slow
    assert (await warden.run("echo $x")).stdout == "first\n"


async def test_input_is_empty_again_after_a_command_with_input(warden: WardenClient) -> None:
    assert (await warden.run("cat", stdin=b"one")).output == "one"
    assert (await warden.run("cat; read x; echo $?")).output == "1\n"


async def test_many_commands_in_a_row(warden: WardenClient) -> None:
    """One shell runs hundreds, and nothing is lost where another follows it."""
    await warden.run("n=0")
    pids = set()
    for number in range(MOST_COMMANDS + 50):
        result = await warden.run("n=$((n + 1)); echo $n $$")
        count, shell = result.stdout.split()
        assert int(count) == number + 1
        pids.add(shell)
    assert 2 <= len(pids) <= 4
