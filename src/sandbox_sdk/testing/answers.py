"""What a fake sandbox answers to which command."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sandbox_sdk.protocol.models import CodeError
from sandbox_sdk.testing.files import FakeFiles


@dataclass(frozen=True, kw_only=True)
class FakeAnswer:
    """How a command ends."""

    output: str = ""
    """What it writes to stdout."""
    stderr: str = ""
    exit_code: int = 0
    hint: str | None = None
    """What the server says of why it failed."""
    takes_s: float = 0.0
    """How long it runs; `math.inf` is until it is killed or times out."""
    writes: Mapping[str, str | bytes] = field(default_factory=dict)
    """Files that it leaves behind."""
    results: Sequence[Mapping[str, Any]] = ()
    """Of code: what it shows, by MIME type; the last is the value of the last line."""
    error: CodeError | None = None
    """Of code: what it raises."""


@dataclass(frozen=True, kw_only=True)
class FakeCall:
    """What a function that answers for commands is given."""

    command: str
    thread_id: str
    cwd: str
    env: Mapping[str, str]
    """The session's variables and the call's."""
    stdin: str
    files: FakeFiles


Answering = Callable[[FakeCall], FakeAnswer]

Script = list[tuple[str | re.Pattern[str], Answering]]
"""Answers by command; the first that fits counts."""


def answer_to(call: FakeCall, script: Script) -> FakeAnswer:
    """What the script says; without an answer there, exit code 127, as bash has it."""
    for wanted, answering in script:
        if _fits(wanted, call.command):
            return answering(call)
    unknown = f"{call.command}: FakeBackend has no answer to this command; add one with on()\n"
    return FakeAnswer(stderr=unknown, exit_code=127)


def _fits(wanted: str | re.Pattern[str], command: str) -> bool:
    """A text fits commands that begin with its words."""
    if isinstance(wanted, re.Pattern):
        return wanted.search(command) is not None
    return command == wanted or command.startswith(wanted + " ")
