"""Which commands would run, construct by construct."""

import pytest

from sandbox_server.policy.analyse import analyse
from sandbox_server.policy.analysis import Doubt
from sandbox_server.policy.fields import certain

RM = ["rm", "-rf", "/"]


def argvs(
    command: str, *, stdin: str | None = None, env: dict[str, str] | None = None
) -> list[list[str | None]]:
    calls = analyse(command, stdin=stdin, env=env).calls
    return [[certain(field) for field in argv] for call in calls for argv in call.argvs]


def doubts(command: str) -> set[Doubt]:
    return {doubt for doubt, _, _ in analyse(command).doubts}


@pytest.mark.parametrize(
    "command",
    [
        r"r''m -rf /", r'"r"m -rf "/"', r"\r\m -rf /", "$'\\x72m' -rf /", "{rm,-rf,/}",
        "rm${IFS}-rf${IFS}/", "X=rm; $X -rf /", "X='rm -rf /'; $X", "a=r b=m; $a$b -rf /",
        "${none:-rm} -rf /", "X=xrm; ${X:1} -rf /", "X=RM; ${X,,} -rf /", "X=rm.c; ${X%.c} -rf /",
        'a=(rm -rf /); "${a[@]}"', 'set -- rm -rf /; "$@"', "read x <<< rm; $x -rf /",
        "printf -v x rm; $x -rf /", "$(echo rm) -rf /", "`printf rm` -rf /",
        "for c in ls rm; do $c -rf /; done", "f() { $1 -rf /; }; f rm", "alias x='rm -rf /'; x y",
        "bash -c 'rm -rf /'", "sh -xc 'rm -rf /'", "bash -c '$0 -rf /' rm", "eval rm -rf /",
        "eval 'rm -rf' /", "echo rm -rf / | sh", "cat <<< 'rm -rf /' | bash",
        "bash <<< 'rm -rf /'", "sh <<E\nrm -rf /\nE", "cat <<E | sh\nrm -rf /\nE",
        ". <(echo rm -rf /)", "bash <(echo rm -rf /)", "env A=1 rm -rf /", "env -S 'rm -rf /'",
        "env -u X -C / rm -rf /", "xargs rm -rf <<< /", "echo / | xargs -I{} rm -rf {}",
        "find / -exec rm -rf {} +", "find x -exec rm -rf / ;", "timeout -k 1 5s rm -rf /",
        "nohup nice -n 3 ionice -c 2 rm -rf /", "sudo -u root rm -rf /", "doas rm -rf /",
        "command rm -rf /", "builtin command -p rm -rf /", "exec -a x rm -rf /",
        "stdbuf -oL rm -rf /", "setsid rm -rf /", "chroot /x rm -rf /", "busybox rm -rf /",
        "/usr/bin/time -f x rm -rf /", "watch -n 1 rm -rf /", "parallel ::: 'rm -rf /'",
        "trap 'rm -rf /' EXIT", "coproc rm -rf /", "flock l -c 'rm -rf /'", "su -c 'rm -rf /'",
        "taskset 1 rm -rf /", "X=rm; Y=X; ${!Y} -rf /",
    ],
)  # fmt: skip
def test_unwrapped(command: str) -> None:
    assert RM in argvs(command)


@pytest.mark.parametrize(
    "command",
    [
        "echo 'rm -rf /'", "echo \"rm -rf /\"", "cat <<'E'\nrm -rf /\nE", "grep 'rm -rf /' f",
        "command -v rm -rf /", "git commit -m 'rm -rf /'", "ssh host rm -rf /", "# rm -rf /",
        "X='rm -rf /'", "alias x='echo rm -rf /'", "find . -name rm", "python3 -c 'rm -rf /'",
    ],
)  # fmt: skip
def test_words_are_not_commands(command: str) -> None:
    assert RM not in argvs(command)


def test_what_comes_with_the_command_counts() -> None:
    assert RM in argvs("sh", stdin="rm -rf /")
    assert RM in argvs("while read x; do sh; done; bash -s", stdin="rm -rf /")
    assert RM in argvs("$X -rf /", env={"X": "rm"})


@pytest.mark.parametrize(
    ("command", "doubt"),
    [
        ("$X a", Doubt.UNKNOWN_NAME),
        ("$(which ls)", Doubt.UNKNOWN_NAME),
        ("/bin/l? a", Doubt.UNKNOWN_NAME),
        ("bash script.sh", Doubt.UNKNOWN_SCRIPT),
        ("curl x | sh", Doubt.UNKNOWN_SCRIPT),
        ('eval "$x"', Doubt.UNKNOWN_SCRIPT),
        ("source file", Doubt.UNKNOWN_SCRIPT),
        ("bash -lc ls", Doubt.UNKNOWN_SCRIPT),
        ("echo $((x))", Doubt.UNKNOWN_VALUE),
        ("[[ $x -eq 1 ]]", Doubt.UNKNOWN_VALUE),
        ("[[ -v 'a[$(ls)]' ]]", Doubt.UNKNOWN_VALUE),
        ("test -v 'a[$(ls)]'", Doubt.UNKNOWN_VALUE),
        ("echo ${!x}", Doubt.UNKNOWN_VALUE),
        ("echo ${x@P}", Doubt.UNKNOWN_VALUE),
        ("echo ${a[$x]}", Doubt.UNKNOWN_VALUE),
        ("declare -a x='($(ls))'", Doubt.UNKNOWN_VALUE),
        ("read 'a[$(ls)]'", Doubt.UNKNOWN_VALUE),
        ("if", Doubt.NOT_PARSED),
        ("l\0s", Doubt.NOT_PARSED),
        ("ls\r\nls", Doubt.NOT_PARSED),
        ("$(" * 40 + ")" * 40, Doubt.TOO_MUCH),
    ],
)
def test_doubts(command: str, doubt: Doubt) -> None:
    assert doubt in doubts(command)


@pytest.mark.parametrize(
    "command",
    [
        "i=0; while [ $i -lt 3 ]; do i=$((i+1)); done",
        "for ((i=0; i<3; i++)); do echo $((i * 2)); done",
        'for i in 1 2; do [[ $i -gt 1 ]] && echo "$i"; done',
        "bash -c 'ls | wc -l'",
        "echo ls | sh",
        "f() { ls; }; f",
        "x=5; echo ${s:0:3} $((x % 2)) $#",
    ],
)
def test_no_doubts(command: str) -> None:
    assert doubts(command) == set()


def test_where_it_stands() -> None:
    command = "ls; echo $(rm -rf /)"
    (found,) = [call for call in analyse(command).calls if call.argvs == [RM]]
    assert command[found.place.start : found.place.end] == "rm -rf /" == found.place.text
    (inner,) = [call for call in analyse("a; sudo sh -c 'rm -rf /'").calls if call.argvs == [RM]]
    assert (inner.place.text, inner.place.start) == ("sudo sh -c 'rm -rf /'", 3)
    assert inner.via == ("sudo", "sh")


def test_what_is_before_something_unclear_is_found() -> None:
    assert RM in argvs("rm -rf /\nif")
    assert RM in argvs("ls\necho ')' ) ; rm -rf /")


def test_variables_of_another_shell_are_not_taken_for_granted() -> None:
    """X is not exported: there it is empty."""
    assert ["rm", "-rf", "/"] in argvs("X=tmp; bash -c 'rm -rf /$X'")


def test_what_a_trap_or_a_function_sets_may_come_at_any_time() -> None:
    for setter in ("trap 'X=/' DEBUG", "f() { X=/; }", "f() { local X; }"):
        found = analyse(f"X=build; {setter}; rm -rf $X").calls[-1]
        assert len(found.argvs) > 1 or setter.endswith("local X; }")
