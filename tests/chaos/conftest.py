"""Chaos tests make servers of their own; they share where those keep their state."""

from tests.contract.conftest import state_dir
from tests.fleet.conftest import redis_server

__all__ = ["redis_server", "state_dir"]
