"""Commands of declared tools. A model's values reach bash as variables, never as source.

`grep -n {{pattern}} notes.txt` becomes `grep -n "${TOOL_ARG_pattern}" notes.txt`, and the value
goes into the environment of this one command: whatever it contains, bash does not parse it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sandbox_server.registry.agents import Tool

PREFIX = "TOOL_ARG_"
MAX_VALUE = 100_000
"""Bytes of a variable: Linux starts no program with one of more than 128 KiB."""

_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
_HEREDOC = re.compile(r"<<(?!<)-?\s*\\?(['\"]?)([\w-]+)\1")
_NUMBERS = ("integer", "number")
_EVALUATED = {"((": "))", "[[": "]]", "${": "}"}
"""Where bash computes with a value, and runs commands that stand in it."""


@dataclass(frozen=True)
class Misplaced:
    """A placeholder that cannot stand where it does."""

    offset: int
    what: str


@dataclass(frozen=True)
class Rendered:
    """A command that is ready to be run."""

    command: str
    env: dict[str, str] = field(default_factory=dict)
    stdin: str | None = None


def placeholders(template: str) -> Iterator[tuple[int, str]]:
    """Offset and name of each."""
    return ((found.start(), found[1]) for found in _PLACEHOLDER.finditer(template))


def misplaced(template: str, properties: Mapping[str, Any]) -> Iterator[Misplaced]:
    """Unknown parameters in a command, and known ones at a place where a value would not be one
    word."""
    places = _places(template)
    for offset, name in placeholders(template):
        place = places.get(offset, "in quotes")
        schema = properties.get(name)
        kind = schema.get("type") if isinstance(schema, dict) else None
        if name not in properties:
            yield Misplaced(offset, f'no parameter "{name}"')
        elif place in _EVALUATED and kind not in _NUMBERS:
            yield Misplaced(
                offset,
                f"{{{{{name}}}}} stands in {place} … {_EVALUATED[place]}, where bash evaluates its"
                " value: use it outside, or make it an integer",
            )
        elif place not in ("", *_EVALUATED):
            yield Misplaced(
                offset,
                f"{{{{{name}}}}} stands {place}: put it outside, where it is quoted for you; long"
                " text is for `stdin`",
            )


def _places(template: str) -> dict[int, str]:
    """For the offsets outside of quotes, what they are in: nothing, `((`, `[[`, `${`, or a
    here-document."""
    places: dict[int, str] = {}
    inside: list[str] = []
    body_from: list[str] = []
    at = 0
    while at < len(template):
        places[at] = inside[-1] if inside else ""
        two = template[at : at + 2]
        if template[at] == "\\":
            at += 2
        elif template[at] in "'\"":
            at = _after_quotes(template, at)
        elif inside and template.startswith(_EVALUATED[inside[-1]], at):
            at += len(_EVALUATED[inside.pop()])
        elif _PLACEHOLDER.match(template, at):
            at = _PLACEHOLDER.match(template, at).end()  # type: ignore[union-attr]
        elif two in _EVALUATED:
            inside.append(two)
            at += 2
        elif template[at] == "#" and (at == 0 or template[at - 1] in " \t\n;&|("):
            at = _line_end(template, at)
        elif not inside and (found := _HEREDOC.match(template, at)):
            body_from.append(found[2])
            at = found.end()
        elif template[at] == "\n" and body_from:
            at = _after_heredoc(template, at + 1, body_from.pop(0), places)
        else:
            at += 1
    return places


def _after_quotes(template: str, at: int) -> int:
    quote = template[at]
    at += 1
    while at < len(template) and template[at] != quote:
        at += 2 if template[at] == "\\" and quote == '"' else 1
    return at + 1


def _line_end(template: str, at: int) -> int:
    end = template.find("\n", at)
    return len(template) if end < 0 else end


def _after_heredoc(template: str, at: int, end: str, places: dict[int, str]) -> int:
    while at < len(template):
        line_end = _line_end(template, at)
        places.update(dict.fromkeys(range(at, line_end), "in a here-document"))
        if template[at:line_end].lstrip("\t") == end:
            return line_end
        at = line_end + 1
    return at


def rendered(tool: Tool, arguments: Mapping[str, Any]) -> Rendered:
    """The command for arguments that fit the schema. One that is not given is no word at all.
    Raises ValueError for a value that no command can be given."""
    assert tool.command is not None
    env: dict[str, str] = {}

    def word(found: re.Match[str]) -> str:
        given = arguments.get(found[1])
        values = given if isinstance(given, list) else [] if given is None else [given]
        # Of a list, the number comes first: no parameter begins with one.
        names = [f"{PREFIX}{f'{at}_' if at else ''}{found[1]}" for at in range(len(values))]
        env.update({n: _variable(found[1], v) for n, v in zip(names, values, strict=True)})
        return " ".join(f'"${{{name}}}"' for name in names)

    command = _PLACEHOLDER.sub(word, tool.command)
    stdin = None
    if tool.stdin is not None:
        stdin = _PLACEHOLDER.sub(lambda found: _text(arguments.get(found[1])), tool.stdin)
    return Rendered(command, env, stdin)


def _variable(name: str, value: Any) -> str:
    text = _text(value)
    if "\0" in text:
        raise ValueError(f"{name}: a value cannot contain the character NUL")
    if len(text.encode("utf-8", "replace")) > MAX_VALUE:
        raise ValueError(f"{name}: at most {MAX_VALUE:,} bytes; write it to a file first")
    return text


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def code_of(tool: Tool, arguments: Mapping[str, Any]) -> str:
    """Source with the arguments before it, as JSON in a text: nothing of them is source."""
    assert tool.code is not None
    if tool.language == "python":
        return f"import json; args = json.loads({json.dumps(arguments)!r})\n{tool.code}"
    # JSON in a JSON string is a literal of JavaScript; `var`, since a context may run it again.
    return f"var args = JSON.parse({json.dumps(json.dumps(arguments))});\n{tool.code}"
