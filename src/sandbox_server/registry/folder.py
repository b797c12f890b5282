"""Reading the registry: a folder for each kind, a YAML file for each entry."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sandbox_server.policy.rulefile import built_in
from sandbox_server.registry import yaml_lines
from sandbox_server.registry.entries import KINDS, Problem, Registry, RegistryError, near
from sandbox_server.registry.environments import Declared, Environment
from sandbox_server.registry.yaml_lines import Located, YamlError

BUILTIN = Path(__file__).with_name("builtin")
_SUFFIXES = (".yaml", ".yml")
MAX_FILES = 1000


@dataclass(frozen=True)
class ReadEntry:
    """An entry, with what is needed to say where in its file something is wrong."""

    kind: str
    value: Declared
    path: Path
    located: Located

    def problem(
        self, path: yaml_lines.Path, what: str, *, text: str = "", offset: int = 0
    ) -> Problem:
        line = self.located.line(path, text=text, offset=offset)
        return Problem(str(self.path), line, what)


@dataclass
class Found:
    """What the files have. An entry of a later folder replaces one of the same name."""

    entries: dict[str, dict[str, ReadEntry]] = field(
        default_factory=lambda: {kind: {} for kind in KINDS}
    )
    broken: set[tuple[str, str]] = field(default_factory=set)
    """Kind and name of files that cannot be read: that others name them is no mistake."""
    problems: list[Problem] = field(default_factory=list)

    def copied(self) -> Found:
        entries = {kind: dict(entries) for kind, entries in self.entries.items()}
        return Found(entries, set(self.broken), list(self.problems))

    def has(self, kind: str, name: str) -> bool:
        return name in self.entries[kind] or (kind, name) in self.broken

    def registry(self) -> Registry:
        kinds: dict[str, Any] = {
            kind: {name: each.value for name, each in sorted(entries.items())}
            for kind, entries in self.entries.items()
        }
        return Registry(**kinds)


def read_registry(folder: Path | None = None) -> Registry:
    """The built-in entries, and below them those of a folder. Raises RegistryError."""
    from sandbox_server.registry.references import wrong_references

    found = _built_in().copied()
    if folder is not None:
        _read_folder(folder, found)
    found.problems += wrong_references(found)
    if found.problems:
        raise RegistryError(found.problems)
    return found.registry()


@cache
def _built_in() -> Found:
    found = Found()
    _read_folder(BUILTIN, found)
    return found


def files_of(folder: Path) -> Iterator[tuple[str, Path]]:
    """Kind and path of every entry. Raises OSError if the folder cannot be listed."""
    for kind in KINDS:
        try:
            names = sorted(os.listdir(folder / kind))
        except FileNotFoundError:
            continue
        for name in names:
            # Editors keep copies of their own, which begin with a dot.
            if name.endswith(_SUFFIXES) and not name.startswith("."):
                yield kind, folder / kind / name


def _read_folder(folder: Path, found: Found) -> None:
    here: dict[tuple[str, str], Path] = {}
    try:
        found.problems += _strays(folder)
        files = list(files_of(folder))
    except OSError as exc:
        found.problems.append(Problem(str(folder), 1, f"cannot be read: {exc.strerror}"))
        return
    if len(files) > MAX_FILES:
        found.problems.append(Problem(str(folder), 1, f"more than {MAX_FILES} files"))
        return
    for kind, path in files:
        key = (kind, path.stem)
        if key in here:
            what = f"name: {here[key].name} declares {path.stem!r} too"
            found.problems.append(Problem(str(path), 1, what))
            continue
        here[key] = path
        entry, problems = _read_file(kind, path)
        found.problems += problems
        if entry is None:
            found.broken.add(key)
        else:
            found.entries[kind][path.stem] = entry


def _strays(folder: Path) -> Iterator[Problem]:
    """What was meant as an entry, but stands where none is looked for."""
    for name in sorted(os.listdir(folder)):
        if name in KINDS or name.startswith("."):
            continue
        path = folder / name
        if path.is_dir() and (meant := near(name, KINDS)):
            yield Problem(str(path), 1, f"no kind {name!r}{meant}")
        elif name.endswith(_SUFFIXES):
            yield Problem(str(path), 1, f"move it into one of {', '.join(KINDS)}")


def _read_file(kind: str, path: Path) -> tuple[ReadEntry | None, list[Problem]]:
    file, model = str(path), KINDS[kind]
    try:
        with path.open("rb") as stream:
            located = yaml_lines.parse(stream.read(yaml_lines.MAX_BYTES + 1))
    except OSError as exc:
        return None, [Problem(file, 1, f"cannot be read: {exc.strerror}")]
    except YamlError as exc:
        return None, [Problem(file, exc.line, exc.what)]
    if not isinstance(located.value, dict):
        fields = ", ".join(model.model_fields)
        return None, [Problem(file, 1, f"write fields, one on each line: {fields}")]
    try:
        value = model.model_validate(located.value)
    except ValidationError as exc:
        return None, list(_invalid(file, located, exc, model))
    entry = ReadEntry(kind, _with_paths(value, path.parent), path, located)
    name = located.value["name"]
    if name != path.stem:
        what = f'name: "{name}" is not the name of the file, {path.stem!r}'
        return entry, [entry.problem(("name",), what)]
    return entry, []


def _with_paths(value: Declared, folder: Path) -> Declared:
    """Paths in a file are relative to it, and whoever uses them is elsewhere."""
    paths = {}
    if (policy := getattr(value, "policy", None)) and policy not in built_in():
        paths["policy"] = str(folder.absolute() / policy)
    if isinstance(value, Environment) and value.dockerfile is not None:
        paths["dockerfile"] = str(folder.absolute() / value.dockerfile)
    return value.model_copy(update=paths)


def _invalid(
    file: str, located: Located, exc: ValidationError, model: type[Declared]
) -> Iterator[Problem]:
    """One problem for each value; a union has an error for each of its types."""
    by_path: dict[yaml_lines.Path, list[Any]] = {}
    for error in exc.errors(include_url=False):
        by_path.setdefault(located.known(error["loc"]), []).append(error)
    for path, errors in by_path.items():
        missing = [error for error in errors if error["type"] == "missing"]
        for error in missing:
            yield Problem(file, located.line(path), f"{_named(error['loc'])}: missing")
        if others := [error for error in errors if error not in missing]:
            yield Problem(file, located.line(path), _what(path, others, model))


_PLAINLY = {
    **dict.fromkeys(("model_type", "dict_type"), "should have fields of its own, `name: value`"),
    **dict.fromkeys(("tuple_type", "list_type"), "should be a list, `[one, two]`"),
}
"""Kinds of mistakes that pydantic explains in words of Python."""


def _what(path: yaml_lines.Path, errors: list[Any], model: type[Declared]) -> str:
    if errors[0]["type"] == "extra_forbidden":
        fields = list(model.model_fields) if len(path) == 1 else []
        return f'no field "{_named(path)}"{near(str(path[-1]), fields)}'
    said = [_PLAINLY.get(error["type"]) or str(error["msg"]) for error in errors]
    said = [each.removeprefix("Value error, ") for each in said]
    text = " or ".join(dict.fromkeys(said))
    if isinstance(errors[0]["input"], bool) and errors[0]["type"] == "string_type":
        text += "; YAML reads it as true or false: put it in quotes"
    return f"{_named(path)}: {text}" if path else text


def _named(path: yaml_lines.Path) -> str:
    return ".".join(map(str, path))
