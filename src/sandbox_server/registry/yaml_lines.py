"""YAML with the line of every value, from files that anybody may have written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

MAX_BYTES = 256 * 1024
MAX_VALUES = 10_000
MAX_DEPTH = 32
Path = tuple[str | int, ...]
"""Keys and positions that lead to a value."""

_TAG = "tag:yaml.org,2002:"
_TYPED = {f"{_TAG}{kind}" for kind in ("int", "float", "bool", "null")}
_TEXT = {f"{_TAG}{kind}" for kind in ("str", "timestamp", "value")}


class YamlError(ValueError):
    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line
        self.what = what


@dataclass(frozen=True)
class Located:
    """A value, and where its parts are in the file."""

    value: Any
    lines: Mapping[Path, int]
    texts: Mapping[Path, int] = field(default_factory=dict)
    """The first line of texts that keep their lines (`|`)."""

    def known(self, path: Path) -> Path:
        """The longest part of a path that the file has."""
        while path and path not in self.lines:
            path = path[:-1]
        return path

    def line(self, path: Path, *, text: str = "", offset: int = 0) -> int:
        """The line of a value, or of a place in its text."""
        known = self.known(path)
        if known in self.texts:
            return self.texts[known] + text.count("\n", 0, offset)
        return self.lines.get(known, 1)


def parse(data: bytes) -> Located:
    """Raises YamlError."""
    text = _decoded(data)
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        raise YamlError(mark.line + 1 if mark else 1, _said(exc)) from None
    except yaml.reader.ReaderError as exc:
        line = text.count("\n", 0, exc.position) + 1
        raise YamlError(line, f"the character {chr(exc.character)!r} is not allowed") from None
    except RecursionError:
        raise YamlError(1, f"nested more than {MAX_DEPTH} deep") from None
    if root is None:
        raise YamlError(1, "the file is empty")
    return _Builder().built(root)


def _decoded(data: bytes) -> str:
    if len(data) > MAX_BYTES:
        raise YamlError(1, f"the file is larger than {MAX_BYTES // 1024} KiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise YamlError(line, f"not UTF-8 ({exc.reason})") from None


def _said(exc: yaml.MarkedYAMLError) -> str:
    problem = exc.problem or "not YAML"
    if "'\\t'" in problem:
        return "a tab: indent with spaces"
    return f"not YAML: {exc.context}, {problem}" if exc.context else f"not YAML: {problem}"


class _Builder:
    """Turns nodes into values. An alias is written out again, so their number has a bound."""

    def __init__(self) -> None:
        self._lines: dict[Path, int] = {}
        self._texts: dict[Path, int] = {}
        self._loader = yaml.SafeLoader("")

    def built(self, root: yaml.Node) -> Located:
        return Located(self._value(root, (), _line(root)), self._lines, self._texts)

    def _value(self, node: yaml.Node, path: Path, line: int) -> Any:
        self._lines[path] = line
        if len(path) > MAX_DEPTH:
            raise YamlError(line, f"nested more than {MAX_DEPTH} deep")
        if len(self._lines) > MAX_VALUES:
            raise YamlError(line, f"more than {MAX_VALUES:,} values; does an alias repeat them?")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [
                self._value(item, (*path, at), _line(item)) for at, item in enumerate(node.value)
            ]
        assert isinstance(node, yaml.ScalarNode)
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise YamlError(_line(key), "a key has to be text")
            if key.tag == f"{_TAG}merge":
                raise YamlError(_line(key), "`<<` is not supported: write the fields out")
            if key.value in found:
                raise YamlError(_line(key), f'"{key.value}" stands here twice')
            found[key.value] = self._value(value, (*path, key.value), _line(key))
        return found

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        if node.tag in _TEXT:
            if node.style == "|":
                self._texts[path] = _line(node) + 1
            return node.value
        if node.tag not in _TYPED:
            raise YamlError(_line(node), f"the tag {node.tag.replace(_TAG, '!!')} is not allowed")
        try:
            return self._loader.construct_object(node)
        except (ValueError, yaml.YAMLError):
            kind = node.tag.removeprefix(_TAG)
            raise YamlError(_line(node), f'"{node.value}" is not of type {kind}') from None


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
