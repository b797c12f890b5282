"""What is not understood is still looked at: as words, for a blacklist to recognise."""

from __future__ import annotations

import re

from sandbox_server.policy.analysis import Call, Place

MAX_SCANNED = 2000
_SEPARATORS = re.compile(r"[;&|\n(){}`]+|\$\(")
_WORD = re.compile(r"[^\s\"'\\]+")


def scan(source: str, place: Place) -> list[Call]:
    """Runs of words between separators, with quotes and backslashes taken away. No understanding:
    what is in a string looks like a command."""
    calls = []
    for piece in _SEPARATORS.split(source):
        words = re.sub(r"[\"'\\]", "", piece).split()
        while words and ("=" in words[0] or words[0] in ("do", "then", "else", "!", "sudo")):
            words = words[1:]
        if words:
            calls.append(Call(place, [words[:64]], ("?",), literal=False))
        if len(calls) >= MAX_SCANNED:
            break
    return calls
