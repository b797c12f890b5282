"""Names of commands, and paths."""

from __future__ import annotations

import posixpath
import re
from fnmatch import translate
from functools import lru_cache

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


@lru_cache(maxsize=2048)
def glob(pattern: str) -> re.Pattern[str]:
    """`*` stays within one part of a path, `**` does not; `[*]` is a star."""
    return globs((pattern,))


@lru_cache(maxsize=2048)
def globs(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """What any of the patterns matches."""
    return re.compile("|".join(map(_regex, patterns)), re.DOTALL)


def _regex(pattern: str) -> str:
    """In time that is linear in the text: a star takes the first place where what follows it fits,
    and does not try another. (But `**` does, if a star that stops at slashes comes behind it.)"""
    head, *stars = _starred(pattern)
    made = head[1]
    for index, (star, fixed) in enumerate(stars, 1):
        later = [other for other, _ in stars[index:]]
        again = not later or (star == ".*" and "[^/]*" in later)
        made += star + fixed if again else f"(?>{star}?{fixed})"
    return made


def _starred(pattern: str) -> list[tuple[str, str]]:
    """Every star, and what follows it; the first has no star."""
    made = [("", "")]
    for piece in re.split(r"(\*\*|\*|\?|\[[^]]+\])", pattern):
        if piece in ("*", "**"):
            made.append(("[^/]*" if piece == "*" else ".*", ""))
            continue
        if piece == "?":
            piece = "[^/]"
        elif not (piece[:1] == "[" and piece[-1:] == "]"):
            piece = re.escape(piece)
        made[-1] = (made[-1][0], made[-1][1] + piece)
    return made


@lru_cache(maxsize=2048)
def sample(pattern: str) -> str:
    """A text that a pattern matches."""
    return re.sub(r"\*\*?|\?", "a", re.sub(r"\[(.)[^]]*\]", r"\1", pattern))
