"""Many machines: workers that hold leases in Redis, and coordinators that route to them."""

from sandbox_server.fleet.directory import Directory
from sandbox_server.fleet.index import SessionIndex
from sandbox_server.fleet.lease import RedisLease
from sandbox_server.fleet.registry import RedisRegistry
from sandbox_server.fleet.router import Router
from sandbox_server.fleet.routing import RoutedTenants
from sandbox_server.fleet.store import Store
from sandbox_server.fleet.workers import Drain, Phase, Worker

__all__ = [
    "Directory",
    "Drain",
    "Phase",
    "RedisLease",
    "RedisRegistry",
    "RoutedTenants",
    "Router",
    "SessionIndex",
    "Store",
    "Worker",
]
