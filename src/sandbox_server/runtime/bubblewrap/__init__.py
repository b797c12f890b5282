"""Embedded boxes: no engine, no image and no root needed."""

from sandbox_server.runtime.bubblewrap.runtime import BubblewrapBox, BubblewrapRuntime
from sandbox_server.runtime.registry import RuntimeOptions

__all__ = ["BubblewrapBox", "BubblewrapRuntime", "make"]


def make(options: RuntimeOptions) -> BubblewrapRuntime:
    """An entry point of the package."""
    return BubblewrapRuntime(state_dir=options.state_dir)
