"""Word expansion without running anything: quotes, braces, variables, field splitting."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sandbox_server.policy.bash.source import BY_HAND, CHARACTERS
from sandbox_server.policy.bash.syntax import Arithmetic, Parameter, Part, Substitution, Text, Word
from sandbox_server.policy.fields import (
    BRACKET,
    CLOSE,
    COMMA,
    GAP,
    HOLE,
    NUMBER,
    OPEN,
    QUESTION,
    SPLIT,
    STAR,
)
from sandbox_server.policy.variables import UNKNOWN, Values, Variables, cost, transformed

if TYPE_CHECKING:
    from sandbox_server.policy.streams import Outputs

MAX_ALTERNATIVES = 16
MAX_BRACES = 64
MAX_TEXT = 256 << 10
MAX_NESTED = 12
MAX_RANGE = 64
_ACTIVE = str.maketrans({"*": STAR, "?": QUESTION, "[": BRACKET, "{": OPEN, ",": COMMA, "}": CLOSE})
_ACTIVE_BUT_BRACKETS = {key: value for key, value in _ACTIVE.items() if value != BRACKET}
_SPECIAL = re.compile(r"[*?{~]|\[.*\]")
_RANGE = re.compile(r"(-?\d+|[A-Za-z])\.\.(-?\d+|[A-Za-z])(?:\.\.-?\d+)?")


def expand(word: Word, variables: Variables, outputs: Outputs) -> list[list[str]]:
    """Every possible list of fields a word expands to; usually one."""
    bare = word.bare()
    if bare is not None and not _SPECIAL.search(bare):
        return [[bare]]
    texts = _alternatives(word.parts, variables, outputs)
    ways = [_fields(text, word, outputs) for text in texts]
    return ways if len(ways) <= MAX_ALTERNATIVES else [*ways[:MAX_ALTERNATIVES], [SPLIT]]


def expand_one(word: Word, variables: Variables, outputs: Outputs) -> Values:
    """Expand the value of an assignment or the target of a redirection, without splitting."""
    texts = dict.fromkeys(_joined(text) for text in _alternatives(word.parts, variables, outputs))
    return Values(tuple(texts), complete=True)


def product(ways: list[list[list[str]]]) -> list[list[str]]:
    """Every combination of the words' expansions; past a limit, one stands for the rest."""
    if all(len(each) == 1 for each in ways):
        return [[field for each in ways for field in each[0]]]
    count = 1
    for each in ways:
        count *= len(each)
    chosen = itertools.islice(itertools.product(*ways), MAX_ALTERNATIVES)
    argvs = [[field for fields in combination for field in fields] for combination in chosen]
    if count > MAX_ALTERNATIVES:
        argvs.append([field for each in ways for field in (each[0] if len(each) == 1 else [SPLIT])])
    return argvs


def is_literal(word: Word) -> bool:
    """Whether it has no parameter, substitution or arithmetic in it."""
    return all(type(part) is Text for part in word.parts)


def _alternatives(parts: list[Part], variables: Variables, outputs: Outputs) -> list[str]:
    ways: list[list[str]] = [[]]
    for index, part in enumerate(parts):
        pieces = _pieces(part, variables, outputs, first=index == 0)
        if len(pieces) > 1 and len(ways) * len(pieces) <= MAX_ALTERNATIVES:
            ways = [[*way, piece] for way in ways for piece in pieces]
            outputs.spend(sum(map(len, ways)) // BY_HAND)
            continue
        for way in ways:
            way.append(pieces[0] if len(pieces) == 1 else HOLE)
    outputs.spend(sum(len(piece) for way in ways for piece in way) // CHARACTERS)
    return list(dict.fromkeys(_bounded("".join(way)) for way in ways))


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_TEXT else SPLIT


def _pieces(part: Part, variables: Variables, outputs: Outputs, *, first: bool) -> list[str]:
    if isinstance(part, Text):
        return [part.text if part.quoted else _activated(part.text, variables, first=first)]
    if isinstance(part, Arithmetic):
        return [NUMBER]
    if isinstance(part, Substitution):
        if part.process:
            return [outputs.process(part)]
        values = outputs(part)
        quoted = part.quoted
    else:
        values, quoted = parameter(part, variables, outputs)
    hole = HOLE if quoted else SPLIT
    texts = values.alternatives(hole)
    return texts if quoted else [_split(text, variables) for text in texts]


def parameter(part: Parameter, variables: Variables, outputs: Outputs) -> tuple[Values, bool]:
    """The value of a parameter expansion, and whether it stays one field."""
    if part.prefix == "#":
        return Values((NUMBER,), complete=True), True
    if part.prefix == "!":
        return _indirect(part, variables), part.quoted
    if part.subscript in ("@", "*") or part.name in ("@", "*"):
        name = part.name if part.subscript else "@"
        joined = part.quoted and "*" in (part.name, part.subscript)
        fields = variables.array(name)
        outputs.spend(sum(map(len, fields)) // CHARACTERS + len(fields) // BY_HAND)
        return Values((GAP.join(fields),), complete=not joined), True
    if isinstance(part.subscript, Arithmetic):
        index = "".join(p.text for p in part.subscript.parts if isinstance(p, Text))
        values = variables.element(part.name, index)
    else:
        values = variables.get(part.name)
    if not part.operator:
        return values, part.quoted
    words = [Word([each], 0, 0) for each in part.word]
    texts = [expand_one(each, variables, outputs) for each in words]
    argument = "".join(v.texts[0] if v.complete and len(v.texts) == 1 else HOLE for v in texts)
    outputs.spend(cost(values, part.operator, argument))
    return transformed(values, part.operator, argument), part.quoted


def _indirect(part: Parameter, variables: Variables) -> Values:
    if part.subscript or part.operator or part.word:
        return UNKNOWN
    named = variables.get(part.name)
    found = [variables.get(name) for name in named.texts]
    texts = tuple(text for values in found for text in values.texts)
    return Values(texts)


def _activated(text: str, variables: Variables, *, first: bool) -> str:
    active = _ACTIVE if "]" in text else _ACTIVE_BUT_BRACKETS
    if first and text[0] == "~":
        name, slash, rest = text.partition("/")
        home = variables.get("HOME")
        if name == "~":
            value = home.texts[0] if home.complete and len(home.texts) == 1 else HOLE
            return value + (slash + rest).translate(active)
        return name + (slash + rest).translate(active)
    return text.translate(active)


def _split(text: str, variables: Variables) -> str:
    """Mark where an unquoted value is split, and its glob characters."""
    separators = variables.get("IFS")
    if not (separators.complete and len(separators.texts) == 1):
        return SPLIT
    for separator in separators.texts[0]:
        text = text.replace(separator, GAP)
    return text.replace(HOLE, SPLIT).replace("*", STAR).replace("?", QUESTION).replace("[", BRACKET)


def _fields(text: str, word: Word, outputs: Outputs) -> list[str]:
    texts = [text] if OPEN not in text else _braced(text, outputs)
    fields: list[str] = []
    for each in texts:
        each = _inactive_braces(each)
        if GAP not in each:
            fields.append(each)
        else:
            fields.extend(part for part in each.split(GAP) if part)
            outputs.spend(len(fields))
    if fields == [""] and not any(isinstance(p, Text) and p.quoted for p in word.parts):
        return []
    return fields


def _braced(text: str, outputs: Outputs) -> list[str]:
    if text.count(OPEN) > MAX_NESTED:
        return [SPLIT]
    outputs.spend(2 * len(text) // BY_HAND)
    made = []
    for each in itertools.islice(_braces(text), MAX_BRACES + 1):
        outputs.spend(1 + len(each) // CHARACTERS)
        made.append(each)
    return made if len(made) <= MAX_BRACES else [*made[:MAX_BRACES], SPLIT]


def _inactive_braces(text: str) -> str:
    return text.replace(OPEN, "{").replace(COMMA, ",").replace(CLOSE, "}")


def _joined(text: str) -> str:
    text = _inactive_braces(text).replace(GAP, " ").replace(SPLIT, HOLE)
    return text.replace(STAR, "*").replace(QUESTION, "?").replace(BRACKET, "[")


def _braces(text: str) -> Iterator[str]:
    """Expand `a{b,c}d` and `{1..3}`, starting with the first brace that closes."""
    start = text.find(OPEN)
    while start >= 0:
        inner = _balanced(text, start)
        if inner is not None:
            before, after = text[:start], text[start + len(inner) + 2 :]
            choices = _choices(inner)
            if choices:
                for choice, tail in itertools.product(choices, [after]):
                    for head in _braces(choice) if OPEN in choice else [choice]:
                        for rest in _braces(tail) if OPEN in tail else [tail]:
                            yield before + head + rest
                return
        start = text.find(OPEN, start + 1)
    yield text


def _balanced(text: str, start: int) -> str | None:
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] == OPEN) - (text[index] == CLOSE)
        if depth == 0:
            return text[start + 1 : index]
    return None


def _choices(inner: str) -> list[str]:
    """The alternatives of a brace expansion: a list or a range; [] if it is neither."""
    parts, depth, last = [], 0, 0
    for index, character in enumerate(inner):
        depth += (character == OPEN) - (character == CLOSE)
        if character == COMMA and depth == 0:
            parts.append(inner[last:index])
            last = index + 1
    if parts:
        return [*parts, inner[last:]]
    found = _RANGE.fullmatch(inner)
    if not found:
        return []
    if len(inner) > MAX_RANGE:
        return [SPLIT]
    low, high = (int(end) if end.lstrip("-").isdigit() else ord(end) for end in found.groups())
    if found[1].lstrip("-").isdigit() != found[2].lstrip("-").isdigit():
        return []
    if re.search(r"(?:^|\.)-?0[0-9]", inner):
        return [SPLIT]
    if abs(high - low) >= MAX_BRACES:
        return [SPLIT]
    step = 1 if high >= low else -1
    as_text = str if found[1].lstrip("-").isdigit() else chr
    return [as_text(number) for number in range(low, high + step, step)]
