"""The findings as text: a table for the terminal, a page for the docs, JSON for everybody else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from bench import results as r
from bench.goals import Goal
from bench.measure import Summary
from bench.pages import Page
from bench.results import Results, Section
from bench.tables import aligned, piped

_RULES = {"ms": 2, "MB/s": 0, "MB": 1, "1/s": 1, "%": 1, "": 0}


@dataclass(frozen=True)
class Run:
    """A finished run."""

    date: str
    quick: bool
    machine: dict[str, str]
    found: Results


def as_text(run: Run, pages: Iterable[Page]) -> str:
    blocks = []
    for page in pages:
        blocks += [aligned(_rows(section, run.found)) for section in _measured(page, run.found)]
        blocks.append(aligned(_goal_rows(page.goals(run.found))))
    return "\n\n".join(blocks) + "\n"


def as_markdown(run: Run, page: Page) -> str:
    machine = "\n".join(f"| {name} | {value} |" for name, value in run.machine.items())
    blocks = [
        f"# {page.title}",
        f"Measured on {run.date} by `make bench`{' --quick' if run.quick else ''}; the raw numbers"
        f" are in [{page.name}.json]({page.name}.json).",
        f"![{page.caption}]({page.name}.svg)",
        "## Goals",
        piped(_goal_rows(page.goals(run.found))),
        "## Findings",
        *(piped(_rows(section, run.found)) for section in _measured(page, run.found)),
        "MB are millions of bytes.",
        *_pictures(run.found, page),
        "## Method",
        page.method,
        "## Machine",
        f"| what | |\n| --- | --- |\n{machine}",
    ]
    return "\n\n".join(blocks) + "\n"


def as_json(run: Run, page: Page) -> str:
    body = {
        "date": run.date,
        "quick": run.quick,
        "machine": run.machine,
        "goals": [
            {"goal": goal.text, "figure": goal.figure, goal.kind: goal.bound, "met": goal.met}
            for goal in page.goals(run.found)
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
            for section in _measured(page, run.found)
        },
    }
    text = json.dumps(body, indent=2, ensure_ascii=False)
    # One line per series, not per number.
    return re.sub(r"\[[\s\d.,e-]+\]", lambda found: " ".join(found[0].split()), text) + "\n"


def _pictures(found: Results, page: Page) -> list[str]:
    if not (page.has_flames and found.pictures):
        return []
    names = ", ".join(f"[{name}]({name}.svg)" for name in sorted(found.pictures))
    return [f"Where the time goes, as flame graphs of a busy process: {names}."]


def _measured(page: Page, found: Results) -> Iterator[Section]:
    return (section for section in page.sections if section.key in found.samples)


def _rows(section: Section, found: Results) -> list[list[str]]:
    value = _formatter(section)
    ratio_title, ratio = _ratio(section, found)
    unit = f", {section.unit}" if section.unit else ""
    tail = ["p95", "p99"] if _is_time(section) else ["range"]
    rows = [[section.title, "n", f"p50{unit}", *tail]]
    rows[0] += [ratio_title] if ratio_title else []
    for name, summary in found.summaries(section):
        tail = (
            [value(summary.p95), value(summary.p99)]
            if _is_time(section)
            else [f"{value(summary.least)} to {value(summary.most)}"]
        )
        rows.append([name, str(summary.n), value(summary.p50), *tail])
        rows[-1] += [ratio(summary)] if ratio_title else []
    return rows


def _is_time(section: Section) -> bool:
    return section.unit == "ms"


def _formatter(section: Section) -> Callable[[float], str]:
    digits = 0 if section in _LONG else _RULES[section.unit]
    return lambda number: f"{number:.{digits}f}"


_LONG = (r.START, r.FIRST, r.BURST, r.BURST_WHOLE)
_COMPARED_WITH = {
    r.TIGHT: r.HOST,
    r.PACED: r.HOST,
    r.STDOUT: r.EXEC_CLI,
    r.UPLOAD: r.COPY,
    r.DOWNLOAD: r.COPY,
    r.START: r.RUN,
    r.EXECUTE: r.LLM_SANDBOX,
    r.FIRST: r.LLM_SANDBOX,
    r.COLD: r.ENGINE_ALONE,
    r.CPU: r.HOST,
    r.CPU_MACHINE: r.HOST,
    r.TIGHT_CALLS: r.HOST,
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
