"""An idle server sleeps, and one that is told to end does so at once."""

import asyncio
import socket

import pytest
import uvicorn
from starlette.applications import Starlette

from sandbox_server.api.server import AppServer
from sandbox_server.tasks import until_next


class Counting(AppServer):
    looked = 0

    async def on_tick(self, counter: int) -> bool:
        self.looked += 1
        return await super().on_tick(counter)


async def test_an_idle_server_wakes_up_once_a_second_and_ends_at_once() -> None:
    server = Counting(uvicorn.Config(Starlette(), log_config=None, lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while server.looked < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        assert server.looked <= 3
        server.should_exit = True
        before = server.looked
        await serving
        assert server.looked == before + 1


@pytest.mark.parametrize(("now", "left"), [(12.0, 0.5), (12.125, 0.375), (12.375, 0.125)])
async def test_what_has_the_same_period_is_done_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch, now: float, left: float
) -> None:
    loop = asyncio.get_running_loop()
    with monkeypatch.context() as patched:
        patched.setattr(loop, "time", lambda: now)
        found = until_next(0.5)
    assert found == left
