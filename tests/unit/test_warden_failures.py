"""A request that makes the warden fail is answered, and the warden goes on."""

import json
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from sandbox_warden import frames
from sandbox_warden.connection import Source
from sandbox_warden.door import Door
from sandbox_warden.loop import Loop
from sandbox_warden.meter import Meter
from sandbox_warden.shell import Shell, encode_call, prelude_file
from sandbox_warden.state import ShellState
from sandbox_warden.warden import Warden

HELLO = frames.encode_json(frames.HELLO, 1, {"version": 1, "epoch": 1})
FAILURES = [MemoryError, RecursionError, ZeroDivisionError]


class Peer:
    """Somebody who speaks to a warden, in one thread with it."""

    def __init__(self, loop: Loop, warden: Warden) -> None:
        self._loop = loop
        ours, theirs = socket.socketpair()
        warden._connect(theirs.dup().detach(), theirs.detach(), None)
        self.sock = ours
        ours.setblocking(False)
        self._decoder = frames.Decoder()
        self._received: list[frames.Frame] = []

    def answer(self, channel: int, *sent: bytes) -> tuple[int, dict[str, Any]]:
        for data in sent:
            self.sock.send(data)
        while True:
            for kind, number, payload in self._received:
                if number == channel:
                    self._received.clear()
                    return kind, json.loads(payload)
            self._loop.turn()
            try:
                self._received += self._decoder.feed(self.sock.recv(1 << 20))
            except BlockingIOError:
                continue


class Broken(Source):
    def __init__(self, error: type[Exception]) -> None:
        self._error = error
        self.pulls = False

    def pull(self) -> bytes | None:
        if self.pulls:
            raise self._error
        return None

    def data(self, payload: bytes) -> None:
        raise self._error


@pytest.fixture
def warden() -> Iterator[Warden]:
    loop = Loop()
    with socket.socket() as listener:
        yield Warden(
            loop, Door(loop, listener, relayed=True), Meter({}, max_pids=0),
            box="b", build="", deadman_s=60, open_files=0,
        )  # fmt: skip


@pytest.fixture
def peer(warden: Warden) -> Iterator[Peer]:
    made = Peer(warden._loop, warden)
    made.answer(1, HELLO)
    yield made
    made.sock.close()


def ping(peer: Peer, channel: int) -> int:
    return peer.answer(channel, frames.encode_json(frames.PING, channel, {}))[0]


@pytest.mark.parametrize("error", FAILURES)
def test_a_request_that_fails_is_answered(
    warden: Warden, peer: Peer, error: type[Exception]
) -> None:
    def fail(*_: object) -> None:
        raise error("secret")

    warden._requests.handlers[frames.STAT] = fail
    kind, body = peer.answer(5, frames.encode_json(frames.STAT, 5, {}))
    assert (kind, body["code"]) == (frames.ERROR, "internal")
    assert error.__name__ in body["message"]
    assert "secret" not in body["message"]
    assert ping(peer, 6) == frames.REPLY


@pytest.mark.parametrize("error", FAILURES)
@pytest.mark.parametrize("pulls", [True, False])
def test_a_channel_that_fails_is_answered_and_closed(
    warden: Warden, peer: Peer, error: type[Exception], pulls: bool
) -> None:
    source = Broken(error)
    source.pulls = pulls
    warden._requests.handlers[frames.STAT] = lambda connection, channel, _: connection.add(
        channel, source
    )
    sent = [frames.encode_json(frames.STAT, 5, {})]
    sent += [] if pulls else [frames.encode(frames.DATA, 5, b"x")]
    kind, body = peer.answer(5, *sent)
    assert (kind, body["code"]) == (frames.ERROR, "internal")
    assert warden._connections[0].sources == {}
    assert ping(peer, 6) == frames.REPLY


def test_a_stream_that_cannot_be_served_is_closed_and_others_are_not(
    warden: Warden, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Peer(warden._loop, warden)
    other.answer(1, HELLO)

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(warden._connections[1]._decoder, "feed", fail)
    other.sock.send(HELLO)
    while len(warden._connections) > 1:
        warden._loop.turn()
    assert other.sock.recv(1) == b""
    assert ping(peer, 6) == frames.REPLY
    other.sock.close()


def test_a_child_that_cannot_be_dealt_with_does_not_hide_the_others(
    warden: Warden, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def reaped(pid: int, _status: int) -> None:
        seen.append(pid)
        raise MemoryError

    children = [pid if (pid := os.fork()) else os._exit(0) for _ in range(3)]
    for pid in children:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    monkeypatch.setattr(warden._commands.shells, "reaped", reaped)
    woken, wake = os.pipe()
    os.write(wake, b"x")
    warden._woken(woken)
    assert set(children) <= set(seen)
    for fd in (woken, wake):
        os.close(fd)


def test_a_shell_that_was_killed_before_its_call() -> None:
    shell = Shell(prelude_file(0), stdin=False)
    shell.handed_over()
    shell.call(encode_call("true", command_id="c", cwd=None, env={}), ShellState.fresh())
    shell.close()
