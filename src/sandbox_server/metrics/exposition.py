"""Metrics as text for Prometheus: of one process, and of all processes of a server together.

Every process counts for itself. Added up, a counter would fall when a process is restarted, so
their series are told apart by the label `process`: each only grows, or begins again at zero, which
Prometheus understands.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

Exposition = Callable[[], Awaitable[bytes]]
"""The whole text that a scrape gets."""
TEXT = "text/plain; version=0.0.4; charset=utf-8"
_UP = "sandbox_process_up"
_OF_THE_SERVER = frozenset({"sandbox_sessions_capacity", "sandbox_build_info"})
"""The same in all processes, so without their label: a sum over processes would be wrong."""
_BLOCKS = re.compile(rb"^# HELP (\S+) ", re.MULTILINE)


def text_of(registry: CollectorRegistry, *, process: int) -> bytes:
    """What one process tells."""
    return generate_latest(_Labelled(registry, process))


def joined(texts: Sequence[bytes | None]) -> bytes:
    """The texts of all processes as one; None: of one that does not answer, which is told."""
    families: dict[bytes, list[bytes]] = {}
    for process, text in enumerate(texts):
        for name, lines in _families(_down(process) if text is None else text):
            known = families.setdefault(name, lines[:2])
            if len(known) == 2 or name.decode() not in _OF_THE_SERVER:
                known += lines[2:]
    return b"".join(line + b"\n" for lines in families.values() for line in lines)


def _families(text: bytes) -> Iterable[tuple[bytes, list[bytes]]]:
    """Name and lines of every family, its HELP and TYPE first."""
    starts = [*_BLOCKS.finditer(text)]
    ends = [*(found.start() for found in starts[1:]), len(text)]
    for found, end in zip(starts, ends, strict=True):
        yield found[1], text[found.start() : end].splitlines()


def _down(process: int) -> bytes:
    return generate_latest(_Labelled(CollectorRegistry(), process, up=False))


class _Labelled(Collector):
    """What a registry collects, with the label of its process, and without the times at which
    series were made: Prometheus would store each as a series more."""

    def __init__(self, registry: CollectorRegistry, process: int, *, up: bool = True) -> None:
        self._registry = registry
        self._process = str(process)
        self._up = up

    def collect(self) -> Iterable[Metric]:
        up = GaugeMetricFamily(_UP, "Whether this process of the server answers.", float(self._up))
        for family in (*self._registry.collect(), up):
            own = family.name in _OF_THE_SERVER
            family.samples = [
                sample if own else sample._replace(labels=self._labels(sample.labels))
                for sample in family.samples
                if not sample.name.endswith("_created")
            ]
            yield family

    def _labels(self, labels: dict[str, str]) -> dict[str, str]:
        return {**labels, "process": self._process}
