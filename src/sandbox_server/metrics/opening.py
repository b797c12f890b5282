"""Opens the metrics that the settings ask for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, NamedTuple

from sandbox_server import __version__
from sandbox_server.metrics.recorder import NO_METRICS, Metrics
from sandbox_server.settings import Settings

if TYPE_CHECKING:
    from sandbox_server.metrics.exposition import Exposition

LAG_EVERY_S = 0.5


class Measured(NamedTuple):
    """The metrics of a process, and how they are told: None if it measures nothing."""

    metrics: Metrics
    told: Exposition | None


UNMEASURED = Measured(NO_METRICS, None)


@contextlib.asynccontextmanager
async def measuring(settings: Settings, *, process: int = 0) -> AsyncIterator[Measured]:
    """process: its number, where the server has several."""
    if not settings.metrics:
        yield UNMEASURED
        return
    # Slow to import, and programs that make their own sandboxes do without.
    from sandbox_server.metrics.exposition import text_of
    from sandbox_server.metrics.prometheus import PrometheusMetrics

    metrics = PrometheusMetrics(role=settings.role, version=__version__)

    async def told() -> bytes:
        return text_of(metrics.registry, process=process)

    lag = LoopLag(metrics)
    lag.start()
    try:
        yield Measured(metrics, told)
    finally:
        lag.stop()


class LoopLag:
    """Reports from time to time how late the event loop calls what is due."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        self._due = self._loop.time() + LAG_EVERY_S
        self._timer = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        self._metrics.loop_lag(max(self._loop.time() - self._due, 0.0))
        self.start()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
