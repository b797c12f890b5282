"""Embedded boxes, which need no engine, no image and no root."""

from sandbox_server.runtime.bubblewrap.runtime import BubblewrapBox, BubblewrapRuntime
from sandbox_server.runtime.registry import RuntimeOptions

__all__ = ["BubblewrapBox", "BubblewrapRuntime", "make"]


def make(options: RuntimeOptions) -> BubblewrapRuntime:
    """Entry point in the group agent_sandbox.runtimes."""
    return BubblewrapRuntime(state_dir=options.state_dir, disks=options.disk_folder)
