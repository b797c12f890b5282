"""What a fake sandbox answers to which command."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sandbox_sdk.testing.files import FakeFiles


@dataclass(frozen=True, kw_only=True)
class FakeAnswer:
    """How a command ends."""

    output: str = ""
    """What it writes to stdout."""
    stderr: str = ""
    exit_code: int = 0
    takes_s: float = 0.0
    """How long it runs; `math.inf` is until it is killed or times out."""
    writes: Mapping[str, str | bytes] = field(default_factory=dict)
    """Files that it leaves behind."""


@dataclass(frozen=True, kw_only=True)
class FakeCall:
    """A command as a function sees it that answers for it."""

    command: str
    thread_id: str
    cwd: str
    env: Mapping[str, str]
    """The session's variables and the call's."""
    stdin: str
    files: FakeFiles


Answering = Callable[[FakeCall], FakeAnswer]

_UNKNOWN = "{command}: the fake sandbox has no answer to this; give it one with on()\n"


class Script:
    """Answers by command; the newest that fits counts."""

    def __init__(self) -> None:
        self._lines: list[tuple[str | re.Pattern[str], Answering]] = []

    def add(self, command: str | re.Pattern[str], answering: Answering) -> None:
        self._lines.insert(0, (command, answering))

    def answer(self, call: FakeCall) -> FakeAnswer:
        """As bash does for a command it does not find, where there is no answer."""
        for command, answering in self._lines:
            if _fits(command, call.command):
                return answering(call)
        said = _UNKNOWN.format(command=call.command)
        return FakeAnswer(stderr=said, exit_code=127)


def _fits(wanted: str | re.Pattern[str], command: str) -> bool:
    """A text fits commands that begin with it, word by word."""
    if isinstance(wanted, re.Pattern):
        return wanted.search(command) is not None
    return command == wanted or command.startswith(wanted + " ")
