"""Rule files: YAML, with errors that name the line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from sandbox_server.policy.analyse import analyse
from sandbox_server.policy.rules import Action, Conditions, Mode, Rule

SETS = Path(__file__).with_name("sets")
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_TOP = ("mode", "extends", "rules")
_RULE = ("id", "allow", "deny", "reason", "alternative", "match", "no_match")
_LISTS = ("unless_command", "without", "args", "paths", "targets", "writes", "assigns")
_CONDITIONS = ("command", "flags", "fork_bomb", *_LISTS)


class PolicyError(ValueError):
    """An invalid rule file; the message names file and line."""

    def __init__(self, file: str, line: int | None, what: str) -> None:
        place = file if line is None else f"{file}:{line}"
        super().__init__(f"{place}: {what}")


@dataclass(frozen=True)
class RuleFile:
    name: str
    mode: Mode
    rules: tuple[Rule, ...]


def read_rules(name: str) -> RuleFile:
    """Read a built-in set by name, or a rule file by path. Raises PolicyError."""
    return _read(name, above=())


def built_in() -> list[str]:
    return sorted(path.stem for path in SETS.glob("*.yaml"))


def parse_rules(text: str, *, name: str, file: str) -> RuleFile:
    """Parse rules and check them against their examples. Raises PolicyError."""
    return _Reader(name, file).read(text)


def _read(name: str, *, above: tuple[str, ...], beside: Path | None = None) -> RuleFile:
    if name in built_in():
        return _read_built_in(name)
    path = (beside or Path()) / name
    file = str(path)
    if file in above:
        raise PolicyError(file, None, "the rule file extends itself")
    try:
        text = path.read_text("utf-8")
    except OSError as exc:
        why = exc.strerror or type(exc).__name__
        known = ", ".join(built_in())
        raise PolicyError(
            file, None, f"the rule file cannot be read ({why}); built-in sets: {known}"
        ) from None
    except UnicodeDecodeError as exc:
        raise PolicyError(file, None, f"the rule file is not UTF-8 ({exc.reason})") from None
    return _Reader(path.stem, file, above=(*above, file), beside=path.parent).read(text)


@cache
def _read_built_in(name: str) -> RuleFile:
    path = SETS / f"{name}.yaml"
    return _Reader(name, str(path)).read(path.read_text("utf-8"))


@dataclass(frozen=True)
class _Reader:
    """Reads one file. All scalars are text: `no` and `1e3` are words, not values."""

    name: str
    file: str
    above: tuple[str, ...] = ()
    beside: Path | None = None

    def read(self, text: str) -> RuleFile:
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as exc:
            mark = exc.problem_mark
            raise PolicyError(
                self.file, mark.line + 1 if mark else None, exc.problem or "not YAML"
            ) from None
        except yaml.YAMLError as exc:
            raise PolicyError(self.file, None, f"not YAML ({exc})".replace("\n", " ")) from None
        if root is None:
            raise PolicyError(self.file, 1, "the rule file is empty: it needs at least a mode")
        top = self._mapping(root, _TOP)
        base = self._base(top.get("extends"))
        mode = self._mode(top.get("mode"), root, base)
        rules = tuple(self._rules(top.get("rules")))
        if mode is Mode.ALLOW_ALL and rules:
            raise self._wrong(top["rules"], "rules: no rule has an effect in mode allow-all")
        self._unique([*(base.rules if base else ()), *rules])
        return RuleFile(self.name, mode, (*(base.rules if base else ()), *rules))

    def _base(self, node: yaml.Node | None) -> RuleFile | None:
        if node is None:
            return None
        return _read(self._text(node), above=self.above, beside=self.beside)

    def _mode(self, node: yaml.Node | None, root: yaml.Node, base: RuleFile | None) -> Mode:
        if node is None:
            if base:
                return base.mode
            raise self._wrong(root, f"the mode is missing: expected one of {', '.join(Mode)}")
        try:
            return Mode(self._text(node))
        except ValueError:
            raise self._wrong(node, f"unknown mode: expected one of {', '.join(Mode)}") from None

    def _rules(self, node: yaml.Node | None) -> Iterator[Rule]:
        if node is None:
            return
        for item in self._sequence(node):
            yield self._checked(self._rule(item), item)

    def _rule(self, node: yaml.Node) -> Rule:
        fields = self._mapping(node, _RULE)
        if "id" not in fields:
            raise self._wrong(node, "rule without an id")
        rule_id = self._text(fields["id"])
        if not _ID.fullmatch(rule_id):
            raise self._wrong(fields["id"], "id: only lower-case letters, digits and dashes")
        actions = [action for action in Action if action in fields]
        if len(actions) != 1:
            raise self._wrong(node, f"rule {rule_id} needs exactly one of: allow, deny")
        if actions[0] is Action.DENY and "reason" not in fields:
            raise self._wrong(node, f"rule {rule_id} denies without a reason: add `reason`")
        return Rule(
            id=rule_id,
            action=actions[0],
            conditions=self._conditions(fields[actions[0]]),
            reason=self._text(fields["reason"]) if "reason" in fields else "",
            alternative=self._text(fields["alternative"]) if "alternative" in fields else None,
            match=self._texts(fields.get("match")),
            no_match=self._texts(fields.get("no_match")),
            line=_line(node),
        )

    def _conditions(self, node: yaml.Node) -> Conditions:
        if not isinstance(node, yaml.MappingNode):
            return Conditions(command=self._commands(node))
        fields = self._mapping(node, _CONDITIONS)
        if not fields:
            raise self._wrong(
                node, f"rule without conditions: expected any of {', '.join(_CONDITIONS)}"
            )
        lists = {name: self._texts(fields.get(name)) for name in _LISTS}
        bomb = fields.get("fork_bomb")
        if bomb is not None and self._text(bomb) != "true":
            raise self._wrong(bomb, "fork_bomb must be true or left out")
        return Conditions(
            command=self._commands(fields.get("command")),
            flags=tuple(tuple(text.split("|")) for text in self._texts(fields.get("flags"))),
            fork_bomb=bomb is not None,
            **lists,
        )

    def _commands(self, node: yaml.Node | None) -> tuple[tuple[str, ...], ...]:
        found = tuple(tuple(text.split()) for text in self._texts(node))
        if node is not None and not all(found):
            raise self._wrong(node, "empty command: expected a name")
        return found

    def _checked(self, rule: Rule, node: yaml.Node) -> Rule:
        """Raises PolicyError if an example contradicts the rule."""
        fields = self._mapping(node, _RULE)
        for name, expected in (("match", True), ("no_match", False)):
            for item in self._items(fields.get(name)):
                if applies(rule, self._text(item)) is not expected:
                    wrong = "is not matched" if expected else "is matched, but is under no_match"
                    raise self._wrong(item, f"rule {rule.id}: the example `{item.value}` {wrong}")
        return rule

    def _unique(self, rules: list[Rule]) -> None:
        seen: set[str] = set()
        for rule in rules:
            if rule.id in seen:
                raise PolicyError(self.file, rule.line, f"two rules have the id {rule.id}")
            seen.add(rule.id)

    # Nodes

    def _wrong(self, node: yaml.Node, what: str) -> PolicyError:
        return PolicyError(self.file, _line(node), what)

    def _mapping(self, node: yaml.Node, allowed: tuple[str, ...]) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            raise self._wrong(node, f"expected a mapping with: {', '.join(allowed)}")
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = self._text(key)
            if name not in allowed:
                raise self._wrong(key, f"unknown field {name!r}: expected {', '.join(allowed)}")
            if name in found:
                raise self._wrong(key, f"duplicate field {name!r}")
            found[name] = value
        return found

    def _sequence(self, node: yaml.Node) -> list[yaml.Node]:
        if not isinstance(node, yaml.SequenceNode):
            raise self._wrong(node, "expected a list")
        return list(node.value)

    def _items(self, node: yaml.Node | None) -> list[yaml.Node]:
        """A scalar counts as a list of one."""
        if node is None:
            return []
        return [node] if isinstance(node, yaml.ScalarNode) else self._sequence(node)

    def _texts(self, node: yaml.Node | None) -> tuple[str, ...]:
        return tuple(self._text(item) for item in self._items(node))

    def _text(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self._wrong(node, "expected text")
        if not str(node.value).strip():
            raise self._wrong(node, "expected text, found an empty value")
        return str(node.value)


def applies(rule: Rule, command: str) -> bool:
    """Whether a rule by itself matches any call in the command."""
    return any(rule.matches(call, argv) for call in analyse(command).calls for argv in call.argvs)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
