"""Rules: conditions on a call, and whether it is allowed or denied then."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from sandbox_server.policy.analysis import Call
from sandbox_server.policy.fields import (
    HOLE,
    MAX_PATH,
    NAME,
    NUMBER,
    SPLIT,
    STAR,
    absolute,
    certain,
    command_name,
    known,
    may_be,
    may_be_flag,
    pattern_of_name,
)
from sandbox_server.policy.globs import Globs, globs, sample


class Mode(StrEnum):
    ALLOW_ALL = "allow-all"
    BLACKLIST = "blacklist"
    """Allows everything that no rule denies."""
    WHITELIST = "whitelist"
    """Allows only what a rule allows, and rejects every doubt."""


class Action(StrEnum):
    ALLOW = "allow"
    DENY = "deny"


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """All given conditions must hold. One match per list is enough; `flags` needs all."""

    command: tuple[tuple[str, ...], ...] = ()
    """Patterns for the first words of an argv."""
    unless_command: tuple[str, ...] = ()
    flags: tuple[tuple[str, ...], ...] = ()
    """Each is a set of alternatives: `-r|-R|--recursive`."""
    without: tuple[str, ...] = ()
    """None of these flags."""
    args: tuple[str, ...] = ()
    """Patterns for any argument."""
    paths: tuple[str, ...] = ()
    """Patterns for operands as normalised paths."""
    targets: tuple[str, ...] = ()
    """Like `paths`, but for the last operand only, which cp, mv and ln write to."""
    writes: tuple[str, ...] = ()
    """Patterns for files that output is redirected to."""
    assigns: tuple[str, ...] = ()
    """Patterns for assigned variables."""
    fork_bomb: bool = False


@dataclass(frozen=True, kw_only=True)
class Rule:
    id: str
    action: Action
    conditions: Conditions
    reason: str = ""
    alternative: str | None = None
    match: tuple[str, ...] = ()
    no_match: tuple[str, ...] = ()
    line: int = field(default=0, compare=False)

    def matches(self, call: Call, argv: list[str], *, loosely: bool = False) -> bool:
        """Whether the rule matches a call; `loosely`: whether it could, given the right values."""
        wanted = self.conditions
        # A rule for any command, or for a flag alone, would match every unknown argument.
        loosely = loosely and bool(wanted.command or wanted.writes or wanted.assigns)
        loosely = loosely and not (wanted.flags and not (wanted.paths or wanted.args))
        if wanted.fork_bomb and not call.fork_bomb:
            return False
        if (wanted.writes and not call.writes) or (wanted.assigns and not call.assigned):
            return False
        if call.defines and not wanted.fork_bomb:
            return False
        if wanted.command and not (argv and _is_command(argv, wanted.command, loosely=loosely)):
            return False
        if wanted.unless_command and argv and command_name(argv[0]) in wanted.unless_command:
            return False
        return self._arguments(argv, loosely=loosely) and self._files(call, argv, loosely=loosely)

    def _arguments(self, argv: list[str], *, loosely: bool) -> bool:
        wanted = self.conditions
        if not all(has_flag(argv, choice, loosely=loosely) for choice in wanted.flags):
            return False
        if wanted.without and has_flag(argv, wanted.without, loosely=False):
            return False
        # An unknown argument could be a flag that this allow rule excludes.
        doubtful = wanted.without and self.action is Action.ALLOW
        if doubtful and any(map(may_be_flag, _before_dashes(argv))):
            return False
        return not wanted.args or any(
            _like(argument, wanted.args, loosely=loosely) for argument in argv[1:]
        )

    def _files(self, call: Call, argv: list[str], *, loosely: bool) -> bool:
        wanted = self.conditions

        def is_one(paths: Iterable[str], patterns: tuple[str, ...]) -> bool:
            return any(_is_path(path, call, patterns, loosely=loosely) for path in paths)

        among = _besides_flags(argv, wanted.flags, loosely=loosely) if wanted.paths else ()
        if wanted.paths and not is_one(among, wanted.paths):
            return False
        if wanted.targets and not is_one(_last_of(operands(argv)), wanted.targets):
            return False
        if wanted.writes and not is_one(call.writes, wanted.writes):
            return False
        return not wanted.assigns or any(
            _like(name, wanted.assigns, loosely=loosely) for name in call.assigned
        )


class RuleIndex:
    """Rules by command name."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._by_name: dict[str, list[Rule]] = {}
        self._by_pattern: list[tuple[Globs, Rule]] = []
        self._general: list[Rule] = []
        self._all = list(rules)
        for rule in self._all:
            self._add(rule, {words[0] for words in rule.conditions.command})

    def _add(self, rule: Rule, names: set[str]) -> None:
        patterns = {name for name in names if set(name) & set("*?[")}
        for name in names - patterns:
            self._by_name.setdefault(name, []).append(rule)
        if patterns:
            self._by_pattern.append((globs(*sorted(patterns)), rule))
        if not names:
            self._general.append(rule)

    def about(self, argv: list[str]) -> Iterator[Rule]:
        """Candidate rules for a call."""
        name = command_name(argv[0]) if argv else ""
        if name is None:
            yield from self._all
            return
        named = self._by_name.get(name, ())
        yield from named
        yield from (
            rule for pattern, rule in self._by_pattern if pattern.match(name) and rule not in named
        )
        yield from self._general


_PLAIN_FLAG = re.compile(f"[A-Za-z{HOLE}{NUMBER}{NAME}-]*|.*{SPLIT}.*", re.DOTALL)


def operands(argv: list[str]) -> Iterator[str]:
    """Arguments that are not flags."""
    behind = False
    for argument in argv[1:]:
        if not behind and argument == "--":
            behind = True
        elif behind or argument[:1] != "-" or argument == "-":
            yield argument


def _last_of(arguments: Iterable[str]) -> list[str]:
    """The last argument, and any that may expand to several."""
    found = list(arguments)
    return [each for each in found[:-1] if SPLIT in each] + found[-1:]


def _before_dashes(argv: list[str]) -> list[str]:
    return argv[1 : argv.index("--")] if "--" in argv else argv[1:]


def _besides_flags(
    argv: list[str], flags: tuple[tuple[str, ...], ...], *, loosely: bool
) -> Iterator[str]:
    """The operands. A single unknown argument cannot be both the flag and the path."""
    unknown = [argument for argument in argv[1:] if may_be_flag(argument)]
    if loosely and len(unknown) == 1 and SPLIT not in unknown[0] and unknown[0][0] == HOLE:
        sure = all(has_flag(argv, choice, loosely=False) for choice in flags)
        return (each for each in operands(argv) if sure or each != unknown[0])
    return operands(argv)


def has_flag(argv: list[str], choice: tuple[str, ...], *, loosely: bool) -> bool:
    for argument in _before_dashes(argv):
        if argument[:1] == "-" and any(_is_flag(argument, flag) for flag in choice):
            return True
        if loosely and may_be_flag(argument) and _PLAIN_FLAG.fullmatch(argument):
            return True
    return False


def _is_flag(argument: str, flag: str) -> bool:
    """`-rf` contains `-r`, `--recurs` abbreviates `--recursive`, `-delete` is one flag."""
    if argument == flag:
        return True
    if flag.startswith("--"):
        given = argument.partition("=")[0]
        return given == flag or (len(given) > 2 and given[1] == "-" and flag.startswith(given))
    return len(flag) == 2 and argument[1:2] != "-" and flag[1] in argument[1:]


def _is_command(argv: list[str], wanted: tuple[tuple[str, ...], ...], *, loosely: bool) -> bool:
    name = command_name(argv[0])
    pattern = pattern_of_name(argv[0]) if name is None else None
    for words in wanted:
        if name is None:
            if pattern is None or not pattern.fullmatch(words[0]):
                continue
        elif name != words[0] and not globs(words[0]).match(name):
            continue
        if len(words) == 1 or _starts_with(argv, words[1:], loosely=loosely):
            return True
    return False


def _starts_with(argv: list[str], words: tuple[str, ...], *, loosely: bool) -> bool:
    """Whether the argv continues with `words`, directly or with flags in between."""
    readings = [argv[1 : 1 + len(words)]]
    if not any(word[0] == "-" for word in words):
        readings.append(list(operands(argv))[: len(words)])
    for candidates in readings:
        if len(candidates) == len(words) and all(
            _like(argument, (word,), loosely=loosely)
            for argument, word in zip(candidates, words, strict=True)
        ):
            return True
    return loosely and any(SPLIT in argument for argument in argv[1:])


def _like(argument: str, patterns: tuple[str, ...], *, loosely: bool) -> bool:
    plain = certain(argument)
    if plain is not None and globs(*patterns).match(plain):
        return True
    if not loosely or known(argument):
        return False
    return any(may_be(argument, sample(pattern)) for pattern in patterns)


def _is_path(argument: str, call: Call, patterns: tuple[str, ...], *, loosely: bool) -> bool:
    if len(argument) > MAX_PATH:
        return loosely
    if _is_at(argument, call.cwd, patterns):
        return True
    if not loosely:
        return False
    if SPLIT in argument or f"/.{STAR}" in argument:
        return True
    if HOLE in argument:
        return _may_end_at(argument[argument.rindex(HOLE) :], patterns)
    places = (call.cwd, *call.other_cwds) if argument[:1] not in ("/", "~") else (None,)
    return any(_may_be_at(argument, cwd, patterns) for cwd in places)


def _is_at(argument: str, cwd: str | None, patterns: tuple[str, ...]) -> bool:
    path = absolute(argument, cwd)
    return path is not None and globs(*patterns).match(path)


def _may_end_at(end: str, patterns: tuple[str, ...]) -> bool:
    """The unknown part may lead anywhere, but the path ends with the known `end`."""
    if ".." in end:
        return True
    path = posixpath.normpath(end)
    return any(may_be(path, sample(pattern)) for pattern in patterns)


def _may_be_at(argument: str, cwd: str | None, patterns: tuple[str, ...]) -> bool:
    """Tries placeholders as any number or file; with an unknown cwd, any path is possible."""
    if argument[:1] not in ("/", "~"):
        if cwd is None:
            return True
        argument = posixpath.join(cwd, argument)
    if any(_is_at(argument.replace(NUMBER, digit), cwd, patterns) for digit in "01"):
        return True
    path = posixpath.normpath(argument)
    return any(may_be(path, sample(pattern)) for pattern in patterns)
