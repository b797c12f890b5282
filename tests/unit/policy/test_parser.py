"""The parser finds the commands that bash finds: compared with bash, with shfmt, and by hand."""

import dataclasses
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox_server.policy.bash.parser import Parser
from sandbox_server.policy.bash.source import Effort
from sandbox_server.policy.bash.syntax import Sequence, Simple, Unclear
from tests.unit.policy.corpus import ordinary
from tests.unit.policy.disguises import mutants

SHFMT = Path(sys.executable).with_name("shfmt")


def parse(source: str) -> Sequence:
    return Parser(source, Effort()).parse()


def simple_commands(node: Any) -> Iterator[Simple]:
    """Every one in a tree, whatever it hangs on."""
    if isinstance(node, (list, tuple)):
        for each in node:
            yield from simple_commands(each)
    elif dataclasses.is_dataclass(node):
        if isinstance(node, Simple):
            yield node
        for field in dataclasses.fields(node):
            yield from simple_commands(getattr(node, field.name))


def texts(source: str) -> list[str]:
    found = [node for node in simple_commands(parse(source)) if node.words]
    return [source[node.start : node.end] for node in sorted(found, key=lambda node: node.start)]


def is_bash(source: str) -> bool:
    result = subprocess.run(
        ["bash", "-n"], input=source.encode(), capture_output=True, timeout=30, check=False
    )
    return result.returncode == 0


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a; b & c", ["a", "b", "c"]),
        ("a && b || c", ["a", "b", "c"]),
        ("a | b |& c", ["a", "b", "c"]),
        ("! a | b", ["a", "b"]),
        ("time -p a", ["a"]),
        ("a\nb\n\n# c\nd # e", ["a", "b", "d"]),
        ("a \\\n  b", ["a \\\n  b"]),
        ("(a; b) > f", ["a", "b"]),
        ("{ a; b; }", ["a", "b"]),
        ("if a; then b; elif c; then d; else e; fi", ["a", "b", "c", "d", "e"]),
        ("while a; do b; done < f", ["a", "b"]),
        ("until a; do b; done", ["a", "b"]),
        ("for x in 1 2; do a; done", ["a"]),
        ("for x; do a; done", ["a"]),
        ("for x in 1 2; { a; }", ["a"]),
        ("for ((i=0; i<3; i++)); do a; done", ["a"]),
        ("select x in 1 2; do a; done", ["a"]),
        ("case x in a) b;; (c|d) e;& *) f;;& esac", ["b", "e", "f"]),
        ("case x in esac", []),
        ("f() { a; }; f", ["a", "f"]),
        ("function f { a; }", ["a"]),
        ("function f() (a)", ["a"]),
        ("coproc a", ["a"]),
        ("coproc N { a; }", ["a"]),
        ("[[ -f x && $(a) =~ ^(b|c)$ ]]", ["a"]),
        ("((x = $(a) + 1))", ["a"]),
        ("echo $((1 + $(a)))", ["echo $((1 + $(a)))", "a"]),
        ("echo $((a); (b))", ["echo $((a); (b))", "a", "b"]),
        ("echo $(a `b`)", ["echo $(a `b`)", "a `b`", "b"]),
        ('echo "x $(a "$(b)") y"', ['echo "x $(a "$(b)") y"', 'a "$(b)"', "b"]),
        ("echo ${x:-$(a)} ${y/$(b)/c}", ["echo ${x:-$(a)} ${y/$(b)/c}", "a", "b"]),
        ("x=$(a) y=1", ["a"]),
        ("x=(1 $(a) [2]=$(b))", ["a", "b"]),
        ("a[$(b)]=1", ["b"]),
        ("diff <(a) >(b)", ["diff <(a) >(b)", "a", "b"]),
        ("a <<< $(b)", ["a <<< $(b)", "b"]),
        ("a <<E\n$(b)\n`c`\nE\nd", ["a <<E", "b", "c", "d"]),
        ("a <<'E'\n$(b)\nE\nd", ["a <<'E'", "d"]),
        ("a <<-E\n\tx\n\tE\nd", ["a <<-E", "d"]),
        ("a <<E; b <<F\nx\nE\ny\nF\nc", ["a <<E", "b <<F", "c"]),
        ("a <<E | b\nx\nE", ["a <<E", "b"]),
        ("a <<\\E\n$(b)\nE", ["a <<\\E"]),
        ("a <<E\nx\\\nE\nE\nb", ["a <<E", "b"]),
        ("echo $(a <<E\nx)\nE\n)", ["echo $(a <<E\nx)\nE\n)", "a <<E"]),
        ("2>&1 a >f {fd}<g", ["2>&1 a >f {fd}<g"]),
        ("a &>f; b &>>f", ["a &>f", "b &>>f"]),
        ("echo 'a; b' \"c; d\" e\\;f", ["echo 'a; b' \"c; d\" e\\;f"]),
        ("echo a#b", ["echo a#b"]),
        ("echo {a,b} @(c|d)", ["echo {a,b} @(c|d)"]),
        ("echo ${x:-'}'}", ["echo ${x:-'}'}"]),
    ],
)
def test_commands_and_where_they_stand(source: str, expected: list[str]) -> None:
    assert is_bash(source) or "@(" in source
    assert texts(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "if a", "fi", "a | | b", "a && && b", "(a", "a)", "{ a", "for", "case x", "echo 'a",
        'echo "a', "echo `a", "echo $(a", "a <", "a >|", "f( { a; }", "[[ a", "while a; done",
        "do a", "; a", "& a", "a ;; b", "echo ${x", "if a; then fi", "()", "function",
    ],
)  # fmt: skip
def test_what_is_not_bash_is_unclear(source: str) -> None:
    assert not is_bash(source)
    with pytest.raises(Unclear):
        parse(source)


@pytest.mark.parametrize(
    "source", ["a &\\\n& b", "echo $\\\n(a)", "cat <\\\n<E\nx\nE", "echo $x\\\ny", "a |\\\n| b"]
)
def test_operators_cut_by_a_line_continuation_are_unclear(source: str) -> None:
    with pytest.raises(Unclear):
        parse(source)


def test_what_bash_accepts_is_understood() -> None:
    wrong = [source for source in ordinary() if is_bash(source) != understood(source)]
    assert wrong == []


def understood(source: str) -> bool:
    try:
        parse(source)
    except Unclear:
        return False
    return True


def test_the_same_commands_as_shfmt() -> None:
    """Where both understand a source, they find as many commands that start with the same word."""
    sources = [*ordinary(), *(source for _, _, source in list(mutants())[::40])]
    wrong = [source for source in sources if found_by_shfmt(source) not in (None, ours(source))]
    assert wrong == []


def ours(source: str) -> Counter[str]:
    return Counter(
        first_word(source, node) for node in simple_commands(parse(source)) if node.words
    )


def first_word(source: str, node: Simple) -> str:
    bare = node.words[0].bare()
    return bare if bare is not None else "?"


def found_by_shfmt(source: str) -> Counter[str] | None:
    if not source.isascii() or "\\`" in source:
        return None
    result = subprocess.run(
        [SHFMT, "-ln", "bash", "-tojson"],
        input=source.encode(),
        capture_output=True,
        timeout=30,
        check=False,
    )
    return Counter(called(json.loads(result.stdout))) if result.returncode == 0 else None


def called(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for each in node:
            yield from called(each)
    elif isinstance(node, dict):
        if node.get("Type") == "CallExpr" and node.get("Args"):
            parts = node["Args"][0]["Parts"]
            plain = len(parts) == 1 and parts[0]["Type"] == "Lit" and "\\" not in parts[0]["Value"]
            yield parts[0]["Value"] if plain else "?"
        elif node.get("Type") in ("DeclClause", "LetClause"):
            yield node["Variant"]["Value"] if "Variant" in node else "let"
        for value in node.values():
            yield from called(value)
