"""What the command line reads out of what is typed."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from sandbox_sdk.cli.copy import Place
from sandbox_sdk.cli.escape import escaped, escaped_json
from sandbox_sdk.cli.run import split_file
from sandbox_sdk.cli.sessions import span
from sandbox_sdk.cli.shell import is_complete
from sandbox_sdk.cli.terminal import refuse_waiting
from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.cli.serve import farewell
from sandbox_server.main import Left


@pytest.mark.parametrize(
    ("text", "thread", "path"),
    [
        ("t:out.csv", "t", "out.csv"),
        ("t:", "t", ""),
        ("t:/tmp/x", "t", "/tmp/x"),
        ("user:42:dir/x", "user:42", "dir/x"),
        ("t:./a:b", "t", "./a:b"),
        ("t:dir/a:b", "t", "dir/a:b"),
        ("local.txt", "", "local.txt"),
        ("./a:b", "", "./a:b"),
        ("/tmp/a:b", "", "/tmp/a:b"),
        (":x", "", ":x"),
    ],
)
def test_which_end_of_a_copy(text: str, thread: str, path: str) -> None:
    assert Place.of(text) == Place(thread, path)


def test_local_and_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a:b").touch()
    assert split_file("dir/x.txt") == ("dir/x.txt", "x.txt")
    assert split_file("dir/x.txt:y/z") == ("dir/x.txt", "y/z")
    assert split_file("x.txt:/tmp/y") == ("x.txt", "/tmp/y")
    assert split_file("a:b") == ("a:b", "a:b")


@pytest.mark.parametrize(
    "text",
    [
        "echo 'one",
        'echo "one',
        "if true; then",
        "while read x; do echo",
        "f() {",
        "cat <<END\nline",
        "echo one |",
        "true &&",
        "echo $(date",
        "echo one \\",
        "case x in",
        "a=(1 2",
    ],
)
def test_bash_would_wait_for_more(text: str) -> None:
    assert not is_complete(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "echo one",
        "if true; then echo; fi",
        "cat <<END\nline\nEND",
        "echo 'one\ntwo'",
        "echo )",
        "echo one \\\\",
        "rm -rf / --no-preserve-root # never run here",
        "# a comment with ' in it",
    ],
)
def test_bash_would_run_it_or_complain(text: str) -> None:
    assert is_complete(text)


def test_asking_bash_runs_nothing(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    assert is_complete(f"touch {witness}; $(touch {witness}); `touch {witness}`")
    assert not witness.exists()


@pytest.mark.parametrize(("seconds", "text"), [(3.4, "3s"), (300, "5min"), (5400, "1.5h")])
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünï 日本 \U0001f600", "plain ünï 日本 \U0001f600"),
        ("\x1b[2J\x07\x7f", r"\x1b[2J\x07\x7f"),
        ("\x9b31m", r"\x9b31m"),
        ("a\nb\rc\td", r"a\nb\rc\td"),
        ("\u202egnp\u2066\u200f", r"\u202egnp\u2066\u200f"),
        ("\u2028\ufeff\u00ad", r"\u2028\ufeff\xad"),
        ("\udc80", r"\udc80"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_text_for_a_terminal(text: str, shown: str) -> None:
    assert escaped(text) == shown
    document = json.dumps({"a": [text]}, ensure_ascii=False, indent=2)
    assert json.loads(escaped_json(document)) == {"a": [text]}
    assert escaped_json(document).replace("\n", "").isprintable()


def test_the_last_words_of_a_server() -> None:
    until = datetime(2026, 1, 2, 15, 4).astimezone()
    again = "sandbox serve --port 9000"
    one = farewell(Left(1, until), "standalone", again)
    assert "the box of 1 session stays for the next start, until 15:04" in one
    assert one.endswith("to end it now: sandbox serve --port 9000 --end-sessions")
    two = farewell(Left(2, until), "worker", again)
    assert "the boxes of 2 sessions stay" in two
    assert two.endswith("to end them now: sandbox serve --port 9000 --destroy-on-exit, and stop it")
    assert farewell(Left(), "standalone", again) == "  stopped; no session and no box stays"
    assert farewell(Left(), "coordinator", again) == "  stopped; sessions go on at their workers"


@pytest.mark.parametrize(
    "command",
    ["vim a", "vi", "/usr/bin/vim -n a", "cd src && vim a.py", "TERM=xterm vim a", "ls | vim -"],
)
def test_editors_are_refused_at_once(command: str) -> None:
    with pytest.raises(InvalidRequest, match=r"needs a terminal.*sandbox shell.*sed"):
        refuse_waiting(command)


@pytest.mark.parametrize(
    "command",
    [
        "vim -es -c '%s/a/b/' -c wq a", "vim +q a", "vim --version", "which vim", "echo 'vim a'",
        "cat <<EOF\nvi is an editor\nEOF", "editors=(vim vi)", "nano a", "less a", "echo 'oops",
        "apt-get install vim; echo done", "",
    ],
)  # fmt: skip
def test_what_needs_no_terminal_is_not(command: str) -> None:
    refuse_waiting(command)
