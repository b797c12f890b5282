"""A box that may reach little tries to reach more, through the proxy of the server."""

import asyncio
import base64
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from sandbox_server.network.egress import Subject, log_note
from sandbox_server.network.outbound import EgressLimits, Note
from sandbox_server.network.presets import read_presets
from sandbox_server.runtime.warden.client import WardenBox, WardenClient
from tests.contract.conftest import MakeBox
from tests.egress import Serve, closed, internet, notes, run, serve
from tests.internet import HERE, Internet

from .conftest import SMALL, answers, ask_python

__all__ = ["internet", "notes", "serve"]

ELSEWHERE = "127.0.0.2"
"""Of this machine too, and named by no rule."""
ASK = """
import base64, json, socket, sys
answers = []
for text in json.loads({requests!r}):
    s = socket.create_connection(("127.0.0.1", 3128))
    s.settimeout(15)
    data = b""
    try:
        s.sendall(base64.b64decode(text))
        s.shutdown(1)
        while piece := s.recv(65536):
            data += piece
    except OSError: pass
    s.close()
    answers.append(base64.b64encode(data).decode())
print(json.dumps(answers))
"""


@pytest.fixture
async def box(make_box: MakeBox) -> WardenBox:
    return await make_box(limits=SMALL, network="allowlist")


class Trap:
    """Counts who connects to an address that nobody may reach."""

    def __init__(self, port: int) -> None:
        self._listener = socket.create_server((ELSEWHERE, port))
        self.caught = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.caught += 1
            connection.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def trap(internet: Internet) -> Iterator[Trap]:
    made = Trap(internet.http)
    yield made
    made.close()
    assert made.caught == 0


async def ask(warden: WardenClient, *requests: bytes) -> list[bytes]:
    """What the proxy answers to these bytes, each on a connection of its own."""
    texts = json.dumps([base64.b64encode(each).decode() for each in requests])
    found = await ask_python(warden, ASK.format(requests=texts))
    return [base64.b64decode(each) for each in found]


def status(answer: bytes) -> int:
    return int(answer.split(b" ")[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def connect(where: str) -> bytes:
    return f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n".encode()


async def test_a_name_that_changes_its_address(
    warden: WardenClient, serve: Serve, internet: Internet, trap: Trap
) -> None:
    """What was judged is connected to, and the next connection is judged anew."""
    moves = f"http://moves.test:{internet.http}/hello"
    await serve(*internet.here("moves.test"))
    internet.resolver.table["moves.test"] = [HERE, ELSEWHERE]
    assert await run(warden, f"curl -sS {moves}") == "hello\n"
    assert internet.resolver.asked == ["moves.test"]
    told = await run(warden, f"curl -sS -w ' %{{http_code}}' {moves}")
    assert f"is at {ELSEWHERE}, which is not a public address" in told
    assert told.endswith(" 403")
    internet.resolver.table["moves.test"] = [f"{ELSEWHERE} {HERE}"]
    assert await run(warden, f"curl -sS {moves}") == "hello\n"


async def test_redirects_to_what_is_private(
    warden: WardenClient, serve: Serve, internet: Internet, trap: Trap
) -> None:
    await serve(*internet.here("web.test"))
    for to in (f"http://{ELSEWHERE}:{internet.http}/", "http://169.254.169.254/latest/meta-data/"):
        url = f"http://web.test:{internet.http}/to?url={to}"
        told = await run(warden, f"curl -sSL -w ' %{{http_code}}' '{url}'")
        assert "may not GET" in told
        assert told.endswith(" 403")


async def test_a_tunnel_begins_behind_its_request(
    warden: WardenClient, serve: Serve, internet: Internet
) -> None:
    """What follows a CONNECT is for the host, so that it has no body."""
    await serve(*internet.here("web.test"))
    start = connect(f"web.test:{internet.http}")[:-2]
    found = await ask(
        warden,
        start + b"Content-Length: 5\r\n\r\nhello",
        start + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    )
    assert [status(each) for each in found] == [400, 400], found


async def test_a_host_header_that_says_another_name(
    warden: WardenClient, serve: Serve, internet: Internet
) -> None:
    await serve(*internet.here("web.test", "other.test"))
    port = internet.http
    found = await ask(
        warden,
        f"GET http://web.test:{port}/hello HTTP/1.1\r\nHost: other.test:{port}\r\n\r\n".encode(),
        f"GET http://web.test:{port}/hello HTTP/1.1\r\nHost: web.test:1\r\n\r\n".encode(),
        f"GET http://web.test:{port}/hello HTTP/1.1\r\n\r\n".encode(),
        f"GET http://web.test:{port}/hello HTTP/1.1\r\nHost: web.test:{port}\r\n"
        f"Host: other.test:{port}\r\n\r\n".encode(),
        f"CONNECT web.test:{port} HTTP/1.1\r\nHost: other.test:{port}\r\n\r\n".encode(),
    )
    assert [status(each) for each in found] == [400] * 5
    assert internet.seen == []


HELLO = """
import socket, ssl, sys
name = sys.argv[2] or None
s = socket.create_connection(("127.0.0.1", 3128))
s.settimeout(15)
s.sendall(f"CONNECT {{sys.argv[1]}} HTTP/1.1\\r\\nHost: {{sys.argv[1]}}\\r\\n\\r\\n".encode())
assert b" 200 " in s.recv(4096)
context = ssl.create_default_context()
context.check_hostname = False
context.verify_mode = ssl.CERT_NONE
try:
    secure = context.wrap_socket(s, server_hostname=name)
    secure.sendall(b"GET /hello HTTP/1.0\\r\\n\\r\\n")
    print(secure.recv(4096).decode()[:15])
except OSError as exc:
    print("cut", exc)
"""


async def test_a_server_name_that_says_another_name(
    warden: WardenClient, serve: Serve, internet: Internet, notes: list[Note]
) -> None:
    egress = await serve(*internet.here("web.test"))
    await run(warden, f"cat > /tmp/hello.py <<'END'\n{HELLO.format()}END")
    where = f"web.test:{internet.https}"
    assert "200" in await run(warden, f"python3 /tmp/hello.py {where} WEB.test")
    for name in ("other.test", "web.test.other.test", "''"):
        told = await run(warden, f"python3 /tmp/hello.py {where} {name}")
        assert told.startswith("cut")
        assert "UNRECOGNIZED_NAME" in told.upper().replace(" ", "_")
    assert "cut" in await run(warden, f"python3 /tmp/hello.py {HERE}:{internet.https} web.test")
    await closed(egress)
    assert len(internet.seen) == 1
    assert [note.verdict for note in notes] == ["allowed", *["refused"] * 4]


async def test_a_handshake_that_is_none(
    warden: WardenClient, serve: Serve, internet: Internet, notes: list[Note]
) -> None:
    egress = await serve(*internet.here("web.test"))
    where = connect(f"web.test:{internet.https}")
    for hello in (
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\x40\x00",
    ):
        (answer,) = await ask(warden, where + hello)
        assert answer.endswith(b"\x02\x70")
    await closed(egress)
    assert [note.verdict for note in notes] == ["refused"] * 4
    assert internet.seen == []


async def test_users_and_passwords_in_a_url(
    warden: WardenClient, serve: Serve, internet: Internet, trap: Trap
) -> None:
    await serve(*internet.here("web.test"))
    port = internet.http
    urls = [
        f"http://web.test@{ELSEWHERE}:{port}/",
        f"http://web.test:{port}@{ELSEWHERE}:{port}/",
        f"http://user:word@web.test:{port}/hello",
        f"http://web.test:{port}#@{ELSEWHERE}:{port}/",
        f"http://{ELSEWHERE}:{port}\\@web.test:{port}/",
        f"http:web.test:{port}/hello",
        f"//web.test:{port}/hello",
        "/hello",
        "*",
        f"ftp://web.test:{port}/hello",
        f"file://web.test:{port}/etc/passwd",
    ]
    found = await ask(
        warden,
        *(f"GET {url} HTTP/1.1\r\nHost: web.test:{port}\r\n\r\n".encode() for url in urls),
    )
    assert {url: status(each) for url, each in zip(urls, found, strict=True)} == dict.fromkeys(
        urls, 400
    )
    assert internet.seen == []


async def test_addresses_in_every_spelling(
    warden: WardenClient, serve: Serve, internet: Internet, trap: Trap
) -> None:
    """Even where every public host is allowed."""
    await serve(mode="open")
    port = internet.http
    internet.resolver.table |= {
        "localhost": [HERE],
        "inside.test": ["10.0.0.1"],
        "meta.test": ["169.254.169.254"],
        "mapped.test": ["::ffff:127.0.0.1"],
        "six.test": ["::1"],
    }
    spellings = [
        "169.254.169.254:80", "[::ffff:169.254.169.254]:80", "[::ffff:a9fe:a9fe]:80",
        "[::169.254.169.254]:80", "2852039166:80", "0xa9fea9fe:80", "0251.0376.0251.0376:80",
        "0xa9.254.169.254:80", "169.254.43518:80", "[64:ff9b::a9fe:a9fe]:80",
        "[2002:a9fe:a9fe::]:80", "[2001:0:a9fe:a9fe::1]:80", "[fd00:ec2::254]:80",
        "100.100.100.200:80", "168.63.129.16:80", "192.0.0.192:80",
        f"{HERE}:{port}", f"{ELSEWHERE}:{port}", f"127.1:{port}", f"0:{port}", f"0.0.0.0:{port}",
        f"2130706433:{port}", f"0x7f.1:{port}", f"017700000001:{port}", f"127.0.0.1.:{port}",
        f"[::1]:{port}", f"[::]:{port}", f"[::ffff:127.0.0.1]:{port}", f"[::127.0.0.1]:{port}",
        f"[fe80::1%lo]:{port}", "10.0.0.1:80", "172.17.0.1:80", "192.168.0.1:80", "224.0.0.1:80",
        "255.255.255.255:80", "[ff02::1]:80", "[fe80::1]:80", "[fc00::1]:80",
        f"localhost:{port}", "inside.test:80", "meta.test:80", f"mapped.test:{port}",
        f"six.test:{port}", "web.test:0", "web.test:65536", "web.test", ":80", "web.test:80:80",
        "%31%32%37.0.0.1:80", "web..test:80", "-web.test:80", "web.test\x00:80",
    ]  # fmt: skip
    found = await ask(warden, *map(connect, spellings))
    got = {where: status(each) for where, each in zip(spellings, found, strict=True)}
    assert {where: code for where, code in got.items() if code not in (400, 403)} == {}
    assert internet.seen == []


async def test_requests_inside_of_requests(
    warden: WardenClient, serve: Serve, internet: Internet
) -> None:
    """Whatever two readers could take differently is refused, or written anew."""
    await serve(*internet.here("web.test"))
    line = f"http://web.test:{internet.http}/hello HTTP/1.1\r\nHost: web.test:{internet.http}\r\n"
    hidden = b"GET /smuggled HTTP/1.1\r\nHost: web.test\r\n\r\n"
    size = str(len(hidden)).encode()

    def post(headers: bytes, body: bytes = b"") -> bytes:
        return b"POST " + line.encode() + headers + b"\r\n" + body

    chunked = b"Transfer-Encoding: chunked\r\n"
    found = await ask(
        warden,
        post(b"Content-Length: " + size + b"\r\n" + chunked, b"0\r\n\r\n" + hidden),
        post(chunked + b"Content-Length: 5\r\n", b"0\r\n\r\n" + hidden),
        post(b"Content-Length: 0\r\nContent-Length: " + size + b"\r\n", hidden),
        post(b"Content-Length: 0, " + size + b"\r\n", hidden),
        post(b"Content-Length: +0\r\n", hidden),
        post(b"Content-Length: -1\r\n", hidden),
        post(b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n" + hidden),
        post(b"Transfer-Encoding: chunked, identity\r\n", b"0\r\n\r\n" + hidden),
        post(b"Transfer-Encoding : chunked\r\n", b"0\r\n\r\n" + hidden),
        post(chunked + chunked, b"0\r\n\r\n" + hidden),
        post(b" Transfer-Encoding: chunked\r\n", b"0\r\n\r\n" + hidden),
        post(b"X: a\r\n Content-Length: 5\r\n", hidden),
        post(b"X: a\nContent-Length: 0\n", hidden),
        post(b"X: a\rContent-Length: 0\r\n", hidden),
        post(b"X: a\x00b\r\n", hidden),
        post(b"", b"").replace(b"HTTP/1.1", b"HTTP/1.0")[:-2] + chunked + b"\r\n0\r\n\r\n" + hidden,
        post(chunked, b"0\n\n" + hidden),
        post(chunked, b"5;\r\n: x\r\nhello\r\n0\r\n\r\n" + hidden),
        post(chunked, b"0x5\r\nhello\r\n0\r\n\r\n" + hidden),
        post(chunked, b"FFFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n" + hidden),
        post(b"Connection: Content-Length\r\nContent-Length: " + size + b"\r\n", hidden),
        b"GET " + line.encode() + b"Upgrade: h2c\r\nConnection: Upgrade\r\n\r\n" + hidden,
        b"GET http://web.test:" + str(internet.http).encode() + b"/hello\r\n\r\n" + hidden,
        b"\x16\x03\x01\x00\x00" + hidden,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + hidden,
    )
    assert [seen.path for seen in internet.seen if seen.path != "/hello"] == []
    assert all(each.startswith(b"HTTP/1.1 ") for each in found), found
    for seen in internet.seen:
        framing = seen.header("content-length") + seen.header("transfer-encoding")
        assert len(framing) <= 1
        assert not seen.header("upgrade")
        assert seen.header("connection") == ["close"]


async def test_lines_in_what_becomes_a_header(
    warden: WardenClient, serve: Serve, internet: Internet
) -> None:
    await serve(*internet.here("web.test"))
    url = f"http://web.test:{internet.http}"
    await ask(
        warden,
        f"GET {url}/hello%0d%0aX-Injected:%201 HTTP/1.1\r\nHost: web.test\r\n\r\n".encode(),
        f"GET {url}/hello\rX-Injected: 1 HTTP/1.1\r\nHost: web.test\r\n\r\n".encode(),
        f"GET {url}/hello\tHTTP/1.1 HTTP/1.1\r\nHost: web.test\r\n\r\n".encode(),
        f"GET {url}/hello HTTP/1.1\r\nHost: web.test\r\nA: b\r X-Injected: 1\r\n\r\n".encode(),
        f"GET\nX {url}/hello HTTP/1.1\r\nHost: web.test\r\n\r\n".encode(),
        f"GET {url}/to?url=http://a/%0d%0aX-Injected:1 HTTP/1.1\r\nHost: web.test\r\n\r\n".encode(),
    )
    assert not [seen for seen in internet.seen if seen.header("x-injected")]


STORM = """
import socket, threading, time, collections
got = collections.Counter()
def work():
    for _ in range({each}):
        try:
            s = socket.create_connection(("127.0.0.1", 3128), 30)
            s.settimeout(30)
            s.sendall(b"CONNECT other.test:443 HTTP/1.1\\r\\nHost: other.test:443\\r\\n\\r\\n")
            got[s.recv(12)[9:]] += 1
            s.close()
        except OSError as exc:
            got[type(exc).__name__] += 1
threads = [threading.Thread(target=work) for _ in range(10)]
[t.start() for t in threads]
[t.join() for t in threads]
print(dict(got))
"""


@pytest.mark.timeout(240)
async def test_ten_thousand_connections(
    warden: WardenClient,
    serve: Serve,
    internet: Internet,
    neighbour: WardenClient,
    runtime_name: str,
) -> None:
    """A tenth of them on gVisor, which takes a minute for all."""
    egress = await serve(*internet.here("web.test"), limits=EgressLimits(connections=8))
    each = 100 if runtime_name.endswith("gvisor") else 1000
    code = STORM.format(each=each)
    storm = asyncio.create_task(warden.run("python3 -", stdin=code.encode(), timeout_s=200))
    most = 0
    while not storm.done():
        await asyncio.sleep(0.05)
        most = max(most, egress.open)
        await answers(neighbour, 15)
    assert "b'403'" in (await storm).output
    assert egress.connections >= 9.9 * each
    assert most <= 9
    assert await run(warden, f"curl -sS http://web.test:{internet.http}/hello") == "hello\n"


async def test_whoever_does_not_read_holds_up_nobody(
    warden: WardenClient, serve: Serve, internet: Internet
) -> None:
    await serve(*internet.here("web.test"))
    port = internet.http
    stalled = (
        "import socket, time\n"
        "held = []\n"
        "for n in range(20):\n"
        "    s = socket.create_connection(('127.0.0.1', 3128))\n"
        f"    where = b'http://web.test:{port}/large?pieces=2000'\n"
        f"    s.sendall(b'GET ' + where + b' HTTP/1.1\\r\\nHost: web.test:{port}\\r\\n\\r\\n')\n"
        "    held.append(s)\n"
        "print('held', flush=True)\n"
        "time.sleep(60)\n"
    )
    await warden.run(f'python3 -c "{stalled}" > /tmp/held &')
    await run(warden, "until grep -q held /tmp/held; do sleep 0.1; done")
    for _ in range(5):
        took = await run(
            warden, f"curl -sS -o /dev/null -w '%{{time_total}}' http://web.test:{port}/hello"
        )
        assert float(took) < 5


async def test_half_a_request_is_not_waited_for_for_ever(
    warden: WardenClient, serve: Serve, internet: Internet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox_server.network.http_proxy.HEAD_S", 0.5)
    egress = await serve(*internet.here("web.test"))
    half = (
        "import socket; s = [socket.create_connection(('127.0.0.1', 3128)) for _ in range(10)];"
        " [x.sendall(b'GET http://web.test/ HTTP/1.1') for x in s];"
        " print([x.recv(10) for x in s].count(b''))"
    )
    assert await run(warden, f'python3 -c "{half}"') == "10\n"
    await closed(egress)


async def test_a_secret_is_in_no_error_and_no_log(
    warden: WardenClient,
    serve: Serve,
    internet: Internet,
    notes: list[Note],
    tmp_path: Path,
) -> None:
    """Where the host fails to prove who it is, it does not get the secret either."""
    (tmp_path / "token").write_text("s3cret-value\n")
    presets = tmp_path / "presets"
    presets.mkdir()
    (presets / "api.yaml").write_text(
        f"rules:\n  - host: wrong.test\n    ports: [{internet.https}]\n"
        f"    headers: {{X-Key: '{{file:../token}}'}}\n    ca: {internet.ca}\n"
        f"  - host: web.test\n    ports: [{internet.https}]\n"
        f"    headers: {{X-Key: '{{file:../token}}'}}\n"
    )
    internet.here("web.test", "wrong.test")
    with capture_logs() as logs:
        address = f"{HERE}:{internet.https}"
        egress = await serve("api", address, presets=read_presets(presets))
        for name in ("wrong.test", "web.test"):
            url = f"http://{name}:{internet.https}/echo"
            told = await run(warden, f"curl -sS -v -w ' %{{http_code}}' {url} 2>&1")
            assert "has no valid certificate" in told
            assert "s3cret" not in told
        (tmp_path / "token").unlink()
        told = await run(warden, f"curl -sS http://web.test:{internet.https}/echo")
        await closed(egress)
        for note in notes:
            log_note(Subject("t", "t", "s"), note)
    assert internet.seen == []
    assert "s3cret" not in repr((logs, notes, egress, egress._out))
    assert len(logs) == 3
