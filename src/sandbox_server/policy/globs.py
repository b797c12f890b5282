"""Globs in rules: `*` stays within one path component, `**` does not; `[*]` is a literal star.

The text is hostile, so matching takes linear time: a star takes the first place where what follows
it fits, without backtracking (except for a `**` with a `*` behind it).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

LONG = 256
_STARS = re.compile(r"(\*\*|\*)")
_PIECES = re.compile(r"(\*\*|\*|\?|\[[^]]+\])")
_REGEX = {"*": "[^/]*", "**": ".*", "?": "[^/]"}


class Globs:
    """A set of patterns. In a long text, those that start with a star are matched with str.find: a
    regular expression would go character by character."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        found = [pattern for pattern in patterns if _can_be_found(pattern)]
        others = [pattern for pattern in patterns if pattern not in found]
        self._found = [_STARS.split(pattern) for pattern in found]
        self._all, self._others = _any_of(patterns), _any_of(others)

    def match(self, text: str) -> bool:
        """Whether one of the patterns matches the whole text."""
        if len(text) < LONG:
            return self._all.fullmatch(text) is not None
        if self._others.fullmatch(text):
            return True
        return any(_find(words, text) for words in self._found)


@lru_cache(maxsize=2048)
def globs(*patterns: str) -> Globs:
    return Globs(patterns)


@lru_cache(maxsize=2048)
def sample(pattern: str) -> str:
    """An example of a text that the pattern matches."""
    return re.sub(r"\*\*?|\?", "a", re.sub(r"\[(.)[^]]*\]", r"\1", pattern))


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(_regex, patterns)) or "(?!)", re.DOTALL)


def _can_be_found(pattern: str) -> bool:
    stars = _STARS.findall(pattern)
    ordered = stars == sorted(stars)  # Every `*` before any `**`.
    return pattern[:1] == "*" and ordered and not set(pattern) & set("?[")


def _find(words: list[str], text: str) -> bool:
    """`words` are literal texts alternating with stars."""
    *middle, star, end = words[1:]
    at = 0
    for before, word in zip(middle[::2], middle[1::2], strict=True):
        place = text.find(word, at)
        if place < 0 or (before == "*" and text.find("/", at, place) >= 0):
            return False
        at = place + len(word)
    last = len(text) - len(end)
    if last < at or not text.endswith(end):
        return False
    return star == "**" or text.find("/", at, last) < 0


def _regex(pattern: str) -> str:
    head, *stars = _starred(pattern)
    made = head[1]
    for index, (star, fixed) in enumerate(stars, 1):
        later = [other for other, _ in stars[index:]]
        again = not later or (star == "**" and "*" in later)
        made += f"{_REGEX[star]}{fixed}" if again else f"(?>{_REGEX[star]}?{fixed})"
    return made


def _starred(pattern: str) -> list[tuple[str, str]]:
    """Pairs of a star and the regular expression that follows it; the first has no star."""
    made = [("", "")]
    for piece in _PIECES.split(pattern):
        if piece in ("*", "**"):
            made.append((piece, ""))
            continue
        if not (piece[:1] == "[" and piece[-1:] == "]"):
            piece = _REGEX.get(piece) or re.escape(piece)
        made[-1] = (made[-1][0], made[-1][1] + piece)
    return made
