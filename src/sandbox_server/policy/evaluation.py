"""Arithmetic evaluation. Wherever bash expects a number it also evaluates `a[$(reboot)]`, so an
unknown value there may run a command."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sandbox_server.policy.bash.source import BY_HAND
from sandbox_server.policy.bash.syntax import Arithmetic, Parameter, Part, Substitution, Text, Word
from sandbox_server.policy.expand import expand_one, parameter
from sandbox_server.policy.fields import NUMBER, known
from sandbox_server.policy.variables import Values, Variables

if TYPE_CHECKING:
    from sandbox_server.policy.streams import Outputs

_NAMES = re.compile(r"(?<![\w$#])[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNS = re.compile(r"\s*(?:=(?!=)|[-+*/%&|^]=|<<=|>>=|\+\+|--)")
_PLAIN_ASSIGN = re.compile(r"\s*=(?!=)")
_NUMERIC = re.compile(rf"[-+\s0-9{NUMBER}]*")
_COMPARES = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})


def evaluate(part: Arithmetic, variables: Variables, outputs: Outputs) -> bool:
    """Apply an expression's assignments to `variables`. False if it may run a command."""
    safe = True
    for inner in part.parts:
        if isinstance(inner, Text):
            outputs.spend(len(inner.text) // BY_HAND)
            safe &= _names(inner.text, variables)
        elif isinstance(inner, Parameter):
            values, _ = parameter(inner, variables, outputs)
            safe &= _is_number(values)
        elif isinstance(inner, Substitution):
            safe &= _is_number(outputs(inner))
    return safe


def is_number(word: Word, variables: Variables, outputs: Outputs) -> bool:
    return _is_number(expand_one(word, variables, outputs))


def compared(words: list[Word]) -> Iterator[Word]:
    """Operands of a test's arithmetic comparisons."""
    for index, word in enumerate(words):
        if word.bare() in _COMPARES:
            yield from words[max(index - 1, 0) : index]
            yield from words[index + 1 : index + 2]


def named(words: list[Word]) -> Iterator[Word]:
    """Operands of a test that are variable names."""
    for operator, word in itertools.pairwise(words):
        if operator.bare() in ("-v", "-R"):
            yield word


def names_element(word: Word) -> bool:
    """Whether a variable name has, or may have, a subscript."""
    return any(not isinstance(part, Text) or "[" in part.text for part in word.parts)


def evaluated(part: Part) -> Iterator[Arithmetic]:
    """Arithmetic expressions in a part: itself, a subscript, an offset."""
    if isinstance(part, Arithmetic):
        yield part
    elif isinstance(part, Parameter):
        if isinstance(part.subscript, Arithmetic):
            yield part.subscript
        if part.operator == ":":
            yield Arithmetic(part.word)


def evaluates_text(part: Part) -> bool:
    """`${!name}` and `${name@P}` expand the value again, as a name or as a prompt."""
    if not isinstance(part, Parameter):
        return False
    named = part.prefix == "!" and part.subscript not in ("@", "*") and not part.word
    return named or part.operator == "@P"


def _is_number(values: Values) -> bool:
    return values.complete and all(_NUMERIC.fullmatch(text) for text in values.texts)


def _names(text: str, variables: Variables) -> bool:
    safe = known(text.replace(NUMBER, ""))
    seen = set()
    for found in _NAMES.finditer(text):
        name = found[0]
        if name not in seen and not _PLAIN_ASSIGN.match(text, found.end()):
            safe &= _is_number(variables.get(name)) or bool(re.fullmatch("0?x[0-9a-fA-F]+", name))
        seen.add(name)
    last = 0
    for found in _NAMES.finditer(text):
        before = text[last : found.start()].rstrip()
        last = found.end()
        if _ASSIGNS.match(text, last) or before.endswith(("++", "--")):
            variables.assign(found[0], Values((NUMBER,), complete=True))
    return safe
