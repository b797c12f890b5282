"""Policy: a rule set that passes judgement on commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from sandbox_server.policy.analyse import analyse
from sandbox_server.policy.analysis import Analysis, Call, Doubt, Place
from sandbox_server.policy.names import command_name
from sandbox_server.policy.rulefile import RuleFile, read_rules
from sandbox_server.policy.rules import Action, Mode, Rule, RuleIndex

NOT_LISTED = "not-listed"
SHADOWED = "shadowed-command"
_INSTEAD = {
    Doubt.UNKNOWN_NAME: "write the name of the command out",
    Doubt.UNKNOWN_SCRIPT: "write the commands themselves, not a script that is made or read",
    Doubt.UNKNOWN_VALUE: "assign the variable a number in the same command",
    Doubt.NOT_PARSED: "write it in plain bash, or in several commands",
    Doubt.TOO_MUCH: "split it into several commands, or upload a file",
}


@dataclass(frozen=True)
class Rejection:
    """Why a command does not run, and what could be done instead."""

    rule: str
    reason: str
    alternative: str | None
    place: Place
    via: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ruling:
    """What a policy says of a command."""

    policy: str
    mode: Mode
    rejection: Rejection | None
    analysis: Analysis

    @property
    def allowed(self) -> bool:
        return self.rejection is None

    @property
    def doubts(self) -> list[str]:
        return list(dict.fromkeys(doubt.value for doubt, _, _ in self.analysis.doubts))


KEPT, KEPT_LENGTH = 1024, 1000
"""Rulings on so many commands of at most so many characters are remembered."""


class Policy:
    """Pure: the same command gets the same ruling."""

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
    ) -> Ruling:
        """Whether a command may run, with what it is given; `open_stdin`: and with what may come
        later."""
        if env or stdin is not None or len(command) > KEPT_LENGTH:
            return self._judge(command, open_stdin, cwd, env=env, stdin=stdin)
        return self._judge_bare(command, open_stdin, cwd)

    def _judge(
        self,
        command: str,
        open_stdin: bool,
        cwd: str | None,
        *,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> Ruling:
        found = analyse(command, env=env, stdin=stdin, open_stdin=open_stdin, cwd=cwd)
        return Ruling(self.name, self.mode, self._rejection(found), found)

    def _rejection(self, found: Analysis) -> Rejection | None:
        if self.mode is Mode.ALLOW_ALL:
            return None
        if denied := next(self._denied(found), None):
            return denied
        if self.mode is Mode.BLACKLIST:
            return None
        for doubt, place, why in found.doubts:
            reason = f"{why}, and this policy allows only what is known before running"
            return Rejection(doubt.value, reason, _INSTEAD[doubt], place)
        return next(self._unlisted(found), None)

    def _denied(self, found: Analysis) -> Iterator[Rejection]:
        loosely = self.mode is Mode.WHITELIST
        for call in found.calls:
            for argv in call.argvs:
                for rule in self._deny.about(argv):
                    if rule.matches(call, argv):
                        yield _by_rule(rule, call, argv, rule.reason)
                    elif loosely and rule.matches(call, argv, loosely=True):
                        reason = f"{rule.reason}; part of it is not known before running"
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
    return Rejection(rule.id, reason, rule.alternative, call.place, call.via, tuple(argv))


def _shadowing(call: Call) -> Rejection:
    reason = "a function may not take the name of a command that is allowed"
    return Rejection(SHADOWED, reason, "give the function another name", call.place, call.via)


def _not_listed(call: Call, argv: list[str]) -> Rejection:
    name = command_name(argv[0]) or argv[0]
    reason = f"{name} is not among the commands this policy allows, or not with these arguments"
    return Rejection(NOT_LISTED, reason, None, call.place, call.via, tuple(argv))
