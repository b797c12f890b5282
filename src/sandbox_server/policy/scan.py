"""Fallback for source that does not parse: scan it for words that a blacklist may recognise."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sandbox_server.policy.analysis import Call, Place

MAX_SCANNED = 500
"""Most distinct pieces taken as commands, out of MAX_PIECES examined."""
MAX_PIECES = 2000
MAX_WORDS = 2000
MAX_PIECE = 4096
_SEPARATORS = re.compile(r"[;&|\n(){}`]+|\$\(")
_BEFORE_NAMES = frozenset({"do", "then", "else", "!", "sudo"})


def scan(source: str, place: Place) -> list[Call]:
    """Take the words between separators as commands, without quotes and backslashes. No parsing:
    text in a string also looks like a command."""
    seen: set[str] = set()
    calls: list[Call] = []
    left = MAX_WORDS
    for piece in _pieces(source):
        if piece in seen:
            continue
        seen.add(piece)
        if words := _words(piece):
            calls.append(Call(place, [words], ("?",), literal=False))
            left -= len(words)
        if len(seen) >= MAX_SCANNED or left <= 0:
            break
    return calls


def _pieces(source: str) -> Iterator[str]:
    last = 0
    for _, separator in zip(range(MAX_PIECES), _SEPARATORS.finditer(source), strict=False):
        yield source[last : min(separator.start(), last + MAX_PIECE)]
        last = separator.end()
    yield source[last : last + MAX_PIECE]


def _words(piece: str) -> list[str]:
    words = re.sub(r"[\"'\\]", "", piece).split()
    first = 0
    while first < len(words) and ("=" in words[first] or words[first] in _BEFORE_NAMES):
        first += 1
    return words[first : first + 64]
