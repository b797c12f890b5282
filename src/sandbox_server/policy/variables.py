"""Possible values of variables at a point in the source, and the operators of `${name…}`."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from fnmatch import translate

from sandbox_server.policy.bash.source import BY_HAND, CHARACTERS
from sandbox_server.policy.fields import HOLE, MAX_PATH, NUMBER, SPLIT, known

MAX_VALUES = 8
NUMBERS = frozenset(
    "# ? $ ! RANDOM SECONDS LINENO UID EUID PPID BASHPID EPOCHSECONDS COLUMNS LINES".split()  # noqa: SIM905
)
_TRIMS = ("#", "##", "%", "%%")
MAX_PATTERN, MAX_DIGITS = 256, 40
_DECIMAL = re.compile(r"\s*-?(?:0|[1-9][0-9]*)\s*", re.ASCII)
"""Excludes octal: `010` is eight."""


@dataclass(frozen=True, slots=True)
class Values:
    """The possible values of a variable. If not complete, it may also be any other."""

    texts: tuple[str, ...] = ()
    complete: bool = False

    def alternatives(self, hole: str) -> list[str]:
        return [*self.texts, *([] if self.complete else [hole])]

    def followed_by(self, more: Values) -> Values:
        pairs = itertools.product(self.texts or (HOLE,), more.texts)
        texts = tuple(a + b for a, b in itertools.islice(pairs, MAX_VALUES))
        return Values(texts, self.complete and len(self.texts) * len(more.texts) <= MAX_VALUES)

    def or_else(self, other: Values) -> Values:
        texts = tuple(dict.fromkeys((*self.texts, *other.texts)))
        return Values(texts[:MAX_VALUES],
                      self.complete and other.complete and len(texts) <= MAX_VALUES)  # fmt: skip


UNKNOWN = Values()
_FIXED = {
    "HOME": Values(("~",), complete=True),
    "IFS": Values((" \t\n",), complete=True),
    **{name: Values((NUMBER,), complete=True) for name in NUMBERS},
    **{str(number): Values(("",)) for number in range(1, 10)},
}


@dataclass
class Variables:
    """Variables at one point in the source. Copies are independent, like those of a subshell."""

    values: dict[str, Values] = field(default_factory=dict)
    arrays: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Elements by name; SPLIT stands for unknown ones."""
    unstable: frozenset[str] = frozenset()
    """Assigned in a function or trap, so they may change at any time."""
    functions: frozenset[str] = frozenset()
    """Functions that are certainly defined."""
    cwd: str | None = None
    other_cwds: tuple[str | None, ...] = ()
    """Other possible working directories, since a cd may fail. None means any."""

    def copy(self) -> Variables:
        values, arrays = dict(self.values), dict(self.arrays)
        return Variables(values, arrays, self.unstable, self.functions, self.cwd, self.other_cwds)

    def move(self, cwd: str | None) -> None:
        self._also(self.cwd)
        self.cwd = cwd if cwd is None or len(cwd) <= MAX_PATH else None

    def _also(self, *cwds: str | None) -> None:
        others = tuple(dict.fromkeys((*cwds, *self.other_cwds)))
        self.other_cwds = others if len(others) <= MAX_VALUES else (None,)

    def inherited(self) -> Variables:
        """As seen by a child shell, which only gets exported variables; which ones is unknown."""
        values = {name: Values((*held.texts, "")) for name, held in self.values.items()}
        return Variables(values, cwd=self.cwd, other_cwds=self.other_cwds)

    def get(self, name: str) -> Values:
        found = self.values.get(name)
        if found is None and name == "PWD":
            return self.folder
        if found is None:
            return _FIXED.get(name, UNKNOWN)
        return Values(found.texts) if name in self.unstable else found

    @property
    def folder(self) -> Values:
        """Possible working directories."""
        places = [place for place in (self.cwd, *self.other_cwds) if place is not None]
        return Values(tuple(places), complete=len(places) == 1 + len(self.other_cwds))

    def assign(self, name: str, values: Values) -> None:
        self.arrays.pop(name, None)
        self.values[name] = values

    def forget(self, name: str) -> None:
        """Mark a variable as unknown: any value, including the old ones."""
        self.values[name] = Values(self.get(name).texts)
        if name in self.arrays:
            self.arrays[name] = (*self.arrays[name], SPLIT)

    def set_array(self, name: str, fields: tuple[str, ...]) -> None:
        self.values[name] = Values(fields[:1])
        self.arrays[name] = fields

    def array(self, name: str) -> tuple[str, ...]:
        fields = self.arrays.get(name, (SPLIT,))
        return (*fields, SPLIT) if name in self.unstable else fields

    def element(self, name: str, index: str) -> Values:
        fields = self.arrays.get(name)
        if fields is None or not re.fullmatch("[0-9]{1,9}", index) or int(index) >= len(fields):
            return UNKNOWN
        return Values((fields[int(index)],))

    def changed(self, before: Variables) -> set[str]:
        """Names whose values differ from `before`."""
        names = {name for name, held in self.values.items() if before.values.get(name) != held}
        arrays = {name for name, held in self.arrays.items() if before.arrays.get(name) != held}
        return names | arrays

    def or_as(self, before: Variables) -> None:
        """Merge with `before`: the code since then may not have run."""
        self.functions &= before.functions
        if self.cwd != before.cwd:
            self._also(before.cwd, *before.other_cwds)
        for name in self.changed(before):
            self.values[name] = before.get(name).or_else(self.get(name))
            if name in before.arrays or name in self.arrays:
                held = self.arrays.get(name) or before.arrays.get(name, ())
                self.arrays[name] = (*held, SPLIT)


def cost(values: Values, operator: str, argument: str) -> int:
    """Steps needed to apply an operator."""
    sizes = [len(text) for text in values.texts]
    if operator in _TRIMS:
        return sum(size * (2 * CHARACTERS + size) for size in sizes) // (BY_HAND * CHARACTERS)
    if operator in ("/", "//"):
        sizes = [size * (1 + len(argument)) for size in sizes]
    return sum(sizes) // CHARACTERS


def transformed(values: Values, operator: str, argument: str) -> Values:
    """The values after applying an operator; incomplete where the result is unknown."""
    kind = operator.lstrip(":")
    if kind[:1] in ("-", "=", "?", "+") and kind:
        return _default(values, operator, argument)
    results = [_applied(text, operator, argument) for text in values.texts]
    if None in results:
        return UNKNOWN
    # Quoting in a pattern changes its meaning, and is lost by now.
    plain = operator[0] not in "#%/" or not re.search(r"[^\w./@-]", argument)
    return Values(tuple(r for r in results if r is not None), values.complete and plain)


def _default(values: Values, operator: str, argument: str) -> Values:
    """With a colon, empty counts as unset; an unknown variable may be either."""
    kind, colon = operator[-1], operator[0] == ":"
    if kind == "?":
        return values
    results = [] if values.complete else [argument]
    for text in values.texts:
        is_set = bool(text) or not colon
        if kind == "+":
            results.append(argument if is_set else "")
        else:
            results.append(text if is_set else argument)
    if kind == "+":
        return Values(tuple(dict.fromkeys((*results, ""))), complete=True)
    return Values(tuple(dict.fromkeys(results)), values.complete)


def _applied(text: str, operator: str, argument: str) -> str | None:
    if not known(text) or not known(argument):
        return None
    if not text.isascii() and operator[0] in "^,@":
        return None
    if operator in ("^^", ",,", "^", ",") and not argument:
        return _cased(text, operator)
    if operator in ("@L", "@U", "@u"):
        return _cased(text, {"@L": ",,", "@U": "^^", "@u": "^"}[operator])
    if operator == ":":
        return _substring(text, argument)
    if operator in ("/", "//", "/#", "/%"):
        return _replaced(text, operator, argument)
    if operator in _TRIMS and len(argument) <= MAX_PATTERN:
        return _trimmed(text, operator, argument)
    return None


def _cased(text: str, operator: str) -> str:
    if operator == "^^":
        return text.upper()
    if operator == ",,":
        return text.lower()
    return (text[:1].upper() if operator == "^" else text[:1].lower()) + text[1:]


def _substring(text: str, argument: str) -> str | None:
    start, _, length = argument.partition(":")
    numbers = (start or "0", length or "0")
    if len(argument) > MAX_DIGITS or not all(map(_DECIMAL.fullmatch, numbers)):
        return None
    begin, count = int(start or 0), int(length) if length else len(text)
    begin = max(begin + len(text), 0) if begin < 0 else begin
    return text[begin : begin + count] if count >= 0 else text[begin:count]


def _replaced(text: str, operator: str, argument: str) -> str | None:
    pattern, _, replacement = argument.partition("/")
    if any(mark in pattern for mark in "*?[(\\") or "&" in replacement:
        return None
    if operator == "/#":
        return replacement + text.removeprefix(pattern) if text.startswith(pattern) else text
    if operator == "/%":
        return text.removesuffix(pattern) + replacement if text.endswith(pattern) else text
    return text.replace(pattern, replacement, 1 if operator == "/" else -1) if pattern else text


def _trimmed(text: str, operator: str, pattern: str) -> str:
    """Cut the shortest or longest match off one end."""
    matches = re.compile(translate(pattern)).match
    cuts = range(len(text) + 1)
    if operator[0] == "#":
        order = cuts if operator == "#" else reversed(cuts)
        return next((text[cut:] for cut in order if matches(text[:cut])), text)
    order = reversed(cuts) if operator == "%" else cuts
    return next((text[:cut] for cut in order if matches(text[cut:])), text)
