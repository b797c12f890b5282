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
Unit = Literal["ms", "MB/s", "MB"]


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
SECTIONS = (
    TIGHT, PACED, STDOUT, UPLOAD, DOWNLOAD, START, MEMORY_BOX, MEMORY_HOST, IMPORT, CLIENT
)  # fmt: skip


@dataclass
class Results:
    """Filled by the run, section by section."""

    samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, section: Section, contestant: str, *values: float) -> None:
        self.samples.setdefault(section.key, {}).setdefault(contestant, []).extend(values)

    def summaries(self, section: Section) -> Iterator[tuple[str, Summary]]:
        """Contestants in the order in which they were first measured."""
        for contestant, samples in self.samples.get(section.key, {}).items():
            yield contestant, Summary.of(samples)

    def p50(self, section: Section, contestant: str) -> float | None:
        samples = self.samples.get(section.key, {}).get(contestant)
        return Summary.of(samples).p50 if samples else None
