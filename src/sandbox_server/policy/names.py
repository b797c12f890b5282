"""Names of commands, and paths."""

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
"""Where a program is the one of that name."""
MAX_PATH = 4096
"""As in the kernel: what is longer leads nowhere."""
MAX_PATTERN = 64


def command_name(field: str) -> str | None:
    """`rm` for `rm` and `/bin/rm`, but the whole path elsewhere; None where it is not known."""
    if "/" not in field:
        return field.rstrip("\r") if known(field) else None
    if not known(field):
        return None
    folder, _, name = posixpath.normpath(field).rpartition("/")
    return name.rstrip("\r") if re.sub("^//", "/", folder) in PLACES else field


def pattern_of_name(field: str) -> re.Pattern[str] | None:
    """For `/bin/r?`: what its last part matches. None where it is no pattern of files."""
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
    """A path in its plainest form: no dots, no double slashes. None where it is not known."""
    plain = certain(field)
    if plain is None or not plain:
        return None
    plain = plain.rstrip("\r") or plain
    if plain[0] not in "/~" and cwd:
        plain = posixpath.join(cwd, plain)
    path = posixpath.normpath(plain)
    path = "/" + path.lstrip("/") if path[0] == "/" else path
    return re.sub(r"/[*?]++(?=/|$)", lambda part: "/*" if "*" in part[0] else part[0], path)
