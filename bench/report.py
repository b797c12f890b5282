"""The findings as text: a table for the terminal, a page for the docs, JSON for everybody else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import results as r
from bench.goals import Goal, goals
from bench.measure import Summary
from bench.results import SECTIONS, Results, Section
from bench.tables import aligned, piped

METHOD = Path(__file__).with_name("method.md")

_RULES = {"ms": 2, "MB/s": 0, "MB": 1}


@dataclass(frozen=True)
class Run:
    """A finished run."""

    date: str
    quick: bool
    machine: dict[str, str]
    found: Results


def as_text(run: Run) -> str:
    blocks = [aligned(_rows(section, run.found)) for section in _measured(run.found)]
    verdicts = aligned(_goal_rows(goals(run.found)))
    return "\n\n".join([*blocks, verdicts]) + "\n"


def as_markdown(run: Run, plot: str) -> str:
    machine = "\n".join(f"| {name} | {value} |" for name, value in run.machine.items())
    blocks = [
        "# What the engine costs",
        f"Measured on {run.date} by `make bench`{' --quick' if run.quick else ''}; the raw numbers"
        " are in [engine.json](engine.json).",
        f"![Latency of a command]({plot})",
        "## Goals",
        piped(_goal_rows(goals(run.found))),
        "## Findings",
        *(piped(_rows(section, run.found)) for section in _measured(run.found)),
        "MB are millions of bytes.",
        "## Method",
        METHOD.read_text().strip(),
        "## Machine",
        f"| what | |\n| --- | --- |\n{machine}",
    ]
    return "\n\n".join(blocks) + "\n"


def as_json(run: Run) -> str:
    body = {
        "date": run.date,
        "quick": run.quick,
        "machine": run.machine,
        "goals": [
            {"goal": goal.text, "figure": goal.figure, goal.kind: goal.bound, "met": goal.met}
            for goal in goals(run.found)
        ],
        "sections": {
            section.key: {
                "title": section.title,
                "unit": section.unit,
                "samples": {
                    name: [round(value, 4) for value in values]
                    for name, values in run.found.samples[section.key].items()
                },
            }
            for section in _measured(run.found)
        },
    }
    text = json.dumps(body, indent=2, ensure_ascii=False)
    # One line per series, not per number.
    return re.sub(r"\[[\s\d.,e-]+\]", lambda found: " ".join(found[0].split()), text) + "\n"


def _measured(found: Results) -> Iterator[Section]:
    return (section for section in SECTIONS if section.key in found.samples)


def _rows(section: Section, found: Results) -> list[list[str]]:
    value = _formatter(section)
    ratio_title, ratio = _ratio(section, found)
    second = "p95" if _is_time(section) else "range"
    rows = [[section.title, "n", f"p50, {section.unit}", second]]
    rows[0] += [ratio_title] if ratio_title else []
    for name, summary in found.summaries(section):
        second = (
            value(summary.p95)
            if _is_time(section)
            else f"{value(summary.least)} to {value(summary.most)}"
        )
        rows.append([name, str(summary.n), value(summary.p50), second])
        rows[-1] += [ratio(summary)] if ratio_title else []
    return rows


def _is_time(section: Section) -> bool:
    return section.unit == "ms"


def _formatter(section: Section) -> Callable[[float], str]:
    digits = 0 if section == r.START else _RULES[section.unit]
    return lambda number: f"{number:.{digits}f}"


_COMPARED_WITH = {
    r.TIGHT: r.HOST,
    r.PACED: r.HOST,
    r.STDOUT: r.EXEC_CLI,
    r.UPLOAD: r.COPY,
    r.DOWNLOAD: r.COPY,
    r.START: r.RUN,
}


def _ratio(section: Section, found: Results) -> tuple[str, Callable[[Summary], str]]:
    other = _COMPARED_WITH.get(section)
    base = found.p50(section, other) if other else None
    if base is None:
        return "", lambda _: ""
    return f"{r.TIMES} {other}", lambda summary: f"{summary.p50 / base:.2f}"


def _goal_rows(wanted: list[Goal]) -> list[list[str]]:
    rows = [["Goal", "wanted", "found", ""]]
    for goal in wanted:
        figure = "" if goal.figure is None else f"{goal.figure:.2f}{goal.unit}"
        rows.append([goal.text, f"{goal.kind} {goal.bound:g}{goal.unit}", figure, goal.verdict])
    return rows
