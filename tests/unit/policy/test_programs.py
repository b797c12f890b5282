"""Programs that are arguments: whoever is taken for plain must not run a command."""

import random
import subprocess

import pytest

from sandbox_server.policy.inner import Unread
from sandbox_server.policy.wrappers import unwrap

PIECES = [
    "s", "/", "/", "/", "e", "e", "[", "]", "^", "\\", ";", " ", "x", "p", "g", "1", ",", "$", "{",
    "}", "\n", "!", "a", "i", "c", "y", "#", ":", "b", "t", "|", "&", "n", "q", "=", "[]", "[^]",
    "\\]", "[[:a:]]", "s/", "/e", "/g;", "\\/", "I", "M", "~2", "+1", "D",
]  # fmt: skip


def plain(*argv: str) -> bool:
    return not any(isinstance(inner, Unread) for inner in unwrap(argv[0], list(argv), None))


def test_sed_itself_finds_nothing_to_run_in_a_plain_script() -> None:
    """With --sandbox, sed refuses scripts that would run a command or write a file."""
    choose = random.Random(7)
    tried = 0
    while tried < 60:
        script = "".join(choose.choice(PIECES) for _ in range(choose.randint(3, 16)))
        if "e" not in script or not plain("sed", script):
            continue
        tried += 1
        ran = subprocess.run(
            ["/bin/sed", "--sandbox", script], input=b"x\n", capture_output=True, check=False
        )
        assert b"sandbox" not in ran.stderr, script


@pytest.mark.parametrize(
    "script",
    [
        "s/a/b/", "1d", "$!N;s/\\n/ /", "/a/,/b/p", ":a;N;$!ba;s/x/y/g", "s,^[^/]*/,,;t", "5q",
        "/x/{s/a/b/;d}", "y/abc/xyz/", "a\\\ntext", "$a text; e is text", "s/[]/]/x/2gI", "1~2d",
        "w /dev/stdout", "s/e/e/g # e", "/e/d", "0,/x/s//y/", "",
    ],
)  # fmt: skip
def test_plain_sed(script: str) -> None:
    assert plain("sed", "-n", script, "file")
    assert plain("sed", "-i.bak", "-E", "-e", script, "--", "file")


@pytest.mark.parametrize(
    "program",
    [
        "{print $1}", "/a|b/", "$1 ~ /x|y/ { n++ } END { print n/2 }", "!seen[$0]++", "1",
        'BEGIN { FS = "|" } $3 > 10', '{ print "a > b | c" }', "{ sub(/^[^ ]+/, \"\") } 1",
        "NR % 2 == 0 { print ($1 + $2) / 2 }", "{ x = a || b; print (x > 1) }", "length > 72",
        "# system(\n{ print }", '{ getline line < "file"; print line }',
    ],
)  # fmt: skip
def test_plain_awk(program: str) -> None:
    assert plain("awk", "-F:", "-v", "n=1", program, "file")


@pytest.mark.parametrize(
    "program",
    [
        'BEGIN{system("ls")}', '{print | "sh"}', '"ls" | getline', '{print > "f"}', "@load \"x\"",
        '{printf "x" >> "f"}', '{ print /"/; system("ls"); print /"/ }', "{ @f() }", '{ "open }',
        '{ x = (1) /2/ system("ls") /1/ 3 }', '{ x++ /"/ system("ls") /"/ }', "{print $1 |& x}",
        '{ length /"/; system("ls"); /"/ }',
    ],
)  # fmt: skip
def test_awk_that_is_not_plain(program: str) -> None:
    assert not plain("awk", program)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("s/a/b/", True), ("s/ /_/g;", True), ("y/A-Z/a-z/", True), (r"s/\.(\w+)$/-$1/", True),
        ("s/a/b/e", False), ("s/a/@{[unlink]}/", False), ("s/a/$x[unlink]/", False),
        ("s/(?{unlink})//", False), ("s/(*{unlink})//", False), ("unlink", False), ("", True),
        ("s/a/b/; unlink", False), ("s{a}{b}", False), ("s/a/$h{unlink}/", False),
    ],
)  # fmt: skip
def test_substitutions_of_perl(expression: str, expected: bool) -> None:
    assert plain("rename", expression, "f") is expected
    assert plain("perl", "-pe", expression) is expected
