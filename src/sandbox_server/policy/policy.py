"""Policy: judges commands by a rule set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from sandbox_server.policy.analyse import analyse
from sandbox_server.policy.analysis import Analysis, Call, Doubt, Place
from sandbox_server.policy.bash.source import MAX_WORK
from sandbox_server.policy.fields import certain, command_name
from sandbox_server.policy.rulefile import RuleFile, read_rules
from sandbox_server.policy.rules import Action, Mode, Rule, RuleIndex

NOT_LISTED = "not-listed"
SHADOWED = "shadowed-command"
_INSTEAD = {
    Doubt.UNKNOWN_NAME: "write the command name out literally",
    Doubt.UNKNOWN_SCRIPT: "write the commands directly instead of generating or reading a script",
    Doubt.UNKNOWN_VALUE: "assign the variable a number in the same command",
    Doubt.NOT_PARSED: "use simpler bash syntax, or several commands",
    Doubt.TOO_MUCH: "split it into several commands, and write large data to a file first",
}
MAX_SHOWN = 1000
"""Most characters shown of a command, and of all its arguments together."""


@dataclass(frozen=True)
class Excerpt:
    """A call as shown to callers. Bounded in size: text that is cut off ends in `…`"""

    text: str
    start: int
    end: int
    via: tuple[str, ...]
    argv: tuple[str | None, ...]

    @classmethod
    def of(cls, place: Place, via: tuple[str, ...] = (), argv: Sequence[str] = ()) -> Excerpt:
        names = tuple(clipped(name, 100) for name in via)
        return cls(clipped(place.text), place.start, place.end, names, tuple(_shown(argv)))


@dataclass(frozen=True)
class Rejection:
    """Why a command is rejected, and what to do instead."""

    rule: str
    reason: str
    alternative: str | None
    excerpt: Excerpt


@dataclass(frozen=True)
class Ruling:
    """A policy's decision on a command. Kept small because many are cached."""

    policy: str
    mode: Mode
    rejection: Rejection | None
    doubts: tuple[str, ...]

    @property
    def allowed(self) -> bool:
        return self.rejection is None


KEPT, KEPT_LENGTH = 1024, 1000
"""Size of the cache of rulings, and the longest command that is cached."""


class Policy:
    """Pure: the same command always gets the same ruling."""

    def __init__(self, rules: RuleFile) -> None:
        self.name = rules.name
        self.mode = rules.mode
        self.rules = rules.rules
        self._deny = RuleIndex(rule for rule in rules.rules if rule.action is Action.DENY)
        self._allow = RuleIndex(rule for rule in rules.rules if rule.action is Action.ALLOW)
        self._judge_bare = lru_cache(KEPT)(self._judge)

    def __repr__(self) -> str:
        return f"<Policy {self.name} {self.mode} {len(self.rules)} rules>"

    @classmethod
    def read(cls, name: str) -> Policy:
        """A built-in set by its name, or a rule file by its path. Raises PolicyError."""
        return cls(read_rules(name))

    def judge(
        self,
        command: str,
        *,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        open_stdin: bool = False,
        cwd: str | None = "/workspace",
        work: int = MAX_WORK,
    ) -> Ruling:
        """Decide whether a command may run with this env and stdin; `open_stdin` means more input
        may follow. Raises TooMuch only with a `work` limit below MAX_WORK."""
        if env or stdin is not None or len(command) + len(cwd or "") > KEPT_LENGTH:
            return self.explain(
                command, env=env, stdin=stdin, open_stdin=open_stdin, cwd=cwd, work=work
            )[0]
        return self._judge_bare(command, open_stdin, cwd, work)

    def explain(
        self,
        command: str,
        *,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        open_stdin: bool = False,
        cwd: str | None = "/workspace",
        work: int = MAX_WORK,
    ) -> tuple[Ruling, Analysis]:
        """Like judge, and also returns the analysis."""
        found = analyse(command, env=env, stdin=stdin, open_stdin=open_stdin, cwd=cwd, work=work)
        return self._rule_on(found), found

    def _judge(self, command: str, open_stdin: bool, cwd: str | None, work: int) -> Ruling:
        return self._rule_on(analyse(command, open_stdin=open_stdin, cwd=cwd, work=work))

    def _rule_on(self, found: Analysis) -> Ruling:
        doubts = dict.fromkeys(doubt.value for doubt, _, _ in found.doubts)
        return Ruling(self.name, self.mode, self._rejection(found), tuple(doubts))

    def _rejection(self, found: Analysis) -> Rejection | None:
        if self.mode is Mode.ALLOW_ALL:
            return None
        if denied := next(self._denied(found), None):
            return denied
        if self.mode is Mode.BLACKLIST:
            return None
        for doubt, place, why in found.doubts:
            reason = f"{why}, and this policy allows only what it can check before running"
            return Rejection(doubt.value, reason, _INSTEAD[doubt], Excerpt.of(place))
        return next(self._unlisted(found), None)

    def _denied(self, found: Analysis) -> Iterator[Rejection]:
        loosely = self.mode is Mode.WHITELIST
        for call in found.calls:
            for argv in call.argvs:
                for rule in self._deny.about(argv):
                    if rule.matches(call, argv):
                        yield _by_rule(rule, call, argv, rule.reason)
                    elif loosely and rule.matches(call, argv, loosely=True):
                        reason = f"{rule.reason}, depending on values at run time"
                        yield _by_rule(rule, call, argv, reason)

    def _unlisted(self, found: Analysis) -> Iterator[Rejection]:
        for call in found.calls:
            if call.defines:
                if self._is_listed_name(call):
                    yield _shadowing(call)
            elif not call.function:
                for argv in call.argvs:
                    if argv and not self._is_listed(call, argv):
                        yield _not_listed(call, argv)

    def _is_listed(self, call: Call, argv: list[str]) -> bool:
        return any(rule.matches(call, argv) for rule in self._allow.about(argv))

    def _is_listed_name(self, call: Call) -> bool:
        name = call.argvs[0][:1]
        return any(True for _ in self._allow.about(name))


def _by_rule(rule: Rule, call: Call, argv: list[str], reason: str) -> Rejection:
    return Rejection(rule.id, reason, rule.alternative, Excerpt.of(call.place, call.via, argv))


def _shadowing(call: Call) -> Rejection:
    reason = "the function would replace an allowed command of the same name"
    excerpt = Excerpt.of(call.place, call.via)
    return Rejection(SHADOWED, reason, "give the function another name", excerpt)


def _not_listed(call: Call, argv: list[str]) -> Rejection:
    name = clipped(command_name(argv[0]) or argv[0], 100)
    reason = f"this policy does not allow {name}, or not with these arguments"
    instead = "use a program that this policy allows, or tell the user that it takes another policy"
    return Rejection(NOT_LISTED, reason, instead, Excerpt.of(call.place, call.via, argv))


def _shown(argv: Sequence[str]) -> Iterator[str | None]:
    left = MAX_SHOWN
    for field in argv:
        if left <= 0:
            yield "…"
            return
        plain = certain(field)
        yield plain if plain is None else clipped(plain, left)
        left -= 1 + len(plain or "")


def clipped(text: str, length: int = MAX_SHOWN) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
