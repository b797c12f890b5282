"""What the operators of `${name…}` make of a value."""

from __future__ import annotations

from fnmatch import fnmatchcase

from sandbox_server.policy.fields import HOLE, known
from sandbox_server.policy.variables import UNKNOWN, Values


def transformed(values: Values, operator: str, argument: str) -> Values:
    """As far as it can be told; incomplete where it cannot."""
    kind = operator.lstrip(":")
    if kind[:1] in ("-", "=", "?", "+") and kind:
        return _default(values, kind, argument)
    results = [_applied(text, operator, argument) for text in values.texts]
    if None in results:
        return UNKNOWN
    return Values(tuple(r for r in results if r is not None), values.complete)


def _default(values: Values, kind: str, argument: str) -> Values:
    """Set and unset are not told apart: both ways are possible."""
    if kind == "?":
        return values
    given = tuple(t for t in values.texts if t or kind == "+")
    other = () if argument == HOLE else (argument,)
    if kind == "+":
        return Values(("", *other), values.complete and known(argument))
    if values.complete and all(values.texts):
        return values
    return Values((*other, *given), complete=values.complete and known(argument))


def _applied(text: str, operator: str, argument: str) -> str | None:
    if not known(text) or not known(argument):
        return None
    if operator in ("^^", ",,", "^", ",") and not argument:
        return _cased(text, operator)
    if operator in ("@L", "@U", "@u", "@Q"):
        return _cased(text, {"@L": ",,", "@U": "^^", "@u": "^"}.get(operator, ""))
    if operator == ":":
        return _substring(text, argument)
    if operator in ("/", "//", "/#", "/%"):
        return _replaced(text, operator, argument)
    if operator in ("#", "##", "%", "%%"):
        return _trimmed(text, operator, argument)
    return None


def _cased(text: str, operator: str) -> str:
    if operator == "^^":
        return text.upper()
    if operator == ",,":
        return text.lower()
    first = text[:1].upper() if operator == "^" else text[:1].lower() if operator else text[:1]
    return first + text[1:]


def _substring(text: str, argument: str) -> str | None:
    start, _, length = argument.partition(":")
    try:
        begin = int(start or 0)
        count = int(length) if length.strip() else len(text)
    except ValueError:
        return None
    begin = max(begin + len(text), 0) if begin < 0 else begin
    return text[begin : begin + count] if count >= 0 else text[begin:count]


def _replaced(text: str, operator: str, argument: str) -> str | None:
    pattern, _, replacement = argument.partition("/")
    if any(mark in pattern for mark in "*?[("):
        return None
    if operator == "/#":
        return replacement + text.removeprefix(pattern) if text.startswith(pattern) else text
    if operator == "/%":
        return text.removesuffix(pattern) + replacement if text.endswith(pattern) else text
    return text.replace(pattern, replacement, 1 if operator == "/" else -1) if pattern else text


def _trimmed(text: str, operator: str, pattern: str) -> str:
    """The shortest or longest match at one end is cut off."""
    cuts = range(len(text) + 1)
    if operator[0] == "#":
        order = cuts if operator == "#" else reversed(cuts)
        return next((text[cut:] for cut in order if fnmatchcase(text[:cut], pattern)), text)
    order = reversed(cuts) if operator == "%" else cuts
    return next((text[:cut] for cut in order if fnmatchcase(text[cut:], pattern)), text)
