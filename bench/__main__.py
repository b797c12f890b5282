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
from dataclasses import dataclass
from pathlib import Path

from bench import machine, report
from bench import results as r
from bench.crowd import measure_crowd
from bench.files import measure_files
from bench.latency import measure_commands, measure_starts
from bench.memory import measure_memory
from bench.pages import PAGES, Page
from bench.report import Run
from bench.results import Results
from bench.service import lacking, measure_service
from bench.stage import Stage, open_stage
from bench.throughput import measure_stdout
from sandbox_server import logs

DOCS = Path(__file__).parents[1] / "docs" / "benchmarks"
PARTS = ("commands", "stdout", "files", "start", "memory", "service", "crowd")


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
    cold_rounds: int = 3
    sessions: int = r.CROWD_SIZE


QUICK = Effort(
    rounds=3, batch=10, transfers=2, starts=3, crowds=1, boxes=3, creates=10, firsts=2,
    cold_rounds=1, sessions=20,
)  # fmt: skip


def main() -> int:
    options = _options()
    logs.configure(form="auto", level="error")
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        run = asyncio.run(_run(options))
        print(f"\n{report.as_text(run, _pages(run))}")
        if options.out:
            _write(run, options.out)
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


async def _run(options: argparse.Namespace) -> Run:
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
    return Run(date, options.quick, about, found)


def _parts(stage: Stage, found: Results, e: Effort) -> dict[str, Callable[[], Awaitable[None]]]:
    return {
        "commands": lambda: measure_commands(stage, found, rounds=e.rounds, batch=e.batch),
        "stdout": lambda: measure_stdout(stage, found, count=e.transfers),
        "files": lambda: measure_files(stage, found, count=e.transfers),
        "start": lambda: measure_starts(stage, found, count=e.starts),
        "memory": lambda: measure_memory(stage, found, rounds=e.crowds, count=e.boxes),
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
    _say(f"written to {folder}")


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
