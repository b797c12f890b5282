"""The pages of docs/benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import results as r
from bench.goals import Goal, of_engine
from bench.plot import draw_latency, draw_service, draw_throughput
from bench.results import Results, Section
from bench.service_goals import of_service
from bench.throughput_goals import of_throughput


@dataclass(frozen=True, kw_only=True)
class Page:
    """What is told together."""

    name: str
    title: str
    caption: str
    sections: tuple[Section, ...]
    goals: Callable[[Results], list[Goal]]
    draw: Callable[[Results, Path], None]
    has_flames: bool = False

    @property
    def method(self) -> str:
        return Path(__file__).with_name(f"method_{self.name}.md").read_text().strip()

    def is_in(self, found: Results) -> bool:
        """Whether anything of it was measured."""
        return any(section.key in found.samples for section in self.sections)


ENGINE = Page(
    name="engine",
    title="What the engine costs",
    caption="Latency of a command",
    sections=r.OF_ENGINE,
    goals=of_engine,
    draw=draw_latency,
)
SERVICE = Page(
    name="service",
    title="What the service costs",
    caption="Latency of calls",
    sections=r.OF_SERVICE,
    goals=of_service,
    draw=draw_service,
)
THROUGHPUT = Page(
    name="throughput",
    title="Throughput and tails",
    caption="Commands a second",
    sections=r.OF_THROUGHPUT,
    goals=of_throughput,
    draw=draw_throughput,
    has_flames=True,
)
PAGES = (ENGINE, SERVICE, THROUGHPUT)


def goals(found: Results) -> list[Goal]:
    """Those of every page."""
    return [goal for page in PAGES for goal in page.goals(found)]
