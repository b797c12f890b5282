"""Embedded boxes: no engine, no image and no root needed."""

from sandbox_server.runtime.bubblewrap.runtime import BubblewrapBox, BubblewrapRuntime

__all__ = ["BubblewrapBox", "BubblewrapRuntime"]
