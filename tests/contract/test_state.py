"""State carries over from command to command, and nothing a command does can corrupt it."""

import pytest

from sandbox_server.runtime.warden.client import WardenClient


async def output(warden: WardenClient, command: str, **options: object) -> str:
    result = await warden.run(command, **options)  # type: ignore[arg-type]
    return result.output


@pytest.mark.kernel
async def test_it_is_the_user_promised_in_the_workspace(warden: WardenClient) -> None:
    assert await output(warden, "whoami; id -u; pwd; echo $HOME") == (
        "sandboxuser\n1000\n/workspace\n/home/sandboxuser\n"
    )


async def test_working_directory_carries_over(warden: WardenClient) -> None:
    result = await warden.run("mkdir -p a/b && cd a/b")
    assert result.cwd == "/workspace/a/b"
    assert await output(warden, "pwd; cd - >/dev/null; pwd") == "/workspace/a/b\n/workspace\n"


async def test_variables_carry_over_exported_and_plain(warden: WardenClient) -> None:
    await warden.run(
        "plain='a \"b\"'; export exported=$'two\\nlines'; list=(1 '2 3'); declare -A map=([k]=v)"
    )
    assert await output(warden, 'echo "$plain|${list[1]}|${map[k]}"; env | grep -c ^plain') == (
        'a "b"|2 3|v\n0\n'
    )
    assert (
        await output(warden, "python3 -c 'import os; print(os.environ[\"exported\"])'")
        == "two\nlines\n"
    )


async def test_functions_and_aliases_carry_over(warden: WardenClient) -> None:
    await warden.run("greet() { echo \"hello $1\"; }; alias ll='echo LL'; export -f greet")
    assert await output(warden, "greet you; ll; bash -c 'greet me'") == "hello you\nLL\nhello me\n"


async def test_an_alias_does_not_grow_into_functions(warden: WardenClient) -> None:
    await warden.run("alias say='echo one'")
    await warden.run("f() { say two; }")
    await warden.run(":")
    assert await output(warden, "f") == "one two\n"


async def test_options_carry_over(warden: WardenClient) -> None:
    await warden.run("set -o pipefail -u; shopt -s extglob nullglob; umask 027")
    assert await output(
        warden, "set -o | grep -E 'pipefail|nounset'; shopt extglob nullglob; umask"
    ) == (
        "nounset        \ton\npipefail       \ton\nextglob        \ton\nnullglob       \ton\n0027\n"
    )
    await warden.run("set +u; shopt -u extglob")
    assert await output(warden, 'echo "[$nope]"; shopt extglob') == "[]\nextglob        \toff\n"


async def test_errexit_carries_over_and_ends_only_commands(warden: WardenClient) -> None:
    assert (await warden.run("set -e; false; echo no")).exit_code == 1
    result = await warden.run("echo yes; false; echo no")
    assert (result.exit_code, result.output) == (1, "yes\n")
    assert await output(warden, "set +e; false; echo on") == "on\n"


@pytest.mark.kernel
async def test_state_survives_everything_at_once(warden: WardenClient) -> None:
    """A readonly, a reference, an integer, odd names of functions, values that look like code."""
    await warden.run(
        "readonly fixed=1; declare -i number=4; declare -n ref=number; a-b() { echo odd; }; "
        "evil='$(touch /tmp/pwned); `id`; \"; rm'; IFS=,"
    )
    assert await output(
        warden, 'number+=1; echo "$fixed $ref"; a-b; echo "$evil"; [ -e /tmp/pwned ]'
    ) == ('1 5\nodd\n$(touch /tmp/pwned); `id`; "; rm\n')


EXITS = [
    ("exit 7", 7, None),
    ("(exit 8)", 8, None),
    ("exec false", 1, None),
    ("exec sh -c 'exit 9'", 9, None),
    ("set -e; false", 1, None),
    ("kill $$", 143, "TERM"),
    ("kill -9 $$", 137, "KILL"),
    ("exec 1>&-; exit 5", 5, None),
    ("trap '' EXIT; exit 6", 6, None),
    ("trap 'exit 9' EXIT; exit 6", 9, None),
    ("if then", 2, None),
    ("no-such-command", 127, None),
    ("/etc/passwd", 126, None),
    ("false | true", 0, None),
]


@pytest.mark.kernel
async def test_exit_codes_are_exact_and_the_session_goes_on(
    warden: WardenClient, subtests: pytest.Subtests
) -> None:
    for number, (command, exit_code, signal) in enumerate(EXITS):
        with subtests.test(command):
            await warden.run(f"kept={number}; mkdir /tmp/{number}; cd /tmp/{number}")
            result = await warden.run(command)
            assert (result.exit_code, result.signal) == (exit_code, signal)
            assert await output(warden, "set +e; echo $kept; pwd") == f"{number}\n/tmp/{number}\n"


async def test_exit_keeps_what_the_command_changed(warden: WardenClient) -> None:
    result = await warden.run("x=1; cd /tmp; exit 3")
    assert result.state_saved
    assert await output(warden, "echo $x $PWD") == "1 /tmp\n"


async def test_a_trap_of_the_users_own_runs_and_the_state_is_kept(warden: WardenClient) -> None:
    result = await warden.run("trap 'echo \"bye $?\"' EXIT; y=2; exit 4")
    assert (result.output, result.exit_code, result.state_saved) == ("bye 4\n", 4, True)
    assert await output(warden, "echo $y") == "2\n"


async def test_what_cannot_be_kept_is_told(warden: WardenClient) -> None:
    await warden.run("x=1")
    result = await warden.run("x=2; exec true")
    assert (result.output, result.state_saved) == ("", False)
    result = await warden.run("cd /tmp; x=$(head -c 6000000 /dev/zero | tr '\\0' a); echo ${#x}")
    assert (result.stdout, result.exit_code) == ("6000000\n", 0)
    assert "not kept: they take more than the limit of 4194304 bytes" in result.stderr
    assert not result.state_saved
    assert await output(warden, "echo $x $PWD") == "1 /workspace\n"


async def test_half_a_state_is_told(warden: WardenClient) -> None:
    result = await warden.run("x=1; enable -n alias")
    assert "not kept: they could not all be written" in result.stderr
    result = await warden.run("x=1; enable -n alias; kill -9 $$")
    assert result.stderr == ""


async def test_where_traces_go_ends_with_the_command(warden: WardenClient) -> None:
    """bash closes the descriptor that BASH_XTRACEFD names when the variable goes."""
    result = await warden.run("set -x; : traced; set +x", env={"BASH_XTRACEFD": "1"})
    assert ": traced" in result.stdout
    assert await output(warden, "echo ok ${BASH_XTRACEFD-none}") == "ok none\n"
    result = await warden.run("exec 5>log; BASH_XTRACEFD=5; trap 'echo bye' EXIT; set -x; : y")
    assert (result.stdout, result.state_saved) == ("bye\n", True)
    assert ": y" in (await warden.run("set +x; cat log")).stdout
    assert await output(warden, "echo ok") == "ok\n"


async def test_a_name_for_another_variable_takes_nothing_along(warden: WardenClient) -> None:
    """Some variables of bash's own are not kept. What stands behind their names is."""
    await warden.run("x=1; declare -n OSTYPE=x BASH_COMMAND=x DIRSTACK=x PIPESTATUS=x HISTCMD=x")
    assert await output(warden, "echo $x") == "1\n"


async def test_a_directory_that_has_gone_is_told(warden: WardenClient) -> None:
    await warden.run("mkdir gone; cd gone; rmdir ../gone")
    result = await warden.run("pwd")
    assert (result.stdout, result.cwd) == ("/workspace\n", "/workspace")
    assert result.stderr == "sandbox: /workspace/gone is gone, starting in /workspace\n"


async def test_the_calls_own_environment_ends_with_the_call(warden: WardenClient) -> None:
    await warden.run("TOKEN=old; export LEVEL=1")
    env = {"TOKEN": "it's\n$secret", "LEVEL": "2", "FRESH": "3"}
    assert await output(warden, 'echo "$TOKEN|$LEVEL|$FRESH"; env | grep -c ^TOKEN', env=env) == (
        "it's\n$secret|2|3\n1\n"
    )
    assert (
        await output(warden, 'echo "$TOKEN|$LEVEL|$FRESH"; env | grep -c ^TOKEN') == "old|1|\n0\n"
    )


async def test_the_calls_own_directory(warden: WardenClient) -> None:
    assert await output(warden, "pwd", cwd="/tmp") == "/tmp\n"
    await warden.run("mkdir /workspace/sub")
    assert await output(warden, "pwd", cwd="sub") == "/workspace/sub\n"


@pytest.mark.kernel
async def test_nothing_of_the_machinery_shows(warden: WardenClient) -> None:
    assert (await warden.run("set -x; echo x")).stderr == "++ echo x\n"
    assert (await warden.run("echo y; set +x")).stderr == "++ echo y\n++ set +x\n"
    assert await output(warden, "echo $0 $LINENO; nope") == (
        "bash 1\nbash: line 1: nope: command not found\n"
    )
    assert await output(warden, "cd /proc/$$/fd; echo 20? ") == ("202 203 204 205\n")
