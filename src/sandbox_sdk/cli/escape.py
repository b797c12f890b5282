"""Text from elsewhere, made harmless for a terminal.

The name of a file or folder in a sandbox may move the cursor, set the title of the window, or turn
the direction of what follows. Only the output of a command goes to the terminal as it is.
"""

from __future__ import annotations

import json


def escaped(text: str) -> str:
    """Text on one line: what a terminal would obey, or not show, is written as in source code."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _in_source(each) for each in text)


def escaped_json(document: str) -> str:
    """The same JSON, without characters a terminal would obey. Line breaks of its form stay."""
    if document.isprintable():
        return document
    return "".join(
        each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in document
    )


def _in_source(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
