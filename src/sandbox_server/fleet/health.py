"""How a fleet is doing, as one answer. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sandbox_sdk.protocol.models import Health
from sandbox_server import __version__
from sandbox_server.fleet.workers import Presence, Worker


def fleet_health(
    workers: Sequence[Worker],
    *,
    coordinator_id: str,
    registry: str,
    missing: Sequence[str],
    presence: Callable[[Worker], Presence],
    uptime_s: float,
) -> Health:
    """Unhealthy where nobody can be served, degraded where some cannot."""
    here = [worker for worker in workers if presence(worker) == Presence.HERE]
    checks = {"registry": registry}
    for worker in workers:
        state = worker.phase.value if worker in here else presence(worker).value
        checks[f"worker {worker.id}"] = "ok" if state == "serving" else state
    checks |= {f"worker at {url}": "not registered" for url in missing}
    if not any(worker.room for worker in here):
        checks["capacity"] = "full"
    well = all(state == "ok" for state in checks.values())
    return Health(
        status="healthy" if well else "degraded" if here and registry == "ok" else "unhealthy",
        role="coordinator",
        worker_id=coordinator_id,
        runtime=", ".join(sorted({worker.runtime for worker in here})) or "none",
        pool_size=sum(worker.warm for worker in here),
        active_sessions=sum(worker.sessions for worker in here),
        capacity=sum(worker.capacity for worker in here),
        version=__version__,
        uptime_s=round(uptime_s, 3),
        checks=checks,
    )
