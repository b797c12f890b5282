"""An API server that is away for a while: what goes on, what is repeated, what is told."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.kubernetes import Access, KubernetesRuntime, api
from tests.contract.on_kubernetes import KUBECONFIG
from tests.kubernetes.conftest import SPEC, Kubectl
from tests.waiting import until_running

pytestmark = pytest.mark.rest


class Line:
    """The way to the API server, which can be cut."""

    def __init__(self, host: str, port: int) -> None:
        self._to = host, port
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: asyncio.Server | None = None
        self.port = 0

    async def mend(self) -> None:
        self._serving = await asyncio.start_server(self._pass_on, "127.0.0.1", self.port)
        self.port = self._serving.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        assert self._serving is not None
        self._serving.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._to)
        both = {writer, back}
        self._writers |= both
        try:
            await asyncio.gather(_copy(reader, back), _copy(there, writer))
        finally:
            self._writers -= both
            for each in both:
                each.transport.abort()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
    target.transport.abort()


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    config = yaml.safe_load(Path(KUBECONFIG).read_text())
    url = urlsplit(config["clusters"][0]["cluster"]["server"])
    made = Line(str(url.hostname), url.port or 443)
    await made.mend()
    try:
        yield made
    finally:
        await made.cut()


@pytest.fixture
async def runtime(line: Line, kubectl: Kubectl, tmp_path: Path) -> AsyncIterator[KubernetesRuntime]:
    config: dict[str, Any] = yaml.safe_load(Path(KUBECONFIG).read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{line.port}"
    (tmp_path / "config").write_text(json.dumps(config))
    access = Access.find(str(tmp_path / "config"), namespace=kubectl.namespace)
    async with KubernetesRuntime(access) as made:
        yield made


async def test_commands_go_on_meanwhile(line: Line, runtime: KubernetesRuntime) -> None:
    box = await runtime.create(SPEC)
    async with box.agent() as agent:
        running = asyncio.create_task(agent.run("until [ -e go ]; do sleep 0.1; done; echo done"))
        await until_running(agent)
        await line.cut()
        await asyncio.sleep(0.3)
        await line.mend()
        assert (await agent.run("touch go")).exit_code == 0
        assert (await running).stdout == "done\n"
    assert await box.is_alive()


@pytest.mark.timeout(240)
async def test_streams_over_tcp_go_on_for_a_minute(line: Line, runtime: KubernetesRuntime) -> None:
    """So do commands that run, those that begin meanwhile, and streams that are opened again."""
    box = await runtime.create(SPEC)
    async with box.agent() as agent:
        waits = "until [ -e go ]; do sleep 0.1; done; echo done"
        running = asyncio.create_task(agent.run(waits, timeout_s=200))
        await until_running(agent)
        assert "directly to pods (TCP)" in await runtime.about()
        await line.cut()
        until = time.monotonic() + 60
        while time.monotonic() < until:
            assert (await agent.run("echo on")).stdout == "on\n"
            async with box.agent() as another:
                assert (await another.run("echo another")).stdout == "another\n"
            await asyncio.sleep(0.5)
        assert (await agent.run("touch go")).exit_code == 0
        assert (await running).stdout == "done\n"
    await line.mend()
    assert await box.is_alive()


async def test_a_box_is_made_when_it_is_back(line: Line, runtime: KubernetesRuntime) -> None:
    await runtime.create(SPEC)
    await line.cut()
    making = asyncio.create_task(runtime.create(SPEC))
    await asyncio.sleep(0.5)
    assert not making.done()
    await line.mend()
    assert await (await making).is_alive()


async def test_away_for_too_long(
    line: Line, runtime: KubernetesRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = await runtime.create(SPEC)
    monkeypatch.setattr(api, "_REPEAT_S", 0.5)
    await line.cut()
    for call in (runtime.about(), runtime.create(SPEC), runtime.boxes(SPEC.owner), box.is_alive()):
        with pytest.raises(errors.RuntimeUnavailable, match="no Kubernetes API answers at https"):
            await call
    await line.mend()
    assert await box.is_alive()
