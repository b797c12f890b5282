"""A stream that a coordinator follows has an end, even where its worker always begins it anew."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_sdk.protocol.events import StartEvent
from sandbox_sdk.protocol.models import ExecuteRequest
from sandbox_server.fleet.directory import Location
from sandbox_server.fleet.router import Router
from sandbox_server.fleet.routing import RoutedTenants
from sandbox_server.fleet.workers import Presence, Worker


class Restless:
    """Tells that the command has started, and no more."""

    def __init__(self) -> None:
        self.asked = 0

    def of(self, _tenant: str) -> "Restless":
        return self

    async def events(self, _request: Any) -> AsyncIterator[StartEvent]:
        self.asked += 1
        yield StartEvent(command_id="c", session_id="s", generation=1, session_state="live")
        raise RuntimeUnavailable("the link to the box breaks again and again")


async def test_a_start_that_is_told_again_is_no_progress() -> None:
    worker = Worker(id="w", url="http://worker", capacity=1)

    async def locate(*_: Any) -> Location:
        return Location(worker=worker, presence=Presence.HERE, assumed=True)

    restless = Restless()
    directory: Any = SimpleNamespace(locate=locate)
    connected: Any = restless
    router = Router(directory, lambda *_: connected, patience_s=0.3)
    routing = RoutedTenants(directory, router, coordinator_id="c").of("t")
    events = routing.stream(ExecuteRequest(session_id="s", command="echo"))
    assert isinstance(await anext(events), StartEvent)
    with pytest.raises(RuntimeUnavailable, match="again and again"):
        await anext(events)
    assert restless.asked < 12
