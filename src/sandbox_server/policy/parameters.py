"""The operators of `${name…}`."""

from __future__ import annotations

import re
from fnmatch import translate

from sandbox_server.policy.bash.effort import BY_HAND, CHARACTERS
from sandbox_server.policy.fields import known
from sandbox_server.policy.variables import UNKNOWN, Values

_TRIMS = ("#", "##", "%", "%%")
MAX_PATTERN, MAX_DIGITS = 256, 40
_DECIMAL = re.compile(r"\s*-?(?:0|[1-9][0-9]*)\s*", re.ASCII)
"""Excludes octal: `010` is eight."""


def cost(values: Values, operator: str, argument: str) -> int:
    """Steps needed to apply an operator."""
    sizes = [len(text) for text in values.texts]
    if operator in _TRIMS:
        return sum(size * (2 * CHARACTERS + size) for size in sizes) // (BY_HAND * CHARACTERS)
    if operator in ("/", "//"):
        sizes = [size * (1 + len(argument)) for size in sizes]
    return sum(sizes) // CHARACTERS


def transformed(values: Values, operator: str, argument: str) -> Values:
    """The values after applying an operator; incomplete where the result is unknown."""
    kind = operator.lstrip(":")
    if kind[:1] in ("-", "=", "?", "+") and kind:
        return _default(values, operator, argument)
    results = [_applied(text, operator, argument) for text in values.texts]
    if None in results:
        return UNKNOWN
    # Quoting in a pattern changes its meaning, and is lost by now.
    plain = operator[0] not in "#%/" or not re.search(r"[^\w./@-]", argument)
    return Values(tuple(r for r in results if r is not None), values.complete and plain)


def _default(values: Values, operator: str, argument: str) -> Values:
    """With a colon, empty counts as unset; an unknown variable may be either."""
    kind, colon = operator[-1], operator[0] == ":"
    if kind == "?":
        return values
    results = [] if values.complete else [argument]
    for text in values.texts:
        is_set = bool(text) or not colon
        if kind == "+":
            results.append(argument if is_set else "")
        else:
            results.append(text if is_set else argument)
    if kind == "+":
        return Values(tuple(dict.fromkeys((*results, ""))), complete=True)
    return Values(tuple(dict.fromkeys(results)), values.complete)


def _applied(text: str, operator: str, argument: str) -> str | None:
    if not known(text) or not known(argument):
        return None
    if not text.isascii() and operator[0] in "^,@":
        return None
    if operator in ("^^", ",,", "^", ",") and not argument:
        return _cased(text, operator)
    if operator in ("@L", "@U", "@u"):
        return _cased(text, {"@L": ",,", "@U": "^^", "@u": "^"}[operator])
    if operator == ":":
        return _substring(text, argument)
    if operator in ("/", "//", "/#", "/%"):
        return _replaced(text, operator, argument)
    if operator in _TRIMS and len(argument) <= MAX_PATTERN:
        return _trimmed(text, operator, argument)
    return None


def _cased(text: str, operator: str) -> str:
    if operator == "^^":
        return text.upper()
    if operator == ",,":
        return text.lower()
    return (text[:1].upper() if operator == "^" else text[:1].lower()) + text[1:]


def _substring(text: str, argument: str) -> str | None:
    start, _, length = argument.partition(":")
    numbers = (start or "0", length or "0")
    if len(argument) > MAX_DIGITS or not all(map(_DECIMAL.fullmatch, numbers)):
        return None
    begin, count = int(start or 0), int(length) if length else len(text)
    begin = max(begin + len(text), 0) if begin < 0 else begin
    return text[begin : begin + count] if count >= 0 else text[begin:count]


def _replaced(text: str, operator: str, argument: str) -> str | None:
    pattern, _, replacement = argument.partition("/")
    if any(mark in pattern for mark in "*?[(\\") or "&" in replacement:
        return None
    if operator == "/#":
        return replacement + text.removeprefix(pattern) if text.startswith(pattern) else text
    if operator == "/%":
        return text.removesuffix(pattern) + replacement if text.endswith(pattern) else text
    return text.replace(pattern, replacement, 1 if operator == "/" else -1) if pattern else text


def _trimmed(text: str, operator: str, pattern: str) -> str:
    """Cut the shortest or longest match off one end."""
    matches = re.compile(translate(pattern)).match
    cuts = range(len(text) + 1)
    if operator[0] == "#":
        order = cuts if operator == "#" else reversed(cuts)
        return next((text[cut:] for cut in order if matches(text[:cut])), text)
    order = reversed(cuts) if operator == "%" else cuts
    return next((text[:cut] for cut in order if matches(text[cut:])), text)
