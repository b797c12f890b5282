"""Names of commands, and paths."""

from __future__ import annotations

import posixpath
import re
from functools import lru_cache

from sandbox_server.policy.fields import BRACKET, HOLE, QUESTION, STAR, certain, known

PLACES = frozenset({"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"})
"""Where a program is the one of that name."""


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
    if not literal:
        return None
    out = re.sub(f"{BRACKET}([^]]*)]", lambda found: f"[{found[1]}]", last)
    try:
        return re.compile(out.replace(STAR, ".*").replace(QUESTION, "."))
    except re.error:
        return None


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
    return re.sub(r"/[*?]*[*][*?]*(?=/|$)", "/*", path)


@lru_cache(maxsize=2048)
def glob(pattern: str) -> re.Pattern[str]:
    """`*` stays within one part of a path, `**` does not; `[*]` is a star."""
    out = []
    for piece in re.split(r"(\*\*|\*|\?|\[[^]]+\])", pattern):
        if piece == "**":
            out.append(".*")
        elif piece == "*":
            out.append("[^/]*")
        elif piece == "?":
            out.append("[^/]")
        elif piece[:1] == "[" and piece[-1:] == "]":
            out.append(piece)
        else:
            out.append(re.escape(piece))
    return re.compile("".join(out), re.DOTALL)


@lru_cache(maxsize=2048)
def sample(pattern: str) -> str:
    """A text that a pattern matches."""
    return re.sub(r"\*\*?|\?", "a", re.sub(r"\[(.)[^]]*\]", r"\1", pattern))
