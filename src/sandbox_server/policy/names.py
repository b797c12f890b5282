"""Command names and paths."""

from __future__ import annotations

import posixpath
import re
from fnmatch import translate

from sandbox_server.policy.fields import (
    BRACKET,
    HOLE,
    MAX_HOLES,
    QUESTION,
    STAR,
    certain,
    known,
    unknown_in,
)

PLACES = frozenset({"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"})
"""Directories in which `rm` is the well-known rm."""
MAX_PATH = 4096
"""The kernel's PATH_MAX: longer paths do not resolve."""
MAX_PATTERN = 64


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
