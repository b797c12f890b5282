"""The server's end of a WebSocket, byte by byte over a real socket."""

import contextlib
import json
import socket
from collections.abc import Iterator

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from tests.api.serving import Served, served, whole_answer

HEAD = b"GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
VERSION = b"Sec-WebSocket-Version: 13\r\n"
KEY = b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
CALL = b'{"id": 1, "op": "health"}'


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as made:
        yield made


class Peer:
    """A client that sends what it is told to, and knows the rules of what comes."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._frames: list[Frame] = []
        self.rules = ClientProtocol(parse_uri("ws://localhost/ws"), max_size=None)
        self.rules.send_request(self.rules.connect())
        self.send(*self.rules.data_to_send())
        while self.rules.state is not State.OPEN:
            self._receive()

    def send(self, *data: bytes) -> None:
        self._client.sendall(b"".join(data))

    def frame(self, opcode: Opcode, data: bytes, *, fin: bool = True, mask: bool = True) -> None:
        self.send(Frame(opcode, data, fin).serialize(mask=mask, extensions=[]))

    def _receive(self) -> None:
        data = self._client.recv(1 << 16)
        assert data, "the server has closed"
        self.rules.receive_data(data)
        assert self.rules.handshake_exc is None
        self._frames += [each for each in self.rules.events_received() if isinstance(each, Frame)]

    def next(self) -> Frame:
        while not self._frames:
            self._receive()
        return self._frames.pop(0)

    def answer(self) -> object:
        frame = self.next()
        assert frame.opcode is Opcode.TEXT
        return json.loads(bytes(frame.data))

    def closed(self) -> int:
        """The code it is closed with; the connection ends, too."""
        frame = self.next()
        assert frame.opcode is Opcode.CLOSE
        assert whole_answer(self._client) == b""
        return int.from_bytes(bytes(frame.data)[:2], "big")


@pytest.fixture
def peer(server: Served) -> Iterator[Peer]:
    with server.connect() as client:
        client.settimeout(30)
        yield Peer(client)


@pytest.mark.parametrize(
    "request_head",
    [
        HEAD + VERSION,
        HEAD + KEY,
        HEAD + VERSION + KEY + KEY,
        HEAD + VERSION + b"Sec-WebSocket-Key: short\r\n",
        HEAD + VERSION + b"Sec-WebSocket-Key: AAAA\r\n",
        HEAD + VERSION + "Sec-WebSocket-Key: ÄAAAAAAAAAAAAAAAAAAAA==\r\n".encode(),
        HEAD + b"Sec-WebSocket-Version: 8\r\n" + KEY,
        HEAD.replace(b"GET", b"POST") + VERSION + KEY,
        HEAD.replace(b"1.1", b"1.0") + VERSION + KEY,
    ],
)
def test_requests_that_ask_in_another_way(server: Served, request_head: bytes) -> None:
    with server.connect() as client:
        client.sendall(request_head + b"\r\n")
        answer = whole_answer(client)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"invalid_request"' in answer


def test_a_target_with_a_host_and_an_escape(server: Served) -> None:
    head = HEAD.replace(b"/ws", b"http://localhost/%77s?a=b") + VERSION + KEY
    with server.connect() as client:
        client.sendall(head + b"\r\n")
        answer = client.recv(1000)
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert b"sec-websocket-accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=\r\n" in answer


def test_messages_in_pieces_and_several_at_once(peer: Peer) -> None:
    peer.frame(Opcode.TEXT, CALL[:5], fin=False)
    peer.frame(Opcode.PING, b"between")
    peer.frame(Opcode.CONT, CALL[5:9], fin=False)
    peer.frame(Opcode.CONT, CALL[9:])
    pong = peer.next()
    assert (pong.opcode, bytes(pong.data)) == (Opcode.PONG, b"between")
    assert isinstance(answer := peer.answer(), dict)
    assert answer["id"] == 1
    two = Frame(Opcode.BINARY, CALL).serialize(mask=True, extensions=[])
    peer.send(two + two[:7])
    assert peer.answer()
    peer.send(two[7:])
    assert peer.answer()


def test_more_than_is_read_ahead(peer: Peer) -> None:
    """Whoever sends faster than is answered waits, and loses nothing."""
    call = CALL[:-1] + b" " * 3000 + b"}"
    for _ in range(200):
        peer.frame(Opcode.TEXT, call)
    for _ in range(200):
        assert isinstance(answer := peer.answer(), dict)
        assert answer["id"] == 1


@pytest.mark.parametrize(
    ("opcode", "data", "mask", "code"),
    [
        (Opcode.TEXT, b"\xff\xfe", True, 1007),
        (Opcode.TEXT, CALL, False, 1002),
        (Opcode.CONT, CALL, True, 1002),
        (Opcode.BINARY, bytes((1 << 20) + 1), True, 1009),
        (Opcode.CLOSE, (1000).to_bytes(2, "big"), True, 1000),
        (Opcode.CLOSE, b"\x00", True, 1002),
    ],
)
def test_how_it_ends(
    server: Served, peer: Peer, opcode: Opcode, data: bytes, mask: bool, code: int
) -> None:
    with contextlib.suppress(OSError):
        peer.frame(opcode, data, mask=mask)
    assert peer.closed() == code
    assert server.http.get("/health").status_code == 200


def test_an_error_closes_it_with_a_code(server: Served) -> None:
    """Others are answered while the client has not said that it has ended, too."""
    with server.connect() as client:
        client.sendall(HEAD.replace(b"/ws", b"/connect") + VERSION + KEY + b"\r\n")
        client.settimeout(30)
        said = b""
        while (4422).to_bytes(2, "big") not in said:
            said += client.recv(1000)
        assert said.startswith(b"HTTP/1.1 101 ")
        assert b"invalid_request" in said
        assert server.http.get("/health").status_code == 200
