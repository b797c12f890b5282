"""What we want to be true of throughput, tails and density."""

from __future__ import annotations

from bench import results as r
from bench.goals import Goal, ratio
from bench.results import Results

CPU_OF_HOST = 2.0
COMMANDS_PER_S = 700.0
OVER_HOST_MS = 2.0
FASTER_THAN_LLM_SANDBOX = 20.0
TAIL = 3.0
STARTS_PER_S = 60.0
BOX_MB, SERVER_MB, IDLE_PERCENT = 8.0, 150.0, 5.0
_RUNTIMES = (r.RUNC, r.BUBBLEWRAP)


def of_throughput(found: Results) -> list[Goal]:
    return [*_cost(found), *_latency(found), *_tails(found), *_starts(found), *_density(found)]


def _cost(found: Results) -> list[Goal]:
    made = []
    for runtime in _RUNTIMES:
        cost = ratio(found.p50(r.CPU, r.server_and_box(runtime)), found.p50(r.CPU, r.HOST))
        text = f"{runtime}: CPU of a command, server and box, in terms of {r.HOST}"
        made.append(Goal(text, cost, CPU_OF_HOST, "at most", r.TIMES))
        rates = [
            summary.p50
            for name, summary in found.summaries(r.RATE)
            if name.startswith(f"{r.over_http(runtime)},")
        ]
        text = f"{runtime}: commands a second over HTTP, at the best number of callers"
        made.append(Goal(text, max(rates, default=None), COMMANDS_PER_S, "at least", ""))
    return made


def _latency(found: Results) -> list[Goal]:
    made = []
    host = found.p50(r.PACED, r.HOST)
    for runtime in _RUNTIMES:
        over_http = found.p50(r.EXECUTE, r.over_http(runtime))
        inside = found.p50(r.EXECUTE, r.in_process(runtime))
        more = over_http - host if over_http is not None and host is not None else None
        faster = ratio(found.p50(r.EXECUTE, r.LLM_SANDBOX), inside)
        made += [
            Goal(f"{runtime}: over HTTP, more than {r.HOST}", more, OVER_HOST_MS, "at most", " ms"),
            Goal(f"{runtime}: in-process, in terms of {r.HOST}", ratio(inside, host), 1.0,
                 "at most", r.TIMES),
            Goal(f"{runtime}: in-process, faster than {r.LLM_SANDBOX}", faster,
                 FASTER_THAN_LLM_SANDBOX, "at least", r.TIMES),
        ]  # fmt: skip
    return made


def _tails(found: Results) -> list[Goal]:
    found_tails = {
        name: summary.p99 / summary.p50 for name, summary in found.summaries(r.TIGHT_CALLS)
    }
    names = [way(runtime) for runtime in _RUNTIMES for way in (r.over_http, r.in_process)]
    return [
        Goal(f"{name}: one after the other, p99 in terms of p50", found_tails.get(name), TAIL,
             "at most", r.TIMES)
        for name in names
    ]  # fmt: skip


def _starts(found: Results) -> list[Goal]:
    rate = found.p50(r.STARTS, r.box(r.BUBBLEWRAP))
    return [Goal(f"{r.BUBBLEWRAP}: boxes a second", rate, STARTS_PER_S, "at least", "")]


def _density(found: Results) -> list[Goal]:
    memory = {name: summary.p50 for name, summary in found.summaries(r.DENSE_MEMORY)}
    each = next((mb for name, mb in memory.items() if name.startswith("each")), None)
    idle = [summary.p50 for _, summary in found.summaries(r.DENSE_IDLE)]
    failed = [sum(values) for values in found.samples.get(r.FAILED.key, {}).values()]
    many = f"{r.DENSE:,} sessions"
    return [
        Goal(f"{many}: memory of each", each, BOX_MB, "at most", " MB"),
        Goal(f"{many}: memory of the server", memory.get("the server"), SERVER_MB, "at most",
             " MB"),
        Goal(f"{many}, all idle: CPU", max(idle, default=None), IDLE_PERCENT, "at most",
             " % of a core"),
        Goal("calls that failed", sum(failed) if failed else None, 0.0, "at most", ""),
    ]  # fmt: skip
