"""Usage over HTTP: by tenant, with prices, budgets, and over a restart."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol.errors import RateLimited
from sandbox_sdk.protocol.models import DownloadRequest, ExecuteRequest, Target, UploadRequest
from tests.contract.conftest import state_dir
from tests.server_process import ServerProcess, running

__all__ = ["state_dir"]

KEYS = {"SANDBOX_API_KEYS": "acme:key-a,beta:key-b"}


@asynccontextmanager
async def both(server: ServerProcess) -> AsyncIterator[tuple[RemoteBackend, RemoteBackend]]:
    async with (
        RemoteBackend(server.url, api_key="key-a") as acme,
        RemoteBackend(server.url, api_key="key-b") as beta,
    ):
        yield acme, beta


async def one(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def test_every_tenant_sees_its_own(state_dir: Path) -> None:
    prices = {"SANDBOX_PRICES": "command=2,currency=eur"}
    async with running("bubblewrap", state_dir, **KEYS, **prices) as server:
        await server.ready()
        async with both(server) as (acme, beta):
            for number in range(3):
                command = ExecuteRequest(thread_id="t", command=f"echo {number}")
                await acme.execute(command)
            await acme.upload(UploadRequest(thread_id="t", path="a"), one(b"x" * 1000))
            wanted = DownloadRequest(thread_id="t", path="a")
            async with acme.download(wanted) as download:
                assert [len(chunk) async for chunk in download.chunks] == [1000]
            (row,) = (await acme.usage(by="thread")).rows
            assert (row.thread_id, row.commands, row.bytes_in) == ("t", 3, 1000)
            assert row.bytes_out == 3 * len("0\n") + 1000
            assert (await beta.usage(by="thread", thread_id="t")).rows == []
            assert (await beta.usage(by="thread", thread_id="never")).rows == []
            (total,) = (await acme.usage(by="total")).rows
            assert total.cost == 6
            await server.stop()
            await server.start()
            await server.ready()
            await acme.cleanup(Target(thread_id="t"))
            (after,) = (await acme.usage(by="session")).rows
            assert (after.commands, after.bytes_in) == (3, 1000)


async def test_a_session_is_counted_to_its_end(state_dir: Path) -> None:
    """Also what it did since it was last read, which is every few seconds."""
    async with running("bubblewrap", state_dir) as server, RemoteBackend(server.url) as client:
        await server.ready()
        await client.execute(ExecuteRequest(thread_id="t", command="echo x"))
        await client.cleanup(Target(thread_id="t"))
        (row,) = (await client.usage(by="session")).rows
        assert (row.commands, row.bytes_out) == (1, 2)


async def test_a_budget_that_is_used_up(state_dir: Path) -> None:
    budgets = {"SANDBOX_BUDGETS": "acme:commands=2"}
    async with running("bubblewrap", state_dir, **KEYS, **budgets) as server:
        await server.ready()
        async with both(server) as (acme, beta):
            command = ExecuteRequest(thread_id="t", command="true")
            for client in (acme, acme, beta):
                await client.execute(command)
            await acme.usage()  # Reads what was used.
            with pytest.raises(
                RateLimited, match="the budget of commands is used up: 2 a day"
            ) as e:
                await acme.execute(command)
            assert 0 < e.value.details["retry_after_s"] <= 86400
            with pytest.raises(RateLimited):
                async for _ in acme.stream(command):
                    pass
            with pytest.raises(RateLimited):
                await acme.upload(UploadRequest(thread_id="t", path="a"), one(b"x"))
            assert (await acme.sessions()).sessions
            await acme.cleanup(Target(thread_id="t"))
            await beta.execute(command)
            assert sum("budget.near" in line for line in server.lines()) == 1
