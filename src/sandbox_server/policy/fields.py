"""Fields: the arguments a command would get, with placeholders for what is unknown; names and paths
among them.

Placeholders are private-use characters. They cannot come from the source: those are removed from it
before parsing.
"""

from __future__ import annotations

import posixpath
import re
from fnmatch import translate
from functools import lru_cache

HOLE = "\ue000"
"""Any text that stays within this field."""
SPLIT = "\ue001"
"""Any text, which may also be split into several fields."""
NUMBER = "\ue002"
"""An integer."""
STAR, QUESTION, BRACKET = "\ue003", "\ue004", "\ue005"
"""Active glob characters."""
NAME = "\ue00a"
"""A name printed by a program, such as a file found by find: no blanks, never a flag."""
GAP = "\ue006"
"""Where a field is split; gone after splitting."""
OPEN, COMMA, CLOSE = "\ue007", "\ue008", "\ue009"
"""Active braces; gone after brace expansion."""

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
PLACES = frozenset({"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"})
"""Directories in which `rm` is the well-known rm."""
MAX_PATH = 4096
"""The kernel's PATH_MAX: longer paths do not resolve."""
MAX_PATTERN = 64


def known(field: str) -> bool:
    """Whether the field has no placeholder in it."""
    return _UNKNOWN.search(field) is None


def certain(field: str) -> str | None:
    """The field's text with globs as written, or None if part of it is unknown."""
    if field.isascii():
        return field
    plain = field.translate(_PLAIN)
    return None if _NOT_PLAIN.search(plain) else plain


def may_be_flag(field: str) -> bool:
    """Whether an unknown field can turn out to be a flag. File names, from a glob or from find, are
    assumed not to start with a dash."""
    if SPLIT in field:
        return True
    return field[:1] == HOLE or (field[:1] == "-" and not known(field))


MAX_HOLES, MAX_COMPILED = 4, 256
"""Beyond these limits a field counts as possibly anything: matching it would take too long."""


def unknown_in(field: str) -> list[str]:
    return _UNKNOWN.findall(field)


def may_be(field: str, text: str) -> bool:
    """Whether the field can turn out to be `text`."""
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


def command_name(field: str) -> str | None:
    """`rm` for `rm` and `/bin/rm`, the whole path for any other place; None if unknown."""
    if "/" not in field:
        return field.rstrip("\r") if known(field) else None
    if not known(field):
        return None
    folder, _, name = posixpath.normpath(field).rpartition("/")
    return name.rstrip("\r") if re.sub("^//", "/", folder) in PLACES else field


def pattern_of_name(field: str) -> re.Pattern[str] | None:
    """For `/bin/r?`, a regex for the last component; None if the field is not a glob."""
    if "/" not in field or HOLE in field:
        return None
    last = field.rpartition("/")[2]
    literal = re.sub(f"[{STAR}{QUESTION}]|{BRACKET}[^]]*]", "", last)
    if not literal or len(last) > MAX_PATTERN or len(unknown_in(last)) > MAX_HOLES:
        return None
    quoted = re.sub("[*?[]", r"[\g<0>]", last)
    plain = quoted.replace(f"{BRACKET}^", "[!").replace(BRACKET, "[")
    return re.compile(translate(plain.replace(STAR, "*").replace(QUESTION, "?")))


def absolute(field: str, cwd: str | None) -> str | None:
    """The normalised path: no dots, no double slashes. None if unknown."""
    plain = certain(field)
    if plain is None or not plain:
        return None
    plain = plain.rstrip("\r") or plain
    if plain[0] not in "/~" and cwd:
        plain = posixpath.join(cwd, plain)
    path = posixpath.normpath(plain)
    path = "/" + path.lstrip("/") if path[0] == "/" else path
    return re.sub(r"/[*?]++(?=/|$)", lambda part: "/*" if "*" in part[0] else part[0], path)
