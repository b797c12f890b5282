"""Byte streams to the warden of a container: through an exec, or directly into its network.

An exec's stdin and stdout are a dedicated connection that is upgraded from HTTP to raw TCP. From
then on we send plain bytes, and the engine sends frames: an 8-byte header (stream, length), then
data.

The direct way needs CAP_SYS_ADMIN and the engine on this machine. The warden listens in the network
namespace of its box. A socket belongs to the namespace it was created in, so a short-lived thread
of ours enters it and creates one. Over that connection we pass the warden one end of a socket pair,
as a relay passes its stdin and stdout. If it does not work, NoNetnsStream is raised and the caller
falls back to an exec.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import ctypes
import itertools
import json
import os
import socket
import struct
import threading
from collections.abc import Iterator

from sandbox_sdk.protocol.errors import RuntimeUnavailable, SessionLost
from sandbox_server.runtime.docker.engine import Engine
from sandbox_server.runtime.streams import BUFFER, SocketStream
from sandbox_warden.relay import SOCKET_NAME

_HEADER = struct.Struct(">BxxxI")
_STDOUT, _STDERR = 1, 2
_MAX_STDERR = 4096
_ANSWER_S = 30.0
_SWITCHING_PROTOCOLS = 101
_GONE = (404, 409)
"""404: no such container or exec. 409: the container is not running."""
_CLONE_NEWNET = 0x40000000
_PATIENCE_S = 5.0
"""In a box that was just started, the warden may not listen yet."""
_AGAIN_S = 0.01
_LOOK_EVERY = 10
"""Check on every tenth attempt whether the process still exists."""
_libc = ctypes.CDLL(None, use_errno=True)


class Demultiplexer:
    """Splits the frames of an exec into stdout and stderr."""

    def __init__(self) -> None:
        self.stderr = b""
        self._header = b""
        self._stream = 0
        self._left = 0

    def feed(self, data: bytes) -> bytes:
        """The bytes of stdout in data. The first 4 KiB of stderr are kept in `stderr`."""
        out: list[bytes] = []
        position = 0
        while position < len(data):
            if self._left == 0:
                missing = _HEADER.size - len(self._header)
                self._header += data[position : position + missing]
                position += missing
                if len(self._header) == _HEADER.size:
                    self._stream, self._left = _HEADER.unpack(self._header)
                    self._header = b""
                continue
            piece = data[position : position + self._left]
            position += len(piece)
            self._left -= len(piece)
            if self._stream == _STDOUT:
                out.append(piece)
            elif self._stream == _STDERR:
                self.stderr = (self.stderr + piece)[:_MAX_STDERR]
        return b"".join(out)


class ExecStream(SocketStream):
    """A ByteStream to the process of an exec."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self._frames = Demultiplexer()
        self._begun = False

    async def read(self) -> bytes:
        while True:
            data = await super().read()
            out = self._frames.feed(data)
            if out and not self._begun:
                _check_first(out)
                self._begun = True
            if out or not data:
                return out

    async def close(self) -> None:
        # Not wait_closed(): concurrent callers share its future, so cancelling one cancels all.
        self._writer.transport.abort()


def _check_first(data: bytes) -> None:
    """If an engine cannot enter a container, it writes the error to stdout ("OCI runtime exec
    failed"). A warden's first byte is the high byte of a frame length: zero.
    """
    if data[0] != 0:
        message = " ".join(data[:_MAX_STDERR].decode("utf-8", "replace").split())
        raise ConnectionResetError(f"the relay did not start: {message[:300]}")


async def open_exec(engine: Engine, exec_id: str, *, gone: str) -> ExecStream:
    """Start a created exec and take over its connection.

    Raises SessionLost with the message `gone` if its container is not running any more,
    RuntimeUnavailable if the engine does not answer or refuses.
    """
    try:
        reader, writer = await engine.endpoint.connect()
    except OSError as exc:
        raise engine.unreachable(exc) from exc
    try:
        async with asyncio.timeout(_ANSWER_S):
            await _upgrade(reader, writer, exec_id, gone)
    except (OSError, EOFError, LookupError, ValueError, asyncio.LimitOverrunError) as exc:
        writer.close()
        raise engine.unreachable(exc) from exc
    except BaseException:
        writer.close()
        raise
    if not engine.endpoint.path:
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return ExecStream(reader, writer)


async def _upgrade(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, exec_id: str, gone: str
) -> None:
    body = json.dumps({"Detach": False, "Tty": False})
    writer.write(
        f"POST /exec/{exec_id}/start HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\n"
        f"Upgrade: tcp\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        f"{body}".encode()
    )
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    if status != _SWITCHING_PROTOCOLS:
        answer = (await reader.read(1000)).decode("utf-8", "replace")
        if status in _GONE or "is not running" in answer:
            raise SessionLost(gone)
        raise RuntimeUnavailable(f"the Docker engine refused a stream ({status}): {answer.strip()}")


class NoNetnsStream(Exception):
    """The warden cannot be reached this way."""


class NetnsStream(SocketStream):
    """A ByteStream. The warden ends it when the connection `sign_of_life` is closed."""

    sign_of_life: socket.socket

    async def close(self) -> None:
        self.sign_of_life.close()
        await super().close()


async def open_netns_stream(pid: int, container_id: str, *, gone: str) -> NetnsStream:
    """A stream to the warden, which is process `pid` of the host.

    Raises NoNetnsStream, SessionLost with the message `gone`, and TimeoutError if the warden does
    not listen.
    """
    with _process(pid) as process:
        _check_machine(process, container_id)
        sign_of_life = _socket_in_network_of(process)
        ours, theirs = socket.socketpair()
        try:
            await _connect_to(sign_of_life, process, gone)
            _hand_over(sign_of_life, theirs)
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=BUFFER)
        except BaseException:
            ours.close()
            sign_of_life.close()
            raise
        finally:
            theirs.close()
    stream = NetnsStream(reader, writer)
    stream.sign_of_life = sign_of_life
    return stream


@contextlib.contextmanager
def _process(pid: int) -> Iterator[int]:
    """A descriptor of /proc/<pid>: unlike the pid, it cannot refer to a later process."""
    try:
        folder = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise NoNetnsStream(f"no process {pid} on this machine: {exc}") from exc
    try:
        yield folder
    finally:
        os.close(folder)


def _check_machine(process: int, container_id: str) -> None:
    """Check the cgroup: if the engine runs in another pid namespace, its pids are not ours."""
    try:
        groups = _read(process, "cgroup")
    except OSError as exc:
        raise NoNetnsStream(f"cannot read the cgroup of the box's process: {exc}") from exc
    if container_id not in groups:
        raise NoNetnsStream("the engine runs in another pid namespace")


def _read(process: int, name: str) -> str:
    with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)) as file:
        return file.read()


def _socket_in_network_of(process: int) -> socket.socket:
    made: list[socket.socket | OSError] = []

    def enter() -> None:
        try:
            network = os.open("ns/net", os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)
            try:
                if _libc.setns(network, _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            finally:
                os.close(network)
            made.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
        except OSError as exc:
            made.append(exc)

    # In a thread of its own, which ends in the box's namespace instead of switching back.
    thread = threading.Thread(target=enter, name="enter a box's network namespace")
    thread.start()
    thread.join()
    (result,) = made
    if isinstance(result, OSError):
        raise NoNetnsStream(f"cannot enter the box's network namespace: {result}") from result
    return result


async def _connect_to(sock: socket.socket, process: int, gone: str) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        for attempt in itertools.count(1):
            try:
                sock.connect(SOCKET_NAME)
                return
            except (ConnectionRefusedError, BlockingIOError):
                if attempt % _LOOK_EVERY == 0:
                    _still_there(process, gone)
            except OSError as exc:
                raise NoNetnsStream(f"cannot connect to the warden: {exc}") from exc
            await asyncio.sleep(_AGAIN_S)


def _still_there(process: int, gone: str) -> None:
    try:
        _read(process, "cgroup")
    except OSError:
        raise SessionLost(gone) from None


def _hand_over(sign_of_life: socket.socket, theirs: socket.socket) -> None:
    descriptors = array.array("i", [theirs.fileno(), theirs.fileno()])
    try:
        sign_of_life.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
    except OSError as exc:
        raise TimeoutError(f"the warden closed the connection: {exc}") from exc
