"""A command into the calls it would make."""

from __future__ import annotations

from collections.abc import Mapping

from sandbox_server.policy.analyser import Analyser
from sandbox_server.policy.analysis import Analysis, Call, Doubt, Place
from sandbox_server.policy.fields import PRIVATE
from sandbox_server.policy.lexer import Effort
from sandbox_server.policy.scan import scan
from sandbox_server.policy.streams import Scope
from sandbox_server.policy.syntax import TooMuch
from sandbox_server.policy.variables import Values, Variables

MAX_LENGTH = 64 << 10


def analyse(
    command: str,
    *,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    open_stdin: bool = False,
    cwd: str | None = "/workspace",
) -> Analysis:
    """Every simple command in it. Never raises, and looks at a bounded amount."""
    source = PRIVATE.sub("", command).replace("\r\n", "\n").rstrip("\r")
    walk = Analyser(Effort())
    whole = Place(command[:200], 0, len(command))
    if source != command:
        why = "it has NUL, private characters or carriage returns in it"
        walk.doubt(Doubt.NOT_PARSED, whole, why)
    if len(source) > MAX_LENGTH:
        walk.doubt(Doubt.TOO_MUCH, whole, f"it is longer than {MAX_LENGTH} characters")
        walk.found.calls.extend(scan(source, whole))
        return walk.found
    variables = Variables(cwd=cwd)
    for number in range(1, 10):
        variables.assign(str(number), Values(("",)))
    for name, value in (env or {}).items():
        variables.assign(name, Values((PRIVATE.sub("", value),), complete=True))
    if env:
        walk.emit(Call(Place("", 0, 0), [[]], assigned=list(env)))
    given = Values((PRIVATE.sub("", stdin or ""),), complete=not open_stdin)
    try:
        walk.source(source, Scope(variables, stdin=given))
    except (TooMuch, RecursionError) as exc:
        why = exc.why if isinstance(exc, TooMuch) else "it is nested too deeply"
        walk.doubt(Doubt.TOO_MUCH, whole, why)
        walk.found.calls.extend(scan(source, whole))
    walk.found.work = walk.effort.work
    return walk.found
