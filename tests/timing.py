"""Where the time of a run goes: seconds by folder, and the slowest tests, at the end of a run."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import pytest

SLOWEST = 20
MANY = 200
"""A run of fewer tests is somebody looking at a few, who is not asking for tables."""


@dataclass
class Spent:
    """Seconds of one test instance, or of a folder of them."""

    tests: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, other: "Spent") -> None:
        self.tests += other.tests
        for phase, seconds in other.seconds.items():
            self.seconds[phase] += seconds

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def columns(self) -> str:
        phases = (self.seconds[phase] for phase in ("setup", "call", "teardown"))
        return " ".join(f"{seconds:9.1f}" for seconds in (*phases, self.total))


class Timing:
    """A plugin. With several processes it sees the reports of all of them."""

    def __init__(self) -> None:
        self.by_test: dict[str, Spent] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        spent = self.by_test.setdefault(report.nodeid, Spent(tests=1))
        spent.seconds[report.when or "call"] += report.duration

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if hasattr(terminalreporter.config, "workerinput") or len(self.by_test) < MANY:
            return
        terminalreporter.section("seconds by folder, and the slowest tests")
        for line in table(self.by_test):
            terminalreporter.write_line(line)


def table(by_test: dict[str, Spent]) -> Iterator[str]:
    """The lines of both tables."""
    folders: dict[str, Spent] = defaultdict(Spent)
    everything = Spent()
    for name, spent in by_test.items():
        folders[folder_of(name)].add(spent)
        everything.add(spent)
    yield f"{'tests':>6}    set-up      call  teardown       all"
    for folder, spent in [*_slowest(folders.items()), ("all", everything)]:
        yield f"{spent.tests:6} {spent.columns()}  {folder}"
    yield ""
    for name, spent in _slowest(by_test.items())[:SLOWEST]:
        yield f"{'':6} {spent.columns()}  {name}"


def folder_of(nodeid: str) -> str:
    return "/".join(PurePosixPath(nodeid.partition("::")[0]).parts[:2])


def _slowest(spent: Iterable[tuple[str, Spent]]) -> list[tuple[str, Spent]]:
    return sorted(spent, key=lambda pair: pair[1].total, reverse=True)
