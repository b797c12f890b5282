"""What variables can hold, as far as the source tells."""

from __future__ import annotations

from dataclasses import dataclass, field

from sandbox_server.policy.fields import HOLE, NUMBER, SPLIT

MAX_VALUES = 8
NUMBERS = frozenset({"#", "?", "$", "!", "RANDOM", "SECONDS", "LINENO", "UID", "EUID", "PPID",
                     "BASHPID", "EPOCHSECONDS", "SRANDOM", "COLUMNS", "LINES", "SHLVL"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Values:
    """The values a variable may have; not complete means: or any other."""

    texts: tuple[str, ...] = ()
    complete: bool = False

    def alternatives(self, hole: str) -> list[str]:
        return [*self.texts, *([] if self.complete else [hole])]

    def or_else(self, other: Values) -> Values:
        texts = tuple(dict.fromkeys((*self.texts, *other.texts)))
        return Values(texts[:MAX_VALUES],
                      self.complete and other.complete and len(texts) <= MAX_VALUES)  # fmt: skip


UNKNOWN = Values()
_FIXED = {
    "HOME": Values(("~",), complete=True),
    "IFS": Values((" \t\n",), complete=True),
    **{name: Values((NUMBER,), complete=True) for name in NUMBERS},
}


@dataclass
class Variables:
    """At one place in the source. Copies are independent: a subshell changes nothing outside."""

    values: dict[str, Values] = field(default_factory=dict)
    arrays: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Arguments, already joined by GAP where there are alternatives to them: one reading only."""
    unstable: frozenset[str] = frozenset()
    """Assigned by a function, which may be called at any time."""
    cwd: str | None = None

    def copy(self) -> Variables:
        return Variables(dict(self.values), dict(self.arrays), self.unstable, self.cwd)

    def get(self, name: str) -> Values:
        found = self.values.get(name)
        if found is None:
            return _FIXED.get(name, UNKNOWN)
        return Values(found.texts) if name in self.unstable else found

    def set(self, name: str, values: Values, *, maybe: bool) -> None:
        """`maybe`: or it keeps what it had."""
        self.arrays.pop(name, None)
        self.values[name] = self.get(name).or_else(values) if maybe else values

    def forget(self, name: str) -> None:
        """It may be anything from here on, and may still be what it was."""
        self.values[name] = Values(self.get(name).texts)

    def set_array(self, name: str, fields: tuple[str, ...]) -> None:
        self.values[name] = Values(fields[:1])
        self.arrays[name] = fields

    def array(self, name: str) -> tuple[str, ...]:
        return self.arrays.get(name, (SPLIT,))

    def element(self, name: str, index: str) -> Values:
        fields = self.arrays.get(name)
        if fields and index.isdigit() and int(index) < len(fields):
            return Values((fields[int(index)],))
        return Values((), complete=False)


__all__ = ["HOLE", "MAX_VALUES", "NUMBERS", "UNKNOWN", "Values", "Variables"]
