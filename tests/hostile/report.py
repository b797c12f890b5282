"""A plugin of pytest: what became of each case, on each runtime, goes into docs/security.md."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.contract.on_kubernetes import KUBECONFIG
from tests.hostile.cases import CASES, Case, exists
from tests.hostile.conftest import NOT_APPLICABLE

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"
END = "<!-- end -->"
ANY = ""
"""The runtime of a test in which no box matters."""


@dataclass(frozen=True)
class Table:
    """A table of the page, and the runtimes that are its columns."""

    begin: str
    columns: Mapping[str, str]
    whole: bool
    """Whether it has the cases that were not tried, too."""


MACHINE = Table(
    "<!-- written by make hostile -->",
    {"docker": "docker", "gvisor": "gVisor", "bubblewrap": "bubblewrap"},
    whole=True,
)
PODS = Table(
    "<!-- written by make hostile, where there is a cluster -->",
    {"kubernetes": "pods (runc)", "kubernetes_gvisor": "pods (gVisor)"},
    whole=False,
)
RUNTIMES = (*MACHINE.columns, *PODS.columns)


class Outcomes:
    """Of every test, by its file and name below tests/ and by runtime."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._reasons: dict[tuple[str, str], str] = {}

    def add(self, nodeid: str, outcome: str, reason: str = "") -> None:
        test, _, parameters = nodeid.removeprefix("tests/").partition("[")
        named = re.search(rf"\b({'|'.join(RUNTIMES)})\b", parameters)
        place = (test, named[0] if named else ANY)
        self._found[place].add(outcome)
        if reason:
            self._reasons[place] = reason

    def has(self, table: Table) -> bool:
        """Whether a test was run on a runtime of the table."""
        return any(at in table.columns for _, at in self._found)

    def tried(self, case: Case, runtime: str) -> bool:
        """Whether a test of the case was run on the runtime itself."""
        return any(at == runtime and _belongs(test, case) for test, at in self._found)

    def left_out(self, case: Case, runtime: str) -> list[str]:
        """The tests of a case that were not run, though they are for the runtime."""
        run = [test for test, at in self._found if at in (runtime, ANY)]
        elsewhere = {name for at, name in NOT_APPLICABLE if at == runtime}
        return [
            test
            for test in case.tests
            if test.rpartition("::")[2] not in elsewhere
            and not any(each == test or each.startswith(f"{test}::") for each in run)
        ]

    def of(self, case: Case, runtime: str) -> tuple[set[str], list[str]]:
        """All outcomes, and what there is to say about them."""
        outcomes: set[str] = set()
        notes: list[str] = []
        for (test, at), found in self._found.items():
            if _belongs(test, case) and at in (runtime, ANY):
                outcomes |= found
                notes += [self._reasons[test, at]] if (test, at) in self._reasons else []
        names = {test.rpartition("::")[2] for test in case.tests}
        for (at, name), why in NOT_APPLICABLE.items():
            if at == runtime and name in names and why.reason != "as above":
                notes.append(why.reason)
        return outcomes, list(dict.fromkeys(notes))

    def cell(self, case: Case, runtime: str) -> tuple[str, list[str]]:
        if runtime in case.not_on:
            return "cannot happen", []
        outcomes, notes = self.of(case, runtime)
        if "failed" in outcomes:
            return "**FAILS**", notes
        if "open" in outcomes:
            return "open", notes
        if "passed" in outcomes:
            return ("otherwise" if notes else "holds"), notes
        if runtime == "gvisor" and self.of(case, "docker")[0]:
            return "as docker", []
        return "not tried", notes


def _belongs(test: str, case: Case) -> bool:
    return any(test == each or test.startswith(f"{each}::") for each in case.tests)


class Report:
    """Collects, and writes in the end. In the process that tests are handed out by, if several."""

    def __init__(self) -> None:
        self._outcomes = Outcomes()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        reason = getattr(report, "wasxfail", None)
        if reason is not None:
            self._outcomes.add(report.nodeid, "open", reason.removeprefix("reason: "))
        else:
            self._outcomes.add(report.nodeid, report.outcome)

    def pytest_sessionfinish(self) -> None:
        for table in (MACHINE, PODS):
            if self._outcomes.has(table):
                before, _, rest = PAGE.read_text().partition(table.begin)
                after = rest.partition(END)[2]
                made = as_markdown(self._outcomes, table, stamp=_stamp(table))
                PAGE.write_text(f"{before}{table.begin}\n\n{made}\n{END}{after}")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Report(), "hostile-report")


def as_markdown(outcomes: Outcomes, table: Table, *, stamp: str) -> str:
    notes: dict[str, int] = {}
    rows = [
        f"| | case | {' | '.join(table.columns.values())} | shown by |",
        f"| ---: | --- |{' --- |' * len(table.columns)} --- |",
    ]
    for case in CASES:
        if not table.whole and not any(outcomes.tried(case, each) for each in table.columns):
            continue
        cells = []
        for runtime in table.columns:
            whole = all(exists(test) for test in case.tests)
            text, reasons = outcomes.cell(case, runtime) if whole else ("not tried", [])
            marks = [str(notes.setdefault(reason, len(notes) + 1)) for reason in reasons]
            if not table.whole and text == "holds" and outcomes.left_out(case, runtime):
                text = "in part"
            cells.append(f"{text} ({', '.join(marks)})" if marks else text)
        rows.append(f"| {case.number} | {case.title} | {' | '.join(cells)} | {shown_by(case)} |")
    said = [f"{number}. {_sentence(reason)}" for reason, number in notes.items()]
    return "\n".join([stamp, "", *rows, "", *said, ""])


def _sentence(reason: str) -> str:
    first = reason if reason.startswith("gVisor") else f"{reason[:1].upper()}{reason[1:]}"
    return f"{first}."


def shown_by(case: Case) -> str:
    """The tests, those of one file together."""
    files: dict[str, list[str]] = {}
    for test in case.tests:
        file, _, name = test.partition("::")
        files.setdefault(file, []).extend([f"`{name}`"] if name else [])
    return "; ".join(
        f"{file}{': ' if names else ''}{', '.join(names)}" for file, names in files.items()
    )


def _stamp(table: Table) -> str:
    if table is PODS:
        maker = f"Kubernetes {_cluster_version()}"
    else:
        maker = f"Docker {_says('docker', 'version', '--format', '{{.Server.Version}}')}"
    runc, runsc = _says("runc", "--version"), _says("runsc", "--version")
    versions = [
        maker,
        runc.replace("runc version", "runc"),
        runsc.replace("version ", ""),
    ]
    machine = f"Linux {platform.release()}, {platform.machine()}"
    return f"Run on {datetime.now(UTC):%Y-%m-%d}: {machine}, {', '.join(v for v in versions if v)}."


def _cluster_version() -> str:
    asked = ("kubectl", "--kubeconfig", KUBECONFIG, "get", "--raw", "/version")
    found = re.search(r'"gitVersion": "([^"]+)"', _says(*asked, whole=True))
    return found[1] if found else "?"


def _says(*command: str, whole: bool = False) -> str:
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout if whole else done.stdout.partition("\n")[0].strip()
