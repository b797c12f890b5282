"""Chaos tests make servers of their own; they share where those keep their state."""

from tests.contract.conftest import state_dir

__all__ = ["state_dir"]
