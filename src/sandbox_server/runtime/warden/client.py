"""The server's side of a warden: everything that can be done in a box."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandbox_server.runtime.agent import BoxAgent, BoxState, Usage
from sandbox_warden import frames

from .answers import checked
from .commands import CommandCalls
from .files import FileCalls


class WardenClient(CommandCalls, FileCalls, BoxAgent):
    """Speaks to the warden of one box in the name of one epoch.

    It keeps one link and replaces it when it breaks.
    """

    async def usage(self) -> Usage:
        return checked(Usage, await self._ask(frames.USAGE, {}))

    async def state(self) -> BoxState:
        """What the owner left in the box, and the commands it knows."""
        return checked(BoxState, await self._ask(frames.STATE, {}))

    async def set_state(self, state: Mapping[str, Any]) -> BoxState:
        """Leave something in the box for whoever owns it next."""
        return checked(BoxState, await self._ask(frames.STATE, {"set": dict(state)}))

    async def ping(self) -> None:
        """Tell the warden that its owner lives."""
        await self._ask(frames.PING, {})
