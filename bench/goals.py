"""What we want to be true, and whether it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench import results as r
from bench.results import Results, Section

SLOWER_THAN_HOST = 3.0
FASTER_THAN_EXEC = 15.0
SHARE_OF_DOCKER = 0.5
MEMORY_MB = 20.0
IMPORT_MS = 300.0


@dataclass(frozen=True)
class Goal:
    """A figure and its bound; the figure is None where it was not measured."""

    text: str
    figure: float | None
    bound: float
    kind: Literal["at most", "at least"]
    unit: str

    @property
    def met(self) -> bool | None:
        if self.figure is None:
            return None
        return self.figure <= self.bound if self.kind == "at most" else self.figure >= self.bound

    @property
    def verdict(self) -> str:
        return {True: "met", False: "NOT MET", None: "not measured"}[self.met]


def goals(found: Results) -> list[Goal]:
    return [*_commands(found), *_throughput(found), *_memory(found), _import(found)]


def _commands(found: Results) -> list[Goal]:
    made = []
    for runtime in (r.RUNC, r.BUBBLEWRAP):
        for section, pace in ((r.TIGHT, "tight"), (r.PACED, "paced")):
            ours = found.p50(section, r.box(runtime))
            slower = _ratio(ours, found.p50(section, r.HOST))
            faster = _ratio(found.p50(section, r.EXEC_API), ours)
            text = f"{runtime}: command p50, {pace}, "
            made += [
                Goal(f"{text}in terms of {r.HOST}", slower, SLOWER_THAN_HOST, "at most", r.TIMES),
                Goal(
                    f"{text}faster than {r.EXEC_API}", faster, FASTER_THAN_EXEC, "at least", r.TIMES
                ),
            ]
    return made


def _throughput(found: Results) -> list[Goal]:
    def goal(runtime: str, section: Section, docker: str) -> Goal:
        share = _ratio(found.p50(section, r.box(runtime)), found.p50(section, docker))
        text = f"{runtime}: {section.title[0].lower()}{section.title[1:]}, in terms of {docker}"
        return Goal(text, share, SHARE_OF_DOCKER, "at least", r.TIMES)

    pairs = ((r.STDOUT, r.EXEC_CLI), (r.UPLOAD, r.COPY), (r.DOWNLOAD, r.COPY))
    return [goal(runtime, *pair) for runtime in (r.RUNC, r.BUBBLEWRAP) for pair in pairs]


def _memory(found: Results) -> list[Goal]:
    of_box = found.p50(r.MEMORY_BOX, r.box(r.RUNC))
    of_host = found.p50(r.MEMORY_HOST, r.box(r.RUNC))
    return [
        Goal(f"{r.RUNC}: idle box, its control group", of_box, MEMORY_MB, "at most", " MB"),
        Goal(f"{r.RUNC}: idle box, all the host gives up", of_host, MEMORY_MB, "at most", " MB"),
    ]


def _import(found: Results) -> Goal:
    took_ms = found.p50(r.IMPORT, r.IMPORT_REMOTE)
    return Goal("Import of the SDK for remote use", took_ms, IMPORT_MS, "at most", " ms")


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
