"""What we want to be true of the service."""

from __future__ import annotations

from bench import results as r
from bench.goals import Goal, ratio
from bench.results import Results

CREATE_MS = 5.0
EXECUTE_MS = 6.0
FASTER_THAN_LLM_SANDBOX = 10.0
OVERHEAD_MS = 0.5
SHARE_OF_ENGINE = 0.9
LAG_MS = 100.0


def of_service(found: Results) -> list[Goal]:
    return [*_latency(found), *_peer(found), *_rates(found), *_crowd(found)]


def _latency(found: Results) -> list[Goal]:
    made = []
    for runtime in (r.RUNC, r.BUBBLEWRAP):
        created = found.p50(r.CREATE, r.over_http(runtime))
        executed = found.p50(r.EXECUTE, r.over_http(runtime))
        bare = found.p50(r.EXECUTE, r.box(runtime))
        inside = found.p50(r.EXECUTE, r.in_process(runtime))
        more = inside - bare if inside is not None and bare is not None else None
        text = f"{runtime}: "
        made += [
            Goal(f"{text}create_session over HTTP, p50", created, CREATE_MS, "at most", " ms"),
            Goal(f"{text}execute over HTTP, p50", executed, EXECUTE_MS, "at most", " ms"),
            Goal(f"{text}execute, what the service adds", more, OVERHEAD_MS, "at most", " ms"),
        ]
    return made


def _peer(found: Results) -> list[Goal]:
    faster = ratio(found.p50(r.EXECUTE, r.LLM_SANDBOX), found.p50(r.EXECUTE, r.over_http(r.RUNC)))
    text = f"{r.RUNC}: execute over HTTP, faster than {r.LLM_SANDBOX}"
    return [Goal(text, faster, FASTER_THAN_LLM_SANDBOX, "at least", r.TIMES)]


def _rates(found: Results) -> list[Goal]:
    share = ratio(found.p50(r.COLD, r.over_http(r.RUNC)), found.p50(r.COLD, r.ENGINE_ALONE))
    failed = found.samples.get(r.FAILURES.key, {})
    total = sum(map(sum, failed.values())) if failed else None
    text = f"{r.RUNC}: sessions a second with no pool, in terms of the engine alone"
    return [
        Goal(text, share, SHARE_OF_ENGINE, "at least", r.TIMES),
        Goal("calls that failed, under load and in all", total, 0.0, "at most", ""),
    ]


def _crowd(found: Results) -> list[Goal]:
    lags = found.samples.get(r.CROWD_LAG.key, {}).get(r.RUNC)
    late = sorted(lags)[int(len(lags) * 0.99)] if lags else None
    text = f"{r.RUNC}: {r.CROWD_SIZE} sessions, lag of the event loop, p99"
    return [Goal(text, late, LAG_MS, "at most", " ms")]
