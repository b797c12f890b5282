"""Which commands leave the state of their shell as it is, and how that is known."""

import subprocess

import pytest

from sandbox_warden.plain import is_plain
from sandbox_warden.state import BEGUN, ShellState, key, left_traps

PLAIN = (
    "echo hi",
    "ls -la | head -5",
    "grep -rn 'foo $(x)' . 2>/dev/null",
    "sort < in > out 2>&1",
    'git commit -m "of $name" && git push || echo no',
    "/usr/bin/env; ./run.sh",
    "  python3 -c 'import os\nprint(1)'  \n",
    "ls *.py ~ a[bc]",
)
OTHER = (
    "x=1",
    "x=1 ls",
    "cd /tmp && ls",
    "ls; cd /",
    "ls &",
    "(ls)",
    "{ ls; }",
    "! ls",
    "$command",
    "'cd' /",
    "\\cd /",
    "echo ${x:=1}",
    "echo $((x++))",
    "echo $[x++]",
    'echo "${x:=1}"',
    "echo $(ls)",
    "echo `ls`",
    "cat <(ls)",
    "cat <<E\nE",
    "ls {fd}>out",
    "ls >&$x",
    "ls 5>out",
    "echo a \\\n",
    "ls\ncd /",
    "",
    "a" * 1001,
)


@pytest.mark.parametrize("command", PLAIN)
def test_plain(command: str) -> None:
    assert is_plain(command)


@pytest.mark.parametrize("command", OTHER)
def test_not_plain(command: str) -> None:
    assert not is_plain(command)


def test_no_word_of_bash_is_plain_but_four() -> None:
    words = subprocess.run(
        ["bash", "-c", "compgen -bk"], capture_output=True, check=True, text=True
    )
    found = {word for word in words.stdout.split() if is_plain(word) or is_plain(f"{word} x")}
    assert found == {"echo", "false", "pwd", "true"}


@pytest.mark.parametrize("piece", ["a ", "a>", '"a" ', "$a", "a;", "1>a ", "'", "[["])
def test_a_long_command_is_soon_looked_at(piece: str) -> None:
    """It takes 0.4 ms at most. An expression that goes back and forth would take years."""
    assert not is_plain("a " + piece * (990 // len(piece)) + "&")


def state(declared: str = "", *, functions: str = "") -> ShellState:
    text = b"#begun\n#%s /\n__sandbox_load / '' ''\n%s__sandbox_loaded=functions\n%s"
    ended = b"__sandbox_loaded=all\n#end %s\n" % key()
    saved = ShellState.saved(text % (key(), declared.encode(), functions.encode()) + ended)
    assert saved is not None
    return saved


def test_a_state_with_functions_aliases_or_references_is_not_plain() -> None:
    assert state("declare -- n=1\ndeclare -ax nn=()\n").is_plain
    assert not state("alias a=b\n").is_plain
    assert not state("declare -n a=b\n").is_plain
    assert not state("declare -xn a=b\n").is_plain
    assert not state(functions="f () \n{ \n    :\n}\n").is_plain
    assert not ShellState.fresh().is_plain


def test_what_a_variable_holds_does_not_count_as_traps() -> None:
    own = b"trap -- '{ __sandbox_save; }' EXIT\ntrap -- '' SIGXFSZ\n"
    same = b"#same %s\n" % key()
    assert not left_traps(BEGUN + own + same)
    assert not left_traps(BEGUN + own + b"#%s /\ndeclare -- x='\n%s'\n" % (key(), same))
    assert left_traps(BEGUN + b"trap -- 'x' USR1\n" + own + same)
