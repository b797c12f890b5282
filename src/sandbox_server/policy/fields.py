"""Fields: the arguments a command would get, as far as they can be known.

A field is text in which some characters stand for what is not known before running. They are
characters for private use, which are not taken from the source: a source that has one is Unclear.
"""

from __future__ import annotations

import re
from functools import lru_cache

HOLE = "\ue000"
"""Any text, within this field."""
SPLIT = "\ue001"
"""Any text, which may also end this field and make others."""
NUMBER = "\ue002"
"""An integer."""
STAR, QUESTION, BRACKET = "\ue003", "\ue004", "\ue005"
"""Patterns that match names of files."""
NAME = "\ue00a"
"""A name that a program prints: of files that find found, of a user. No blanks, never a flag."""
GAP = "\ue006"
"""Where a field is split. None is left after splitting."""
OPEN, COMMA, CLOSE = "\ue007", "\ue008", "\ue009"
"""Braces that are expanded. None is left after that."""

PRIVATE = re.compile("[\ue000-\uf8ff\0]+")
_UNKNOWN = re.compile(f"[{HOLE}{SPLIT}{NUMBER}{STAR}{QUESTION}{BRACKET}{NAME}]")
_NOT_PLAIN = re.compile(f"[{HOLE}{SPLIT}{NUMBER}{NAME}]")
_PLAIN = str.maketrans({STAR: "*", QUESTION: "?", BRACKET: "[", OPEN: "{", COMMA: ",", CLOSE: "}"})
_REGEX = {
    HOLE: ".*",
    SPLIT: ".*",
    NUMBER: "-?[0-9]+",
    STAR: "[^/]*",
    QUESTION: "[^/]",
    BRACKET: "[^/]*",
    NAME: "[^*]*",
}


def known(field: str) -> bool:
    """Whether it is this text and nothing else."""
    return _UNKNOWN.search(field) is None


def certain(field: str) -> str | None:
    """Its text, where all of it is known; patterns are taken as written."""
    if field.isascii():
        return field
    plain = field.translate(_PLAIN)
    return None if _NOT_PLAIN.search(plain) else plain


def may_be_flag(field: str) -> bool:
    """Whether it is not known, and can turn out to be a flag. Files are taken for called otherwise:
    patterns and what is found are names."""
    if SPLIT in field:
        return True
    return field[:1] == HOLE or (field[:1] == "-" and not known(field))


MAX_HOLES, MAX_COMPILED = 4, 256
"""A field with more that is not known may be anything: it would take long to say."""


def unknown_in(field: str) -> list[str]:
    return _UNKNOWN.findall(field)


def may_be(field: str, text: str) -> bool:
    """Whether a field can turn out to be this text."""
    if field == text or SPLIT in field:
        return True
    unknown = unknown_in(field)
    if not unknown or (BRACKET not in unknown and len(field) - len(unknown) > len(text)):
        return False
    if len(unknown) > MAX_HOLES or len(field) > MAX_COMPILED:
        return True
    return _possible(field).fullmatch(text) is not None


@lru_cache(maxsize=512)
def _possible(field: str) -> re.Pattern[str]:
    out, bracket = [], False
    for character in field:
        if bracket:
            bracket = character != "]"
        elif character == BRACKET:
            bracket = "]" in field
            out.append(_REGEX[BRACKET])
        else:
            out.append(_REGEX.get(character) or re.escape(character))
    return re.compile("".join(out), re.DOTALL)
