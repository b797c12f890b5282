"""The escapes of `$'…'`, echo -e and printf."""

from __future__ import annotations

import re

_SIMPLE = {
    "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r",
    "t": "\t", "v": "\v", "\\": "\\", "'": "'", '"': '"', "?": "?",
}  # fmt: skip
_ESCAPE = re.compile(
    r"\\(?:([0-7]{1,3})|x(?:\{([0-9A-Fa-f]{1,8})\}|([0-9A-Fa-f]{1,2}))|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})"
    r"|c(.)|(.))",
    re.DOTALL,
)


def ansi_c(text: str) -> str:
    """The value of `$'text'`. A NUL ends the string.

    Private-use characters become `?`: the policy uses them as placeholders, and no rule names one.
    """
    return _ESCAPE.sub(_character, text).partition("\0")[0]


def echoed(text: str) -> str:
    """Backslash escapes as in `echo -e` and printf's format."""
    text = re.sub(r"\\0([0-7]{1,3})", r"\\\1", text)
    return _ESCAPE.sub(_character, text).partition("\0")[0]


def _character(found: re.Match[str]) -> str:
    octal, braced, pair, short, long, control, single = found.groups()
    if octal:
        return chr(int(octal, 8) & 0xFF)
    if braced or pair:
        return chr(int(braced or pair, 16) & 0xFF)
    if short or long:
        number = int(short or long, 16)
        return "?" if 0xD800 <= number < 0xF900 or number >= 0x110000 else chr(number)
    if control:
        return chr(ord(control) & 0x1F)
    return _SIMPLE.get(single, "\\" + single)
