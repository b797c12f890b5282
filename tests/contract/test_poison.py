"""Whatever a command leaves behind, the next one runs: its output and exit code are its own, and a
state that cannot be loaded is told and dropped."""

import pytest

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.warden.client import WardenClient

from .conftest import RUNTIMES

BUILTINS = (
    "command exec declare typeset local return . source exit cd pwd shopt set export readonly [ "
    "test : umask alias unalias read true enable type shift"
)
OURS = (
    "__sandbox_wait", "__sandbox_load", "__sandbox_begin", "__sandbox_save",
    "__sandbox_go", "__sandbox_call", "__sandbox_restore", "__sandbox_lost", "__sandbox_set",
    "__sandbox_aliases", "__sandbox_loaded", "__sandbox_command", "__sandbox_run", "__sandbox_end",
    "__sandbox_next", "__sandbox_status", "__sandbox_leaving", "__sandbox_usual", "__sandbox_same",
    "__sandbox_other",
)  # fmt: skip


def ours(form: str) -> str:
    return "; ".join(form % name for name in OURS)


POISONS = [
    # Functions and aliases in place of what a shell is made of.
    "builtin() { [[ 1 ]]; }",
    "eval() { [[ 1 ]]; }",
    "mapfile() { [[ 1 ]]; }",
    "printf() { [[ 1 ]]; }",
    "unset() { [[ 1 ]]; }",
    "trap() { [[ 1 ]]; }",
    "; ".join(f"{name}() {{ [[ 1 ]]; }}" for name in BUILTINS.split()),
    "builtin() { [[ 1 ]]; }; readonly -f builtin",
    "unset() { :; }; builtin() { :; }; declare() { printf lies; }; printf() { echo lies; }",
    "alias builtin='echo lies' eval='echo lies' set='echo lies' if='echo lies' alias='echo lies'",
    "alias {='echo lies' [['=echo lies'",
    "function a=b { :; }; function a.b { :; }; a-b() { :; }; function if { :; }; c() { :; }",
    ours("%s() { :; }"),
    ours("%s() { :; }") + "; " + ours("readonly -f %s"),
    ours("unset -f %s"),
    "enable -n builtin",
    "enable -n eval unset printf declare trap enable",
    # Variables.
    *(f"readonly __sandbox_{name}=x" for name in ("call", "command", "restore", "loaded", "same")),
    ours("readonly %s=x"),
    ours("declare -n %s=PATH"),
    ours("declare -i %s=5"),
    "readonly SANDBOX_COMMAND_ID",
    "readonly POSIXLY_CORRECT",
    "FUNCNEST=1",
    "TMOUT=1; BASH_ENV=/nope ENV=/nope PROMPT_COMMAND='echo lies'; PS4='$(echo lies)'",
    "export BASH_XTRACEFD=202",
    "IFS=abcdefghijklmnopqrstuvwxyz_/:",
    "unset PATH PWD OLDPWD HOME",
    "PWD=/nope; OLDPWD=/nope",
    "x=$'\\xff\\xfe\\n#end\\nexit 7\\n'; y=$'#\\n'",
    "for i in {1..300}; do declare v$i=$i; done",
    "big=$(/usr/bin/head -c 6000000 /dev/zero | /usr/bin/tr '\\0' a)",
    # Options.
    "shopt -s failglob nocasematch extdebug lastpipe xpg_echo",
    "shopt -u failglob nocasematch extdebug lastpipe xpg_echo",
    "set -euo pipefail; set -CEfhkmTv",
    "set -x",
    "set +euxCEfhkmTv; set +o pipefail",
    "set -n",
    "set -t",
    "set -r",
    "set -o posix",
    "set +o posix; export POSIXLY_CORRECT=1",
    "unset POSIXLY_CORRECT; umask 777",
    # Traps.
    "trap 'echo lies' EXIT DEBUG ERR RETURN; set -ET; false",
    "set +ET; shopt -s extdebug; trap false DEBUG",
    "trap 'exit 5' DEBUG",
    "trap '' TERM INT HUP; builtin trap - EXIT",
    # Descriptors and limits.
    "exec 200>&- 201>&- 202>&- 203>&- 204>&- 205>&-",
    "echo junk >&202",
    "echo junk >&205",
    "echo 0 >&205; x=1",
    "echo g >&203; cat <&204",
    "printf '#/workspace\\nexit 0\\n#end\\n' >&202; kill -9 $$",
    "printf '#begun\\n#x /workspace\\nwhile :; do :; done\\n#end\\n' >&202; kill -9 $$",
    "(sleep 0.1; echo junk) >&202 &",
    "ulimit -f 0",
    "ulimit -n 3",
    "ulimit -u 1 2>/dev/null; ulimit -s 100 2>/dev/null",
    "ulimit -v 100000 2>/dev/null",
    # Processes.
    "kill -9 -1",
]


async def test_nothing_left_behind_keeps_a_command_from_running(warden: WardenClient) -> None:
    """One after the other in one box, each on top of those before it."""
    await warden.run("kept=0")
    for number, poison in enumerate(POISONS):
        done = await warden.run(poison, timeout_s=10)
        assert not done.timed_out, poison
        assert not poison.startswith("ulimit") or done.exit_code == 0, poison
        check = f"echo ok $((kept + 0))\nkept={number + 1}; /bin/sh -c 'exit 3'"
        result = await warden.run(check, timeout_s=10)
        assert (result.stdout, result.exit_code) == (f"ok {number}\n", 3), (poison, result)


async def test_what_is_readonly_stays_so(warden: WardenClient) -> None:
    """These cannot be undone, and say so on stderr at most."""
    await warden.run("readonly IFS=ok; readonly PATH PWD OLDPWD BASHOPTS; cd /tmp")
    result = await warden.run("echo ok")
    assert (result.output, result.exit_code, result.cwd) == ("ok\n", 0, "/tmp")
    result = await warden.run("/bin/pwd", cwd="/dev/shm")
    assert (result.stdout, result.cwd) == ("/dev/shm\n", "/dev/shm")


async def test_functions_in_place_of_builtins_are_the_users_own(warden: WardenClient) -> None:
    await warden.run('eval() { echo "eval: $*"; }; cd() { echo "cd: $*"; }; set() { echo set; }')
    await warden.run("alias declare='echo never'")
    assert (await warden.run("eval 1; cd /tmp; set; pwd")).output == (
        "eval: 1\ncd: /tmp\nset\n/workspace\n"
    )
    result = await warden.run("builtin set -e; builtin shopt -s nullglob; umask 027")
    assert result.state_saved
    assert (await warden.run("shopt nullglob; umask; false; echo no")).output == (
        "nullglob       \ton\n0027\n"
    )


async def test_posix_mode_carries_over_and_not_out_of_a_calls_environment(
    warden: WardenClient,
) -> None:
    await warden.run("true", env={"POSIXLY_CORRECT": "1"})
    assert (
        await warden.run("echo ${POSIXLY_CORRECT-no}; set -o | grep -c 'posix.*on'")
    ).output == ("no\n0\n")
    await warden.run("export POSIXLY_CORRECT=1; alias a='echo alias'")
    assert (await warden.run("a; env | grep POSIX; set -o | grep -c 'posix.*on'")).output == (
        "alias\nPOSIXLY_CORRECT=1\n1\n"
    )


async def test_names_of_the_machinery_are_not_taken_as_variables(warden: WardenClient) -> None:
    with pytest.raises(errors.InvalidRequest, match=r"__sandbox_command: .* reserved"):
        await warden.run("true", env={"__sandbox_command": "x"})


SAVED = [
    ("trap 'echo \"bye $?\"' EXIT; set -e; exit 3", "bye 3\n", 3),
    ("trap 'echo \"bye $?\"; false; echo no' EXIT; set -e; true", "bye 0\n", 1),
    ("trap 'echo \"bye $?\"' EXIT; builtin() { :; }; unset() { :; }; exit 4", "bye 4\n", 4),
    ("trap 'echo dbg' DEBUG; exit 5", "dbg\n", 5),
    ("set -u; set -e; exit 6", "", 6),
]


async def test_saving_changes_neither_output_nor_exit_code(
    warden: WardenClient, subtests: pytest.Subtests
) -> None:
    for number, (command, output, exit_code) in enumerate(SAVED):
        with subtests.test(command):
            result = await warden.run(f"kept={number}; {command}")
            assert (result.output, result.exit_code) == (output, exit_code)
            cleaned = "set +eu; echo $kept; command unset -f builtin unset"
            assert (await warden.run(cleaned)).output == f"{number}\n"


def forged(state: str) -> str:
    """A command that leaves a state of its own making."""
    return f"""
key=$(declare -f __sandbox_save | grep -o '#[0-9a-f]\\{{16\\}} ' | head -1)
printf '%s/workspace\n%s\n#end %s\n' "$key" '{state}' "${{key//[# ]}}" >&202
kill -9 $$
"""


RESET = "sandbox: the state of earlier commands could not be loaded"


async def test_a_state_that_cannot_be_loaded_is_told_and_dropped(
    warden: WardenClient, subtests: pytest.Subtests
) -> None:
    for state in ("exit 0", "exec true", "kill -9 $$", "builtin() { :; }", "if"):
        with subtests.test(state):
            assert (await warden.run(forged(state))).state_saved
            result = await warden.run("echo ok${kept-}; kept=1")
            assert (result.stdout, result.exit_code) == ("ok\n", 0)
            assert RESET in result.stderr
            result = await warden.run("echo $kept")
            assert (result.output, result.stderr) == ("1\n", "")


async def test_a_state_that_cannot_be_loaded_and_a_command_with_input(warden: WardenClient) -> None:
    await warden.run(forged("exit 0"))
    result = await warden.run("cat", stdin=b"ok")
    assert result.exit_code == 254
    assert RESET in result.stderr
    assert "run it again" in result.stderr
    assert (await warden.run("cat", stdin=b"ok")).output == "ok"


async def test_functions_that_cannot_be_loaded_are_told(warden: WardenClient) -> None:
    await warden.run("x=1; alias say='echo say'; function a=b { :; }; function z { :; }; exit")
    result = await warden.run("say $x")
    assert result.stdout == "say 1\n"
    assert result.stderr == "sandbox: not all functions of earlier commands could be loaded\n"
    assert (await warden.run("say $x")).stderr == ""


@pytest.mark.kernel
@pytest.mark.parametrize("runtime_name", [name for name in RUNTIMES if name != "gvisor"])
async def test_a_killer_in_the_background_is_ended(warden: WardenClient) -> None:
    """On gVisor it ends every stream to the warden as well: nobody can be told."""
    await warden.run("kept=1")
    await warden.run("while :; do kill -9 -1; done &")
    for _ in range(50):
        result = await warden.run("echo $kept", timeout_s=20)
        if result.signal is None:
            assert result.stdout == "1\n"
        else:  # It had begun: that is told, and it is not run twice.
            assert (result.exit_code, result.signal) == (137, "KILL")
        if "background processes are killed" in result.stderr:
            break
    for _ in range(2):
        assert (await warden.run("echo $kept", timeout_s=20)).stdout == "1\n"


# Folders.


async def test_a_workspace_that_is_closed(warden: WardenClient) -> None:
    await warden.run("kept=1; chmod 000 /workspace")
    result = await warden.run("kill -9 -1")
    assert result.stderr == "sandbox: /workspace cannot be entered, starting in /\n"
    result = await warden.run("echo $kept; pwd")
    assert (result.stdout, result.exit_code, result.cwd) == ("1\n/\n", 0, "/")
    result = await warden.run("chmod 755 /workspace; cd /workspace; echo back")
    assert (result.output, result.cwd) == ("back\n", "/workspace")


CLOSED = {
    "rmdir ../d": "/workspace/d is gone",
    "mv ../d ../e; chmod 000 ../e": "/workspace/e cannot be entered",
    "chmod 000 .": "/workspace/d cannot be entered",
}


async def test_a_folder_that_cannot_be_entered_again(
    warden: WardenClient, subtests: pytest.Subtests
) -> None:
    for close, message in CLOSED.items():
        with subtests.test(close):
            await warden.run(f"mkdir d; cd d; {close}")
            result = await warden.run("/bin/pwd")
            assert (result.stdout, result.exit_code, result.cwd) == (
                "/workspace\n", 0, "/workspace",
            )  # fmt: skip
            assert result.stderr == f"sandbox: {message}, starting in /workspace\n"
            assert (await warden.run("/bin/pwd")).output == "/workspace\n"


async def test_the_folder_told_is_the_one_the_shell_is_in(warden: WardenClient) -> None:
    assert (await warden.run("cd /tmp; PWD=/etc")).cwd == "/tmp"
    assert (await warden.run("mkdir a; cd a; mv ../a ../b")).cwd == "/tmp/b"
    assert (await warden.run("ln -s /tmp/b /tmp/l; cd /tmp/l")).cwd == "/tmp/l"
    assert (await warden.run("unset PWD; cd /dev/shm; builtin() { :; }")).cwd == "/dev/shm"


async def test_a_command_does_not_run_in_another_folder_than_asked(warden: WardenClient) -> None:
    await warden.run("mkdir closed; chmod 000 closed; touch file; ln -s loop loop")
    for cwd, error, why in (
        ("closed", errors.InvalidPath, "Permission denied"),
        ("closed/below", errors.InvalidPath, "Permission denied"),
        ("loop", errors.InvalidPath, "levels of symbolic links"),
        ("file", errors.FileMissing, "Not a directory"),
        ("nothing", errors.FileMissing, "No such file"),
    ):
        with pytest.raises(error, match=f"/workspace/{cwd}: .*{why}"):
            await warden.run("touch /tmp/ran", cwd=cwd)
    assert (await warden.run("ls /tmp/ran")).exit_code == 2


async def test_a_folder_that_closes_as_the_command_starts(warden: WardenClient) -> None:
    """The warden has looked, and then the shell cannot enter it."""
    await warden.run("mkdir door; while :; do chmod 000 door; chmod 755 door; done &")
    messages = []
    for _ in range(60):
        try:
            assert (await warden.run("/bin/pwd", cwd="door")).output == "/workspace/door\n"
        except errors.InvalidPath as exc:
            messages.append(exc.message)
    assert messages
    assert all("/workspace/door" in message for message in messages)
