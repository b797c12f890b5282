"""What a run has found: samples by section and contestant, and the machine they hold for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from bench.measure import Summary

HOST = "host: bash -c"
EXEC_CLI = "docker exec (CLI)"
EXEC_API = "docker exec (aiodocker)"
COPY = "docker cp"
RUN = "docker run (CLI)"
CONTAINER = "plain container"
IMPORT_CLIENTS = "the clients"
IMPORT_REMOTE = "the clients and RemoteBackend"


def box(runtime: str, *, note: str = "") -> str:
    """The name of our own contestant on a runtime."""
    return f"box: {runtime}{', ' + note if note else ''}"


ALL_CPUS = "no CPU limit"
RUNC, GVISOR, BUBBLEWRAP = "docker/runc", "docker/gVisor", "bubblewrap"

TIMES = "\N{MULTIPLICATION SIGN}"
Unit = Literal["ms", "MB/s", "MB", "1/s", "%", ""]


@dataclass(frozen=True)
class Section:
    """One thing that is measured."""

    key: str
    title: str
    unit: Unit


TIGHT = Section("command_tight", "A command, the next one at once", "ms")
PACED = Section("command_paced", "A command, 20 ms after the one before", "ms")
STDOUT = Section("stdout", "100 MiB of stdout", "MB/s")
UPLOAD = Section("upload", "Upload of 100 MiB", "MB/s")
DOWNLOAD = Section("download", "Download of 100 MiB", "MB/s")
START = Section("start", "From nothing to the first answer", "ms")
MEMORY_BOX = Section("memory_box", "Memory of an idle box: its control group or its PSS", "MB")
MEMORY_HOST = Section("memory_host", "Memory of an idle box: what the host has less of", "MB")
IMPORT = Section("import", "Import of the SDK in a new process", "ms")
CLIENT = Section("client", "A command through a client, bubblewrap, in-process", "ms")
OF_ENGINE = (
    TIGHT, PACED, STDOUT, UPLOAD, DOWNLOAD, START, MEMORY_BOX, MEMORY_HOST, IMPORT, CLIENT,
)  # fmt: skip

LLM_SANDBOX = "llm-sandbox"
ENGINE_ALONE = "docker create and start (aiodocker)"
BURST_SIZE, BURST_POOL = 50, 5
CROWD_SIZE = 200


def over_http(runtime: str) -> str:
    return f"over HTTP: {runtime}"


def by_sdk(runtime: str) -> str:
    return f"over HTTP, by the SDK: {runtime}"


def in_process(runtime: str) -> str:
    return f"in-process: {runtime}"


def hey(runtime: str, what: str) -> str:
    return f"{runtime}: {what}"


CREATE_ONE, EXECUTE_TWENTY = "create_session, 1 thread", "execute, 20 threads"

CREATE = Section("create", "create_session, with a box in the pool", "ms")
EXECUTE = Section("execute", "execute, 20 ms after the one before", "ms")
FIRST = Section("first", "A new session and its first command", "ms")
BURST = Section("burst", f"{BURST_SIZE} sessions at once, {BURST_POOL} boxes in the pool", "ms")
BURST_WHOLE = Section("burst_whole", f"{BURST_SIZE} sessions at once, all of them", "ms")
COLD = Section("cold", "Sessions a second, with no pool", "1/s")
LOAD = Section("load", "hey, 1,000 requests, 50 at a time", "1/s")
FAILURES = Section("failures", "Calls that failed", "")
CROWD = Section("crowd", f"{CROWD_SIZE} sessions at once: a command in each of them", "ms")
CROWD_LAG = Section("crowd_lag", f"{CROWD_SIZE} sessions: lag of the event loop", "ms")
CROWD_MEMORY = Section("crowd_memory", f"{CROWD_SIZE} sessions: the server's memory", "MB")
CROWD_COUNTS = Section("crowd_counts", f"{CROWD_SIZE} sessions: what they hold", "")
OF_SERVICE = (
    CREATE, EXECUTE, FIRST, BURST, BURST_WHOLE, COLD, LOAD, FAILURES,
    CROWD, CROWD_LAG, CROWD_MEMORY, CROWD_COUNTS,
)  # fmt: skip

DENSE = 2000
ARRIVALS, ARRIVALS_AT_ONCE = 1000, 50


def with_callers(name: str, count: int) -> str:
    return f"{name}, {count} caller{'s' if count > 1 else ''}"


def server_and_box(runtime: str) -> str:
    return f"server and box: {runtime}"


RATE = Section("rate", "Commands a second", "1/s")
RATE_LATENCY = Section("rate_latency", "How long each of them took", "ms")
CPU = Section("cpu", "CPU time of a command, 20 ms after the one before", "ms")
CPU_MACHINE = Section("cpu_machine", "CPU time of a command, all the machine did, one caller", "ms")
TIGHT_CALLS = Section("tight_calls", "A command, the next one at once, in long turns", "ms")
STARTS = Section("starts", "Boxes a second that have answered, four at a time", "1/s")
ARRIVAL = Section("arrival", f"{ARRIVALS:,} new sessions, {ARRIVALS_AT_ONCE} at a time", "1/s")
DENSE_CALLS = Section("dense_calls", f"{DENSE:,} sessions: a command, 20 at a time", "ms")
DENSE_MEMORY = Section("dense_memory", f"{DENSE:,} sessions: memory", "MB")
DENSE_IDLE = Section("dense_idle", f"{DENSE:,} sessions, all idle: of one core", "%")
FAILED = Section("failed", "Calls that failed", "")
OF_THROUGHPUT = (
    RATE, RATE_LATENCY, CPU, CPU_MACHINE, TIGHT_CALLS, STARTS, ARRIVAL, DENSE_CALLS, DENSE_MEMORY,
    DENSE_IDLE, FAILED,
)  # fmt: skip
SECTIONS = (*OF_ENGINE, *OF_SERVICE, *OF_THROUGHPUT)


@dataclass
class Results:
    """Filled by the run, section by section."""

    samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    pictures: dict[str, str] = field(default_factory=dict)
    """SVGs, by name."""

    def add(self, section: Section, contestant: str, *values: float) -> None:
        self.samples.setdefault(section.key, {}).setdefault(contestant, []).extend(values)

    def summaries(self, section: Section) -> Iterator[tuple[str, Summary]]:
        """Contestants in the order in which they were first measured."""
        for contestant, samples in self.samples.get(section.key, {}).items():
            yield contestant, Summary.of(samples)

    def p50(self, section: Section, contestant: str) -> float | None:
        samples = self.samples.get(section.key, {}).get(contestant)
        return Summary.of(samples).p50 if samples else None
