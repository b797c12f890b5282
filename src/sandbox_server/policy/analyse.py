"""Entry point of the analysis: from a command to the calls it would make."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from sandbox_server.policy.analyser import Analyser, scan
from sandbox_server.policy.analysis import Analysis, Call, Doubt, Place, Scope
from sandbox_server.policy.bash.source import BY_HAND, CHARACTERS, MAX_WORK, Effort
from sandbox_server.policy.bash.syntax import TooMuch
from sandbox_server.policy.expand import MAX_TEXT
from sandbox_server.policy.fields import MAX_PATH, PRIVATE
from sandbox_server.policy.variables import UNKNOWN, Values, Variables

MAX_LENGTH = 256 << 10
MAX_SCANNED = 64 << 10


def analyse(
    command: str,
    *,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    open_stdin: bool = False,
    cwd: str | None = "/workspace",
    work: int = MAX_WORK,
) -> Analysis:
    """Find every simple command. One that exceeds the limits is only scanned for words; with a
    `work` limit below MAX_WORK, TooMuch is raised instead."""
    analyser = Analyser(Effort(work))
    whole = Place(command[:200], 0, len(command))
    try:
        analyser.effort.spend((len(command) + len(stdin or "")) // CHARACTERS)
        if len(command) > MAX_LENGTH:
            raise TooMuch(f"the command is longer than {MAX_LENGTH} characters")
        source = _cleaned(command, analyser.effort)
        if source != command:
            why = "the command contains NUL, private-use characters or carriage returns"
            analyser.doubt(Doubt.NOT_PARSED, whole, why)
        variables = Variables(cwd=cwd if len(cwd or "") <= MAX_PATH else None)
        _set_environment(env or {}, variables, analyser)
        given = _as_values(stdin or "", analyser.effort, complete=not open_stdin)
        analyser.source(source, Scope(variables, stdin=given))
    except (TooMuch, RecursionError) as exc:
        if work < MAX_WORK:
            raise TooMuch(f"the analysis takes more than {work} steps") from None
        why = exc.why if isinstance(exc, TooMuch) else "the command is nested too deeply"
        analyser.doubt(Doubt.TOO_MUCH, whole, why)
        analyser.found.calls.extend(
            scan(_cleaned(command[:MAX_SCANNED], Effort(limit=MAX_SCANNED)), whole)
        )
    analyser.found.work = analyser.effort.work
    return analyser.found


def _cleaned(command: str, effort: Effort) -> str:
    return _without_private(command, effort).replace("\r\n", "\n").rstrip("\r")


def _without_private(text: str, effort: Effort) -> str:
    if not PRIVATE.search(text):
        return text
    effort.spend(len(text) // BY_HAND)
    return PRIVATE.sub("", text)


def _set_environment(env: Mapping[str, str], variables: Variables, analyser: Analyser) -> None:
    """Record the environment as assignments before the first command."""
    if not env:
        return
    analyser.emit(Call(Place("", 0, 0), [[]], assigned=list(itertools.islice(env, MAX_WORK))))
    analyser.effort.spend(len(env))
    for name, value in env.items():
        analyser.effort.spend(len(value) // CHARACTERS)
        variables.assign(name, _as_values(value, analyser.effort, complete=True))


def _as_values(text: str, effort: Effort, *, complete: bool) -> Values:
    """The value of an environment variable or of stdin."""
    if len(text) > MAX_TEXT:
        return UNKNOWN
    return Values((_without_private(text, effort),), complete=complete)
