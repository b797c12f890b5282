"""`python -m bench`: measure, print, and write docs/benchmarks."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench import fleet, fleet_hop, fleet_report, machine, policy, report
from bench import results as r
from bench.crowd import measure_crowd
from bench.density import measure_density
from bench.files import measure_files
from bench.fleet_report import FleetRun
from bench.latency import measure_commands, measure_starts
from bench.memory import measure_memory
from bench.pages import PAGES, Page
from bench.report import Run
from bench.results import Results
from bench.sdk import measure_sdk
from bench.service import lacking, measure_service
from bench.stage import Stage, open_stage
from bench.stdout import measure_stdout
from bench.throughput import measure_throughput
from sandbox_server import logs

DOCS = Path(__file__).parents[1] / "docs" / "benchmarks"
FLEET, POLICY = "fleet", "policy"
PARTS = (
    "commands", "stdout", "files", "start", "memory", "service", "crowd", "throughput",
    "density", "sdk", POLICY, FLEET,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How often everything is done."""

    rounds: int = 10
    batch: int = 20
    transfers: int = 3
    starts: int = 20
    crowds: int = 1
    boxes: int = 10
    creates: int = 100
    firsts: int = 10
    cold_rounds: int = 4
    sessions: int = r.CROWD_SIZE
    rate_s: float = 5.0
    tight: int = 1000
    box_starts: int = 120
    arrivals: int = r.ARRIVALS
    dense: int = r.DENSE
    fleet: fleet.Size = field(default_factory=fleet.Size)
    hops: fleet_hop.Effort = field(default_factory=fleet_hop.Effort)


QUICK = Effort(
    rounds=3, batch=10, transfers=2, starts=3, crowds=1, boxes=3, creates=10, firsts=2,
    cold_rounds=2, sessions=20, rate_s=1.0, tight=100, box_starts=20, arrivals=100, dense=100,
    fleet=fleet.SMALL, hops=fleet_hop.SHORT,
)  # fmt: skip


def main() -> int:
    options = _options()
    logs.configure(form="auto", level="error")
    if not options.only or POLICY in options.only:
        _policy(options)
    if options.only == [POLICY]:
        return 0
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(_run(options))
        return 0
    print("bench: interrupted; nothing is left behind", file=sys.stderr)
    return 130


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds; writes no files")
    parser.add_argument(
        "--only", action="append", choices=PARTS, help="this part (repeatable); writes no files"
    )
    parser.add_argument("--out", type=Path, help=f"where files go (default {DOCS.name} in docs)")
    options = parser.parse_args()
    if options.out is None and not options.quick and not options.only:
        options.out = DOCS
    return options


def _policy(options: argparse.Namespace) -> None:
    """It needs no boxes, and has a page of its own."""
    _say("policy …")
    found = policy.measure_policy(rounds=2 if options.quick else 10)
    print(f"\n{policy.as_table(found)}\n")
    if options.out:
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        text = policy.as_markdown(found, date=date, machine=machine.host())
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "policy.md").write_text(text)


async def _run(options: argparse.Namespace) -> None:
    _end_cleanly_when_told_to()
    effort = QUICK if options.quick else Effort()
    available = [name for name in os.environ.get("SANDBOX_TEST_RUNTIMES", "").split(",") if name]
    missing = [os.environ.get("SANDBOX_TEST_MISSING", ""), *lacking()]
    if any(missing):
        _say(f"not measured: {'; '.join(filter(None, missing))}")
    found = Results()
    async with open_stage(available) as stage:
        about = await machine.describe(stage)
        for part, measure in _parts(stage, found, effort).items():
            if not options.only or part in options.only:
                _say(f"{part} …")
                await measure()
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    if found.samples:
        run = Run(date, options.quick, about, found)
        print(f"\n{report.as_text(run, _pages(run))}")
        if options.out:
            _write(run, options.out)
    if not options.only or FLEET in options.only:
        fleet_run = await _run_fleet(date, about, available, effort)
        print(f"\n{fleet_report.as_text(fleet_run)}")
        if options.out:
            _write_fleet(fleet_run, options.out)


async def _run_fleet(
    date: str, about: dict[str, str], available: list[str], effort: Effort
) -> FleetRun:
    """Boxes on bubblewrap where there is a choice: they are the lightest."""
    _say("fleet: the registry …")
    registry = await fleet.measure_registry(effort.fleet)
    runtimes = [name for name in ("bubblewrap", "docker") if name in available]
    hop = None
    if runtimes:
        _say("fleet: a coordinator and its workers …")
        hop = await fleet_hop.measure_hop(runtimes[0], effort.hops)
    return FleetRun(date, about, registry, hop)


def _parts(stage: Stage, found: Results, e: Effort) -> dict[str, Callable[[], Awaitable[None]]]:
    return {
        "commands": lambda: measure_commands(stage, found, rounds=e.rounds, batch=e.batch),
        "stdout": lambda: measure_stdout(stage, found, count=e.transfers),
        "files": lambda: measure_files(stage, found, count=e.transfers),
        "start": lambda: measure_starts(stage, found, count=e.starts),
        "memory": lambda: measure_memory(stage, found, rounds=e.crowds, count=e.boxes),
        "sdk": lambda: measure_sdk(stage, found, imports=e.starts, commands=e.rounds * e.batch),
        "service": lambda: measure_service(
            stage,
            found,
            rounds=e.rounds,
            batch=e.batch,
            creates=e.creates,
            firsts=e.firsts,
            cold_rounds=e.cold_rounds,
        ),
        "crowd": lambda: measure_crowd(stage, found, count=e.sessions),
        "throughput": lambda: measure_throughput(
            stage, found, seconds=e.rate_s, commands=e.tight, starts=e.box_starts
        ),
        "density": lambda: measure_density(stage, found, arrivals=e.arrivals, count=e.dense),
    }


def _end_cleanly_when_told_to() -> None:
    """SIGTERM like Ctrl-C: whatever is open gets closed."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    if sys.version_info < (3, 12):
        # As later versions do by themselves: without a thread for each process of the host.
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(asyncio.get_running_loop())
        asyncio.set_child_watcher(watcher)


def _pages(run: Run) -> list[Page]:
    return [page for page in PAGES if page.is_in(run.found)]


def _write(run: Run, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for page in _pages(run):
        (folder / f"{page.name}.json").write_text(report.as_json(run, page))
        (folder / f"{page.name}.md").write_text(report.as_markdown(run, page))
        page.draw(run.found, folder / f"{page.name}.svg")
    for name, picture in run.found.pictures.items():
        (folder / f"{name}.svg").write_text(picture)
    _say(f"written to {folder}")


def _write_fleet(run: FleetRun, folder: Path) -> None:
    (folder / "fleet.json").write_text(fleet_report.as_json(run))
    (folder / "fleet.md").write_text(fleet_report.as_markdown(run))
    _say(f"the fleet's written to {folder}")


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
