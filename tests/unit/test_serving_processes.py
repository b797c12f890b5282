"""The port of a server of several processes."""

import socket
import time
from typing import NoReturn

import pytest

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.processes import serving
from sandbox_server.settings import Settings


def listening() -> tuple[socket.socket, int]:
    held = socket.create_server(("127.0.0.1", 0))
    return held, held.getsockname()[1]


def test_a_port_that_a_killed_server_still_has_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, port = listening()
    monkeypatch.setattr(time, "sleep", lambda _: held.close())
    assert serving.free_port("127.0.0.1", port) == port


def test_a_worker_waits_for_the_port_of_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[tuple[str, int]] = []

    def supervised(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(serving, "free_port", lambda *address: waited.append(address))
    monkeypatch.setattr(serving, "Supervisor", supervised)
    settings = Settings(role="worker", processes=3, port=5000, redis_url="redis://127.0.0.1:1")
    with pytest.raises(KeyboardInterrupt):
        serving._supervise_workers(settings, lambda *_: None)
    assert waited == [(settings.host, port) for port in (5000, 5001, 5002)]


def test_a_port_of_somebody_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_PREDECESSOR_S", 0.05)
    held, port = listening()
    with held, pytest.raises(RuntimeUnavailable, match=f"port {port}: Address already in use"):
        serving.free_port("127.0.0.1", port)


def test_an_address_of_another_machine_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("waited"))
    with pytest.raises(RuntimeUnavailable, match=r"cannot listen on 192\.0\.2\.1"):
        serving.free_port("192.0.2.1", 0)
