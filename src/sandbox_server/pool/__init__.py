"""Boxes that are started before they are needed."""

from sandbox_server.pool.plan import PoolSettings
from sandbox_server.pool.pool import Pool
from sandbox_server.pool.source import PooledBoxes
from sandbox_server.pool.warm import WarmBox

__all__ = ["Pool", "PoolSettings", "PooledBoxes", "WarmBox"]
