"""What docs/metrics.md tells of metrics, and what a server shows of them."""

import re

from prometheus_client.parser import text_string_to_metric_families

from tests.metrics.prometheus_server import ROOT

PAGE = (ROOT / "docs/metrics.md").read_text()
_ROW = re.compile(r"^\| `(\w+)` \| (counter|gauge|histogram) \| ([^|]*)\|", re.MULTILINE)
_OF_BOXES = re.compile(r"sandbox_(sessions|sessions_capacity|(pool|box)_.*)")

Described = dict[str, tuple[str, frozenset[str]]]
"""Kind and labels by name."""


def documented(*, boxes: bool = True) -> Described:
    """boxes: whether the server makes any."""
    found = {
        name: (kind, frozenset(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in _ROW.findall(PAGE)
    }
    return {name: row for name, row in found.items() if boxes or not _OF_BOXES.fullmatch(name)}


def shown(text: str) -> Described:
    """By an exposition. The families of counters have names without _total."""
    found: Described = {}
    for family in text_string_to_metric_families(text):
        if not family.samples:
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels}
        found[name] = family.type, frozenset(labels - {"le"})
    return found


def total(text: str, name: str, **labels: str) -> float:
    """The sum of the samples of this name that have these labels."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
