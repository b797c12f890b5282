"""A stream that a coordinator follows has an end, even where its worker always begins it anew."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_sdk.protocol.events import CommandEvent, ExitEvent, StartEvent
from sandbox_sdk.protocol.models import ExecuteRequest
from sandbox_sdk.protocol.sandboxes import Sandboxes
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


class Repeating:
    """Fails before the start and after it; what it says of its own repeats is not for callers."""

    def __init__(self) -> None:
        self.asked = 0

    def of(self, _tenant: str) -> "Repeating":
        return self

    async def events(self, _request: Any) -> AsyncIterator[CommandEvent]:
        self.asked += 1
        if self.asked == 1:
            raise RuntimeUnavailable("the link to the box broke")
        state: Any = "recreated" if self.asked == 2 else "live"
        about = {"command_id": "c", "session_id": "s", "generation": 2, "session_state": state}
        yield StartEvent(**about, replayed=self.asked == 2)
        if self.asked == 2:
            raise RuntimeUnavailable("the link to the box broke again")
        yield ExitEvent(
            **about, exit_code=0, duration_ms=1, timed_out=False, truncated=False, output_bytes=0,
            cwd="/",
        )  # fmt: skip


async def test_what_the_start_said_holds_at_the_end() -> None:
    routing = routed(Repeating(), patience_s=10)
    start, end = [e async for e in routing.stream(ExecuteRequest(session_id="s", command="echo"))]
    assert isinstance(start, StartEvent)
    assert isinstance(end, ExitEvent)
    assert (start.replayed, start.session_state) == (False, "recreated")
    assert (end.replayed, end.session_state) == (False, "recreated")


def routed(worker_client: Any, *, patience_s: float) -> Sandboxes:
    """A coordinator before one worker."""
    worker = Worker(id="w", url="http://worker", capacity=1)

    async def locate(*_: Any) -> Location:
        return Location(worker=worker, presence=Presence.HERE, assumed=True)

    directory: Any = SimpleNamespace(locate=locate)
    router = Router(directory, lambda *_: worker_client, patience_s=patience_s)
    return RoutedTenants(directory, router, coordinator_id="c").of("t")


async def test_a_start_that_is_told_again_is_no_progress() -> None:
    restless = Restless()
    routing = routed(restless, patience_s=0.3)
    events = routing.stream(ExecuteRequest(session_id="s", command="echo"))
    assert isinstance(await anext(events), StartEvent)
    with pytest.raises(RuntimeUnavailable, match="again and again"):
        await anext(events)
    assert restless.asked < 12
