"""Commands of declared tools: where parameters may stand, and how their values get there."""

import subprocess
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox_server.registry.agents import Tool
from sandbox_server.registry.parameters import check_arguments
from sandbox_server.registry.templates import code_of, misplaced, rendered

PROPERTIES: dict[str, Any] = {
    "a": {"type": "string"},
    "n": {"type": "integer", "default": 3},
    "flag": {"type": "boolean"},
    "files": {"type": "array", "items": {"type": "string"}},
}


def tool(command: str, **more: Any) -> Tool:
    return Tool(
        name="t",
        description="d",
        command=command,
        parameters={"properties": PROPERTIES, "required": ["a"]},
        **more,
    )


@pytest.mark.parametrize(
    "template",
    [
        "grep -n -- {{a}} notes.txt",
        "grep --count={{ a }} 'it''s' \"quoted\" {{n}}",
        "x={{a}}; echo $x # don't mind {{ a }",
        "echo '{{.Names}}' {{a}} ${x} \\' {{a}}",
        "if [[ $x == 1 ]]; then cat {{a}}; fi",
        "echo $(( {{n}} + 1 )) ${x:{{n}}}",
        "cat <<END > {{a}}\ndon't\nEND\nwc {{a}}",
        "cat <<< {{a}}",
    ],
)
def test_parameters_outside_of_quotes(template: str) -> None:
    assert list(misplaced(template, PROPERTIES)) == []


@pytest.mark.parametrize(
    "template",
    [
        'grep "{{a}}" x',
        "grep '{{a}}' x",
        'echo "it\'s {{a}}"',
        "echo \\{{a}}",
        'echo "$(cat {{a}})"',
        "cat <<END\n{{a}}\nEND",
        "cat <<'END'\n{{a}}\nEND",
        "cat <<-END\n\tx {{a}}\n\tEND",
        "(( {{a}} ))",
        "[[ {{a}} -eq 1 ]]",
        "echo ${x[{{a}}]}",
        "echo {{b}}",
    ],
)
def test_parameters_where_a_value_would_not_be_one_word(template: str) -> None:
    assert len(list(misplaced(template, PROPERTIES))) == 1


def bash(each: Tool, arguments: dict[str, Any]) -> str:
    """What the real bash makes of it."""
    command = rendered(each, check_arguments(each, arguments))
    done = subprocess.run(
        ["bash", "-c", command.command],
        env={"PATH": "/usr/bin:/bin", **command.env},
        input=(command.stdin or "").encode(),
        capture_output=True,
        check=False,
    )
    assert done.stderr == b""
    return done.stdout.decode("utf-8", "surrogateescape")


@settings(deadline=None, max_examples=40)  # Each starts a process.
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40))
def test_any_text_is_one_word(value: str) -> None:
    assert bash(tool("printf '<%s>' {{a}} end"), {"a": value}) == f"<{value}><end>"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"a": "x"}, "<x><3>"),
        ({"a": "", "n": 0, "flag": True}, "<><0><true>"),
        ({"a": "x y", "files": ["a b", "", "$(id)"]}, "<x y><3><a b><><$(id)>"),
        ({"a": "x", "files": []}, "<x><3>"),
    ],
)
def test_numbers_lists_defaults_and_what_is_left_out(arguments: dict[str, Any], words: str) -> None:
    assert bash(tool("printf '<%s>' {{a}} {{n}} {{flag}} {{files}}"), arguments) == words


def test_long_text_goes_through_stdin() -> None:
    long = "x'\"$(id)" * 50_000
    assert bash(tool("cat", stdin="<{{a}}>"), {"a": long}) == f"<{long}>"
    with pytest.raises(ValueError, match="a: at most 100,000 bytes; write it to a file first"):
        rendered(tool("echo {{a}}"), {"a": long})
    with pytest.raises(ValueError, match="a: a value cannot contain the character NUL"):
        rendered(tool("echo {{a}}"), {"a": "x\0y"})


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "t: 'a' is a required property"),
        ({"a": 1}, "t: a: 1 is not of type 'string'"),
        ({"a": "x", "n": "1; id"}, "t: n: '1; id' is not of type 'integer'"),
        ({"a": "x", "b": 1}, "t: Additional properties are not allowed"),
        ({"a": "x", "files": ["y", 2]}, "t: files.1: 2 is not of type 'string'"),
    ],
)
def test_arguments_that_do_not_fit(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=r"^t: ") as caught:
        check_arguments(tool("echo {{a}}"), arguments)
    assert str(caught.value).startswith(problem)


HOSTILE = ["'''", '"""', "\\", "'); import os; print('", "\u2028\n", "${x}`y`", "é\U0001f600\x7f"]


@pytest.mark.parametrize("value", HOSTILE)
def test_code_gets_its_arguments_as_data(value: str) -> None:
    each = Tool(name="t", description="d", code="print(ascii(args['a']))", language="python")
    source = code_of(each, {"a": value})
    done = subprocess.run(["python3", "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == f"{value!a}\n"
    javascript = code_of(each.model_copy(update={"language": "javascript"}), {"a": value})
    assert javascript.isascii()
