"""What a fleet asks of Redis and of a coordinator, as text, as a page and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from bench.fleet import BEGIN, END, LIST, LOCATE, PACED, RESTORE, RegistryFindings
from bench.fleet_hop import DIRECT, HOP, HopFindings
from bench.measure import Summary
from bench.tables import aligned, piped

HOP_MS = 3.0
_TITLES = {
    f"{BEGIN} {PACED}": "a thread gets its session, 200 a second",
    BEGIN: "a thread gets its session, as fast as it goes",
    f"{LOCATE} {PACED}": "a coordinator finds a thread, 200 a second",
    LOCATE: "a coordinator finds a thread, as fast as it goes",
    RESTORE: "a worker vouches for a session, as fast as it goes",
    END: "a session ends, as fast as it goes",
    LIST: "a coordinator lists all workers",
}


@dataclass(frozen=True)
class FleetRun:
    """A finished run."""

    date: str
    machine: dict[str, str]
    registry: RegistryFindings
    hop: HopFindings | None
    """None where this machine has no runtime."""

    @property
    def overhead_ms(self) -> float | None:
        if self.hop is None:
            return None
        median = {name: Summary.of(taken).p50 for name, taken in self.hop.latency_ms.items()}
        return median[HOP] - median[DIRECT]


def as_text(run: FleetRun) -> str:
    return "\n\n".join(aligned(rows) for rows in _tables(run)) + "\n"


def as_markdown(run: FleetRun) -> str:
    blocks = [
        "# What a fleet costs",
        f"Measured on {run.date} by `python -m bench --only fleet`; the same in numbers is in"
        " [fleet.json](fleet.json). What follows from it is in [scaling](../scaling.md).",
        *(piped(rows) for rows in _tables(run)),
        "## Method",
        _method(run),
        "## Machine",
        piped([["what", ""], *([name, value] for name, value in run.machine.items())]),
    ]
    return "\n\n".join(blocks) + "\n"


def as_json(run: FleetRun) -> str:
    hop = asdict(run.hop) if run.hop else None
    if hop:
        hop["latency_ms"] = {
            name: asdict(Summary.of(taken)) for name, taken in hop["latency_ms"].items()
        }
    body = {
        "date": run.date,
        "machine": run.machine,
        "registry": asdict(run.registry),
        "hop": hop,
        "overhead_ms": run.overhead_ms,
    }
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"


def _tables(run: FleetRun) -> Iterator[list[list[str]]]:
    yield _calls(run.registry)
    yield _costs(run.registry)
    yield _sizes(run.registry)
    if run.hop is not None:
        yield _hop(run)
        yield _load(run.hop)


def _calls(found: RegistryFindings) -> list[list[str]]:
    rows = [["Asking Redis", "n", "a second", "p50, ms", "p99, ms"]]
    for work, title in _TITLES.items():
        timing = found.timings[work]
        rate = f"{timing.calls / timing.seconds:.0f}"
        rows.append(
            [title, str(timing.calls), rate, f"{timing.p50_ms:.1f}", f"{timing.p99_ms:.1f}"]
        )
    return rows


def _costs(found: RegistryFindings) -> list[list[str]]:
    rows = [["What it costs Redis", "round trips", "commands", "bytes in", "bytes out", "CPU, µs"]]
    titles = {
        BEGIN: "a session begins",
        LOCATE: "a thread is found",
        RESTORE: "a worker vouches for a session",
        END: "a session ends",
        LIST: "all workers are listed",
    }
    costs = {title: found.costs[work] for work, title in titles.items()}
    costs[f"a second of {found.size.workers} leases"] = found.rest
    for title, cost in costs.items():
        parts = (cost.bytes_in, cost.bytes_out, cost.cpu_us)
        rows.append(
            [title, f"{cost.round_trips:.1f}", f"{cost.commands:.1f}", *(f"{n:.0f}" for n in parts)]
        )
    return rows


def _sizes(found: RegistryFindings) -> list[list[str]]:
    size = found.size
    begun = found.timings[BEGIN].calls + found.timings[f"{BEGIN} {PACED}"].calls
    return [
        [f"{size.workers} workers, {begun} sessions", ""],
        ["memory of Redis, MB", f"{found.memory_mb:.0f}"],
        ["bytes for a session", f"{found.session_bytes:.0f}"],
        ["bytes for a worker and its connections", f"{found.worker_bytes:.0f}"],
        ["leases lost", str(found.lost_leases)],
    ]


def _hop(run: FleetRun) -> list[list[str]]:
    assert run.hop is not None
    assert run.overhead_ms is not None
    rows = [["A command", "n", "p50, ms", "p95, ms"]]
    for name, taken in sorted(run.hop.latency_ms.items()):
        summary = Summary.of(taken)
        rows.append([name, str(summary.n), f"{summary.p50:.2f}", f"{summary.p95:.2f}"])
    verdict = "met" if run.overhead_ms <= HOP_MS else "NOT MET"
    rows.append([f"the hop (wanted: {HOP_MS:g} at most)", "", f"{run.overhead_ms:.2f}", verdict])
    return rows


def _load(found: HopFindings) -> list[list[str]]:
    rows = [["Workers", f"commands a second, {found.callers} callers"]]
    rows += [[str(count), f"{rate:.0f}"] for count, rate in found.per_second.items()]
    rows.append(["CPU of the coordinator for a command, ms", f"{found.cpu_ms:.2f}"])
    return rows


def _method(run: FleetRun) -> str:
    size = run.registry.size
    parts = [
        f"- **Asking Redis**: {size.workers} workers in {size.crews} processes, each"
        " with its own connections, a real lease that is renewed and the real registry, but no"
        " boxes; one Redis with an append-only file. *As fast as it goes* is bounded by the"
        " Python of the callers, who share the machine with Redis, and the times are those of"
        " a machine at its limit. What it costs Redis is read from its own counters, less what"
        " leases cost in the same time; commands that scripts give are counted too.",
        "- **Listing**: on a new connection each time. A coordinator keeps a list for a tenth of"
        " a lease.",
    ]
    if (hop := run.hop) is not None:
        parts.append(
            f"- **The hop**: `echo $x` in one thread with its box on {hop.runtime}, asked of its"
            " worker and of a coordinator by turns, over HTTP, all processes on this machine.\n"
            f"- **Workers**: {hop.callers} callers, each with a thread of its own, send one such"
            " command after the other through one coordinator. Workers share the cores of one"
            " machine here, so what more of them bring is bounded by it."
        )
    return "\n".join(parts)
