"""Boxes that are started before they are needed."""

from sandbox_server.pool.plan import PoolSettings
from sandbox_server.pool.pool import Pool
from sandbox_server.pool.source import (
    Environments,
    PooledBoxes,
    PooledEnvironment,
    Provider,
    ProviderBoxes,
)
from sandbox_server.pool.warm import WarmBox

__all__ = [
    "Environments",
    "Pool",
    "PoolSettings",
    "PooledBoxes",
    "PooledEnvironment",
    "Provider",
    "ProviderBoxes",
    "WarmBox",
]
