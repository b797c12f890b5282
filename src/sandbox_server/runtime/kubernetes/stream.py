"""A byte stream to a process of `pods/exec`: its stdin and stdout, over one WebSocket.

The first byte of a message is its channel (v4.channel.k8s.io). We drive the protocol ourselves, so
that nothing is read before somebody asks for it: what a box sends waits in the box.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from urllib.parse import urlencode, urlsplit

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from sandbox_sdk.protocol.errors import RuntimeUnavailable, SessionLost
from sandbox_server.runtime.kubernetes.api import Api
from sandbox_server.runtime.kubernetes.config import CONTAINER
from sandbox_server.runtime.kubernetes.failures import ApiError, error_for
from sandbox_server.runtime.streams import BUFFER, SocketStream

_PROTOCOL = Subprotocol("v4.channel.k8s.io")
_STDIN, _STDOUT, _STDERR, _ERROR = range(4)
_ANSWER_S = 30.0
_PIECE = 256 << 10
"""Bytes of a message: the other end takes each into memory as a whole."""
_MAX_STDERR = 4096
_NO_CONTAINER = ("container not found", "not running", "not created", "does not have a host")


class ExecStream(SocketStream):
    """A ByteStream to the process of an exec."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, protocol: ClientProtocol
    ) -> None:
        super().__init__(reader, writer)
        self._protocol = protocol
        self._out: deque[bytes] = deque()
        self._channel = b""
        self.said = b""
        """The beginning of its stderr and of the error it ended with."""

    async def read(self) -> bytes:
        while not self._out:
            data = await super().read()
            if not data:
                return b""
            self.feed(data)
        found = b"".join(self._out)
        self._out.clear()
        return found

    def feed(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._take(event)
        self._flush()  # Answers to pings.

    def _take(self, frame: Frame) -> None:
        if frame.opcode not in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
            return
        data = bytes(frame.data)
        if frame.opcode is not Opcode.CONT:
            self._channel, data = data[:1], data[1:]
        if self._channel == bytes([_STDOUT]):
            if data:
                self._out.append(data)
        else:
            self.said = (self.said + data)[:_MAX_STDERR]

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), _PIECE):
            self._send(data[start : start + _PIECE])
            try:
                await self._writer.drain()
            except OSError as exc:
                raise ConnectionError(str(exc)) from exc

    def write_now(self, data: bytes) -> bool:
        transport = self._writer.transport
        if transport.is_closing() or transport.get_write_buffer_size() or len(data) > _PIECE:
            return False
        self._send(data)
        if transport.is_closing():
            raise ConnectionError("the stream was closed")
        return True

    def _send(self, data: bytes) -> None:
        if self._protocol.state is not State.OPEN:
            raise ConnectionError("the exec has ended")
        self._protocol.send_binary(bytes([_STDIN]) + data)
        self._flush()

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data and not self._writer.transport.is_closing():
                self._writer.write(data)

    async def close(self) -> None:
        self._writer.transport.abort()


async def open_exec(api: Api, pod: str, command: list[str], *, gone: str) -> ExecStream:
    """Run a command in a pod and take its stdin and stdout.

    Raises SessionLost with the message `gone` if there is no such pod or it does not run,
    RuntimeUnavailable if the API server or the kubelet does not answer or refuses.
    """
    url = urlsplit(api.access.url)
    secure = url.scheme == "https"
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(
                url.hostname,
                url.port or (443 if secure else 80),
                ssl=api.access.tls if secure else None,
                server_hostname=(api.access.server_name or url.hostname) if secure else None,
                limit=BUFFER,
            )
            try:
                return await _upgrade(api, reader, writer, pod, command, gone)
            except BaseException:
                writer.transport.abort()
                raise
    except (OSError, WebSocketException, TimeoutError) as exc:
        raise api.unreachable(exc) from exc


async def _upgrade(
    api: Api,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    pod: str,
    command: list[str],
    gone: str,
) -> ExecStream:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    protocol = ClientProtocol(
        parse_uri(_address(api, pod, command)), subprotocols=[_PROTOCOL], max_size=None
    )
    request = protocol.connect()
    for name, value in (await api.headers()).items():
        request.headers[name] = value
    protocol.send_request(request)
    for data in protocol.data_to_send():
        writer.write(data)
    stream = ExecStream(reader, writer, protocol)
    while protocol.state is State.CONNECTING and protocol.handshake_exc is None:
        data = await reader.read(_PIECE)
        if not data:
            protocol.receive_eof()
            break
        protocol.receive_data(data)
        for event in protocol.events_received():
            if isinstance(event, Frame):
                stream._take(event)
    if protocol.handshake_exc is not None:
        raise _refused(protocol.handshake_exc, api, gone)
    if protocol.state is not State.OPEN:
        raise ConnectionResetError("closed during the handshake")
    return stream


def _address(api: Api, pod: str, command: list[str]) -> str:
    words = [("command", word) for word in command]
    query = urlencode([*words, ("container", CONTAINER), ("stdin", "1"), ("stdout", "1"),
                       ("stderr", "1")])  # fmt: skip
    base = "ws" + api.access.url.removeprefix("http")
    return f"{base}{api.path('pods', f'{pod}/exec')}?{query}"


def _refused(exc: Exception, api: Api, gone: str) -> Exception:
    if not isinstance(exc, InvalidStatus):
        return exc
    answer: Response = exc.response
    error = ApiError.of(answer.status_code, bytes(answer.body or b""))
    # A kubelet that has just started says that there is no such pod too, without that reason.
    missing = error.reason == "NotFound" and "namespaces" not in error.message
    if missing or any(mark in error.message for mark in _NO_CONTAINER):
        return SessionLost(gone)
    if error.status in (401, 403):
        return error_for(error, "create pods/exec", api.namespace)
    return RuntimeUnavailable(f"the cluster refused a stream ({error.status}): {error.message}")
