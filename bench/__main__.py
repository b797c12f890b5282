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
from bench.files import measure_files
from bench.latency import measure_commands, measure_starts
from bench.memory import measure_memory
from bench.plot import draw_latency
from bench.report import Run
from bench.results import Results
from bench.sdk import measure_sdk
from bench.stage import Stage, open_stage
from bench.throughput import measure_stdout

DOCS = Path(__file__).parents[1] / "docs" / "benchmarks"
PARTS = ("commands", "stdout", "files", "start", "memory", "sdk")


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How often everything is done."""

    rounds: int = 10
    batch: int = 20
    transfers: int = 3
    starts: int = 20
    crowds: int = 1
    boxes: int = 10


QUICK = Effort(rounds=3, batch=10, transfers=2, starts=3, crowds=1, boxes=3)


def main() -> int:
    options = _options()
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        run = asyncio.run(_run(options))
        print(f"\n{report.as_text(run)}")
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
    if missing := os.environ.get("SANDBOX_TEST_MISSING"):
        _say(f"not measured: {missing}")
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
        "sdk": lambda: measure_sdk(stage, found, imports=e.starts, commands=e.rounds * e.batch),
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


def _write(run: Run, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "engine.json").write_text(report.as_json(run))
    (folder / "engine.md").write_text(report.as_markdown(run, "engine.svg"))
    draw_latency(run.found, folder / "engine.svg")
    _say(f"written to {folder}")


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
