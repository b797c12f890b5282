"""One server with boxes of docker and of bubblewrap, and sessions that choose between them."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from sandbox_sdk.backends.remote import RemoteBackend
from sandbox_sdk.protocol.errors import Capacity, InvalidRequest, SessionLost
from sandbox_sdk.protocol.models import CreateSessionRequest, ExecuteRequest, SessionLimits, Target
from sandbox_server.runtime.base import Runtime
from tests.contract.conftest import RUNTIMES, make_runtime, state_dir
from tests.server_process import ServerProcess, running

__all__ = ["state_dir"]

BOTH = ("bubblewrap", "docker")
SETTINGS = {
    "SANDBOX_PROVIDERS": "bubblewrap,docker",
    "SANDBOX_MAX_MEMORY": "1g",
    "SANDBOX_TOTAL_MEMORY": "2g",
    "SANDBOX_ENVIRONMENTS": '{"image": "sandbox-secure:latest"}',
    "SANDBOX_NETWORK": "bridge",
    "SANDBOX_LOG_FORMAT": "json",
}

pytestmark = pytest.mark.skipif(not set(BOTH) <= set(RUNTIMES), reason="not both runtimes here")


@pytest.fixture
async def runtimes(state_dir: Path) -> AsyncIterator[dict[str, Runtime]]:
    async with AsyncExitStack() as stack:
        made = {name: make_runtime(name, state_dir) for name in BOTH}
        for runtime in made.values():
            await stack.enter_async_context(runtime)
        yield made


@pytest.fixture
async def server(state_dir: Path, runtimes: dict[str, Runtime]) -> AsyncIterator[ServerProcess]:
    async with running("bubblewrap", state_dir, **SETTINGS) as made:
        await made.ready()
        try:
            yield made
        finally:
            await made.stop()
            left = await runtimes["docker"].boxes(made.name)
            await asyncio.gather(*(box.destroy() for box in left))


def asking(thread: str, provider: str | None, **limits: Any) -> CreateSessionRequest:
    asked = SessionLimits(**limits)
    return CreateSessionRequest(thread_id=thread, provider=provider, limits=asked)


@pytest.mark.timeout(300)
async def test_both_in_one_server_and_after_kill(
    server: ServerProcess, runtimes: dict[str, Runtime]
) -> None:
    async with RemoteBackend(server.url) as client:
        made = {
            name: await client.create_session(
                asking(name, name, memory="256m", command_timeout_s=77)
            )
            for name in BOTH
        }
        (in_docker,) = await runtimes["docker"].boxes(server.name)
        usual = await client.create_session(CreateSessionRequest(thread_id="usual"))
        assert {name: session.runtime for name, session in made.items()} == {n: n for n in BOTH}
        assert usual.runtime == "bubblewrap"
        assert {name: s.limits.network for name, s in made.items()} == {
            "bubblewrap": "none",
            "docker": "bridge",
        }
        for name in BOTH:
            await client.execute(ExecuteRequest(thread_id=name, command=f"n={name}"))
        with pytest.raises(InvalidRequest, match="bubblewrap boxes use the host's programs"):
            await client.create_session(CreateSessionRequest(environment="image"))
        image = CreateSessionRequest(environment="image", provider="docker")
        in_image = await client.create_session(image)
        assert (in_image.runtime, in_image.environment) == ("docker", "image")
        await client.cleanup(Target(session_id=in_image.session_id))

        await server.stop(signal.SIGKILL)
        await server.start()
        await server.ready()

        found = {each.thread_id: each.runtime for each in (await client.sessions()).sessions}
        assert found == {"bubblewrap": "bubblewrap", "docker": "docker", "usual": "bubblewrap"}
        for name in BOTH:
            result = await client.execute(ExecuteRequest(thread_id=name, command="echo $n"))
            assert (result.output, result.generation) == (f"{name}\n", 1)
            session = await client.session(Target(thread_id=name))
            assert session.limits == made[name].limits
            again = await client.create_session(asking(name, "docker", memory="300m"))
            other = ["provider"] if name == "bubblewrap" else []
            assert again.not_applied == [*other, "limits.memory"]
        assert (await client.session(Target(thread_id="usual"))).limits == usual.limits
        health = await client.health()
        assert (health.providers, health.runtime) == (list(BOTH), "bubblewrap")
        assert health.checks == {"runtime": "ok", "capacity": "ok", "provider docker": "ok"}

        # Promised: 256 + 256 + 512 MiB of 2 GiB, also after the restart.
        await client.create_session(asking("last", "docker", memory="1g"))
        with pytest.raises(Capacity, match="0 bytes of 2 GiB of memory is left") as full:
            async with RemoteBackend(server.url, retry_for_s=0) as hasty:
                await hasty.create_session(asking("more", None, memory="64m"))
        assert full.value.details["retry_after_s"] == 5
        assert (await client.health()).checks["capacity"] == "no memory left"

        await in_docker.destroy()
        with pytest.raises(SessionLost):
            await client.execute(
                ExecuteRequest(session_id=made["docker"].session_id, command="true")
            )
        await client.create_session(asking("more", None, memory="64m"))

        for each in (await client.sessions()).sessions:
            await client.cleanup(Target(session_id=each.session_id))
        assert await runtimes["docker"].boxes(server.name) == []


async def test_a_polite_stop_ends_the_boxes_of_both_if_asked(
    state_dir: Path, runtimes: dict[str, Runtime]
) -> None:
    settings = {**SETTINGS, "SANDBOX_DESTROY_ON_EXIT": "1"}
    async with running("bubblewrap", state_dir, **settings) as server:
        await server.ready()
        async with RemoteBackend(server.url) as client:
            for name in BOTH:
                await client.create_session(asking(name, name))
        await server.stop(signal.SIGTERM)
        for name in BOTH:
            assert await runtimes[name].boxes(server.name) == []
