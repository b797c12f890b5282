"""`sandbox drain`: let a worker of a fleet finish, before an upgrade or for good."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.escape import escaped
from sandbox_sdk.protocol.errors import NotFound
from sandbox_server.cli.local import settings_of

if TYPE_CHECKING:
    from sandbox_server.settings import Settings

_LOOK_S = 0.2


async def drain(
    worker: Annotated[str, typer.Argument(help="Its id, as `sandbox health` lists it.")],
    *,
    leave: Annotated[
        bool, typer.Option("--leave", help="Wait for its sessions to end: it will not come back.")
    ] = False,
    caller: Caller,
) -> None:
    """Let a worker finish: no new threads, running commands end, then it exits.

    Its sandboxes wait for the next process of the same name. Needs SANDBOX_REDIS_URL.
    """
    settings = settings_of(None, role="coordinator")
    state = await _request_drain(settings, worker, leave=leave)
    caller.say({"worker": worker, "state": state}, f"{escaped(worker)}: {state}")


async def _request_drain(settings: Settings, worker: str, *, leave: bool) -> str:
    """Request the drain and wait for it; returns "left" or "stopped". Raises NotFound."""
    from sandbox_server.fleet.index import SessionIndex
    from sandbox_server.fleet.store import Store
    from sandbox_server.fleet.workers import Drain, Phase

    store = Store.open(settings.redis(), namespace=settings.redis_namespace)
    index = SessionIndex(store, lease_s=settings.lease, grace_s=settings.grace)
    try:
        if not await store.ask_to_drain(worker, Drain.LEAVE if leave else Drain.RESTART):
            raise NotFound(f"no worker {worker!r} has registered; `sandbox health` lists them")
        while True:
            found = await index.worker(worker)
            if found is None:
                return "left"
            if found.phase == Phase.STOPPED or found.lapsed_s > 0:
                return "stopped"
            await asyncio.sleep(_LOOK_S)
    finally:
        await store.close()
