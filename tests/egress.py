"""A box whose connections are served, for tests over every runtime."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox_server.network.egress import Egress, Subject
from sandbox_server.network.networks import Networks
from sandbox_server.network.outbound import Note
from sandbox_server.runtime.box_network import Network
from sandbox_server.runtime.warden.client import WardenBox, WardenClient
from tests.internet import Internet

SUBJECT = Subject("tenant", "thread", "session")
Serve = Callable[..., Awaitable[Egress]]


@pytest.fixture
def internet(tmp_path: Path) -> Iterator[Internet]:
    with Internet(tmp_path / "www") as made:
        yield made


@pytest.fixture
async def box(make_box: Callable[..., Awaitable[WardenBox]]) -> WardenBox:
    return await make_box(network="allowlist")


@pytest.fixture
def notes() -> list[Note]:
    """Of all connections."""
    return []


@pytest.fixture
async def serve(
    warden: WardenClient, internet: Internet, notes: list[Note]
) -> AsyncIterator[Serve]:
    """Lets the box out, by these rules."""
    async with contextlib.AsyncExitStack() as stack:

        async def one(*allow: str, mode: Network = "allowlist", **options: Any) -> Egress:
            networks = Networks(
                allow=allow,
                resolver=internet.resolver,
                report=lambda _, note: notes.append(note),
                **options,
            )
            stack.callback(networks.close)
            terms = networks.terms(mode, None)
            egress = networks.serve(warden, terms, SUBJECT, meet=warden.connect)
            stack.push_async_callback(egress.close)
            await egress.listening()
            return egress

        yield one


async def closed(egress: Egress) -> None:
    """Wait until all connections are over, and noted."""
    async with asyncio.timeout(10):
        while egress.open:
            await asyncio.sleep(0.02)


async def run(warden: WardenClient, command: str, *, timeout_s: float = 60) -> str:
    """The output of a command that has to succeed."""
    done = await warden.run(command, timeout_s=timeout_s)
    assert done.exit_code == 0, done.output
    return done.output
