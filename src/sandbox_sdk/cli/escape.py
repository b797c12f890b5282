"""Text from a sandbox, made safe to print on a terminal.

A file name may contain codes that move the cursor, set the window's title or turn the direction of
text. Only the output of a command goes to the terminal as it is.
"""

from __future__ import annotations

import json


def escaped(text: str) -> str:
    """Text on one line, with control and invisible characters as escapes of source code."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def escaped_json(document: str) -> str:
    """The same JSON with such characters as escapes of JSON. Line breaks between values stay."""
    return "".join(
        each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in document
    )
