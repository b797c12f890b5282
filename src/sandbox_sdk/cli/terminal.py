"""Commands that would wait for a terminal, which `sandbox run` gives to none.

Input is empty and TERM is `dumb` in a box, so most full-screen programs (nano, less, top, tmux) end
at once with a reason of their own. Vim does not: it waits for keys until its timeout.
"""

from __future__ import annotations

import os
import shlex

from sandbox_sdk.protocol.errors import InvalidRequest

WAITING = frozenset({"vi", "view", "vim", "vim.basic", "vim.tiny", "vimdiff", "nvim"})
_SCRIPTED = ("-c", "-e", "-E", "-s", "-S", "-h", "+", "--")
"""Options by which it does something without keys; `-es` and `--version` begin so too."""
_SEPARATORS = ";&|\n"


def refuse_waiting(command: str) -> None:
    """Raises InvalidRequest for a command that is a full-screen editor and its files."""
    for words in _simple_commands(command):
        if words and os.path.basename(words[0]) in WAITING and not _is_scripted(words):
            raise InvalidRequest(
                f"`{words[0]}` needs a terminal, and commands have none here: it would wait for"
                " keys until its timeout. Use it in `sandbox shell`, which has one, or change the"
                " file with sed -i, a here-document or `vim -es`"
            )


def _is_scripted(words: list[str]) -> bool:
    return any(word.startswith(_SCRIPTED) for word in words[1:])


def _simple_commands(command: str) -> list[list[str]]:
    """Roughly: what is not seen here runs into its timeout. Nothing of a command with a
    here-document, whose text is not a command."""
    if "<<" in command:
        return []
    reader = shlex.shlex(command, posix=True, punctuation_chars=_SEPARATORS)
    reader.whitespace = " \t"
    reader.commenters = ""
    found: list[list[str]] = [[]]
    try:
        for word in reader:
            if word[:1] and word[0] in _SEPARATORS:
                found.append([])
            elif found[-1] or "=" not in word:  # Not a variable before the command.
                found[-1].append(word)
    except ValueError:  # A quote that is not closed: bash says so itself.
        return []
    return found
