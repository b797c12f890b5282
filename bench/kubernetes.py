"""Boxes that are pods, on a real cluster: both ways of a stream side by side, sessions over HTTP,
pods a second beside `kubectl run`, and many pods at once.

python -m bench.kubernetes [--pods 200]; writes docs/benchmarks/kubernetes.md. It takes the cluster
at SANDBOX_TEST_CLUSTER (scripts/cluster.sh env) or KUBECONFIG, which has the image of boxes.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import sys
import tempfile
from pathlib import Path

import structlog

from bench import machine, pods
from bench.cluster import CONFIG, namespace
from bench.measure import percentile
from bench.pods import AT_ONCE, WAYS, Crowd, Samples, told
from bench.tables import piped

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "kubernetes.md"
ROUNDS, OPENINGS = 6, 10
CALLS, SESSIONS = 200, 5
RATE_PODS = 24
EVERY_S, SECONDS = 2.0, 20.0


async def main(count: int) -> None:
    about = machine.host()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    async with namespace() as at:
        with tempfile.TemporaryDirectory(prefix="bench-pods-") as folder:
            _say("one pod")
            one = await pods.one_pod(at, rounds=ROUNDS, openings=OPENINGS)
            _say("over HTTP")
            http = await pods.over_http(at, Path(folder), calls=CALLS, sessions=SESSIONS)
            _say("pods a second")
            rates = await pods.rates(at, count=RATE_PODS)
            _say(f"{count} pods")
            crowd = await pods.crowd(at, count=count, seconds=SECONDS, every_s=EVERY_S)
    page = _page(one, http, rates, crowd, about)
    print(page)
    PAGE.write_text(page)


def _say(what: str) -> None:
    print(f"bench: {what}", file=sys.stderr)


def _page(
    one: dict[str, Samples],
    http: Samples,
    rates: tuple[float, float],
    crowd: Crowd,
    about: dict[str, str],
) -> str:
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return "\n".join([
        "# Boxes that are pods",
        "",
        f"Measured on {today} by `python -m bench.kubernetes`; [kubernetes.md](../kubernetes.md)"
        " says what the two ways of a stream are. The cluster, its control plane and the bench"
        " share the machine below. p50 / p99 in milliseconds.",
        "",
        "## One pod",
        "",
        _one(one),
        "",
        "## Over HTTP",
        "",
        _http(http, rates),
        "",
        f"## {crowd.pods} pods on {crowd.nodes} nodes",
        "",
        f"Made {AT_ONCE} at a time in {crowd.created_s:.0f} s. Then each runs an empty command"
        f" every {EVERY_S:g} s. CPU is that of a command, without what a part takes when nothing is"
        " asked.",
        "",
        _crowd(crowd),
        "",
        *machine.table(about),
    ])  # fmt: skip


def _one(one: dict[str, Samples]) -> str:
    titles = {"first": "the first stream to a box", "open": "another one", "ping": "a round trip",
              "run": "an empty command"}  # fmt: skip
    rows = [[title, *(told(one[what][way]) for way in WAYS)] for what, title in titles.items()]
    return piped([["", *WAYS], *rows])


def _http(http: Samples, rates: tuple[float, float]) -> str:
    return piped([
        ["", ""],
        ["an empty command, ms", told(http["command"])],
        ["a session from a warm pod, p50 ms", f"{percentile(http['warm'], 50):.0f}"],
        ["a session from nothing, p50 ms", f"{percentile(http['cold'], 50):.0f}"],
        [f"pods a second, {AT_ONCE} at a time", f"{rates[0]:.1f}"],
        ["the same by `kubectl run` and `kubectl wait`", f"{rates[1]:.1f}"],
    ])  # fmt: skip


def _crowd(crowd: Crowd) -> str:
    ways = [crowd.ways[way] for way in WAYS]
    parts = sorted({part for way in ways for part in way.cpu_ms})
    return piped([
        ["", *WAYS],
        ["all streams opened, s", *(f"{way.opened_s:.1f}" for way in ways)],
        ["commands", *(str(way.commands) for way in ways)],
        ["failed", *(str(way.failed) for way in ways)],
        ["a command, ms", *(told(way.took) for way in ways)],
        ["requests to the API server for a command",
         *(f"{way.asked / way.commands:.3f}" for way in ways)],
        *([f"CPU of {part}, ms", *(f"{way.cpu_ms.get(part, 0):.2f}" for way in ways)]
          for part in parts),
    ])  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.kubernetes")
    parser.add_argument("--pods", type=int, default=200)
    if not CONFIG:
        sys.exit('no cluster: eval "$(scripts/cluster.sh env)", or set KUBECONFIG')
    asyncio.run(main(parser.parse_args().pods))
