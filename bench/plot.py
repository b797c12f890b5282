"""Latency and throughput as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench import results as r
from bench.results import Results, Section

_COLOURS = {
    "box": "#1f77b4", "in-process": "#1f77b4", "over": "#17448a", "docker": "#d95f02",
    "llm-sandbox": "#d95f02", "host": "#7f7f7f",
}  # fmt: skip
_LEFT_MS = 0.3


def draw_latency(found: Results, path: Path) -> None:
    _draw(found, (r.TIGHT, r.PACED), path)


def draw_service(found: Results, path: Path) -> None:
    _draw(found, (r.EXECUTE, r.CREATE, r.FIRST), path)


def draw_throughput(found: Results, path: Path) -> None:
    """A line for each contestant: commands a second by callers."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    lines: dict[str, list[tuple[int, float]]] = {}
    for name, summary in found.summaries(r.RATE):
        contestant, _, callers = name.rpartition(", ")
        lines.setdefault(contestant, []).append((int(callers.split()[0]), summary.p50))
    for contestant, points in lines.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=contestant)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("callers")
    axes.set_ylabel("commands a second (log scale)")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "bench", "font.size": 10}
    from matplotlib import pyplot

    return pyplot


def _draw(found: Results, sections: tuple[Section, ...], path: Path) -> None:
    """Bars up to p50, lines up to p95, on a log scale."""
    plt = _pyplot()
    shared = len({tuple(found.samples.get(section.key, {})) for section in sections}) == 1
    figure, all_axes = plt.subplots(
        1, len(sections), figsize=(5 * len(sections), 3), sharey=shared, layout="constrained"
    )
    for axes, section in zip(all_axes, sections, strict=True):
        rows = list(found.summaries(section))[::-1]
        names = [name for name, _ in rows]
        middle = [summary.p50 for _, summary in rows]
        tails = [summary.p95 - summary.p50 for _, summary in rows]
        colours = [_COLOURS[name.partition(" ")[0].strip(":")] for name in names]
        zeros = [0.0] * len(rows)
        axes.barh(names, middle, color=colours, xerr=[zeros, tails], ecolor="#444444", capsize=3)
        for name, summary in rows:
            axes.annotate(
                f"{summary.p50:.1f}", (_LEFT_MS, name), xytext=(4, 0), color="white",
                textcoords="offset points", va="center",
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_xlim(left=_LEFT_MS)
        axes.set_title(section.title)
        axes.set_xlabel("ms: bar p50, whisker p95 (log scale)")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
