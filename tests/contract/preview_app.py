"""The application that tests run in a box, with the standard library alone, and a visitor of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import httpx

from sandbox_sdk.protocol.models import ExecuteRequest, Preview, Target
from sandbox_sdk.protocol.sandboxes import Sandboxes

from .test_sandboxes import run

PORT = 8080
APP = r"""
import base64, hashlib, http.server, json, socketserver, struct, sys, time
from urllib.parse import urlsplit

class App(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args):
        print(self.client_address[1], *args, flush=True)
    def answer(self, body=b"", status=200, **headers):
        self.send_response(status)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()
    def body(self):
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while size := int(self.rfile.readline(), 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        left = int(self.headers.get("Content-Length", 0))
        while left > 0 and (data := self.rfile.read(min(left, 1 << 16))):
            left -= len(data)
            yield data
    def do_GET(self):
        path, query = urlsplit(self.path).path, urlsplit(self.path).query
        if path == "/events":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for n in range(int(query or 5)):
                self.chunk(b"data: %d\n\n" % n)
                time.sleep(0.3)
            self.chunk(b"")
        elif path == "/much":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for _ in range(int(query)):
                self.chunk(b"0123456789abcdef" * 65536)
            self.chunk(b"")
        elif path == "/until-close":
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(b"to the end")
        elif path == "/hints":
            self.wfile.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n")
            self.answer(b"hinted")
        elif path == "/status":
            self.answer(b"", int(query))
        elif path == "/page":
            page = b"<!doctype html><title>A box</title><h1>From the box</h1>"
            self.answer(page, Content_Type="text/html")
        elif path == "/garbage":
            self.wfile.write(b"this is no HTTP\r\n\r\n")
            self.close_connection = True
        elif path == "/cut":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"only this")
            self.close_connection = True
        elif path == "/silent":
            self.close_connection = True
        elif path == "/injected":
            lengths = b"Content-Length: 2\r\nContent-Length: 3\r\n"
            self.wfile.write(b"HTTP/1.1 200 OK\r\n" + lengths + b"\r\nabc")
            self.close_connection = True
        elif path == "/huge-head":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300000 + b"\r\n\r\n")
            self.close_connection = True
        elif path == "/ws":
            self.websocket()
        else:
            seen = {"method": self.command, "target": self.path, "port": self.client_address[1],
                    "headers": [[n.lower(), v] for n, v in self.headers.items()]}
            self.answer(json.dumps(seen).encode(), Content_Type="application/json",
                        Set_Cookie="theirs=1")
    do_HEAD = do_OPTIONS = do_DELETE = do_GET
    def do_POST(self):
        if self.path == "/refuse":
            self.close_connection = True
            return self.answer(b"too much", 413, Connection="close")
        digest, size = hashlib.sha256(), 0
        for data in self.body():
            digest.update(data)
            size += len(data)
        self.answer(json.dumps({"sha256": digest.hexdigest(), "size": size}).encode())
    do_PUT = do_PATCH = do_POST
    def websocket(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        head = ("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
                "Connection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n")
        self.wfile.write((head % accept).encode())
        self.close_connection = True
        while True:
            head = self.rfile.read(2)
            if len(head) < 2:
                return
            kind, size = head[0] & 15, head[1] & 127
            if size == 126:
                (size,) = struct.unpack(">H", self.rfile.read(2))
            elif size == 127:
                (size,) = struct.unpack(">Q", self.rfile.read(8))
            mask = self.rfile.read(4)
            data = self.rfile.read(size)
            masks = (mask * (size // 4 + 1))[:size]
            plain = int.from_bytes(data, "big") ^ int.from_bytes(masks, "big")
            data = plain.to_bytes(size, "big")
            self.wfile.write(bytes([0x80 | kind]))
            if size < 126:
                self.wfile.write(bytes([size]))
            elif size < 65536:
                self.wfile.write(bytes([126]) + struct.pack(">H", size))
            else:
                self.wfile.write(bytes([127]) + struct.pack(">Q", size))
            self.wfile.write(data)
            if kind == 8:
                return

class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128

Server(("127.0.0.1", int(sys.argv[1])), App).serve_forever()
"""


async def serving(sandboxes: Sandboxes, name: str = "t", port: int = PORT) -> None:
    """Have the application listen in the sandbox of a thread."""
    await run(sandboxes, name, f"cat > /tmp/app.py <<'END'\n{APP}\nEND")
    command = f"exec python3 /tmp/app.py {port} > /tmp/app.log 2>&1"
    await sandboxes.execute(ExecuteRequest(thread_id=name, command=command, background=True))
    listens = f"(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null"
    looking = f"for n in $(seq 200); do {listens} && exit; sleep 0.05; done; exit 1"
    assert (await run(sandboxes, name, looking)).exit_code == 0


async def exposed(sandboxes: Sandboxes, name: str = "t", **options: Any) -> Preview:
    return await sandboxes.expose(Target(thread_id=name), options.pop("port", PORT), **options)


class Visitor(httpx.AsyncClient):
    """A browser without a page. It finds names below localhost itself: not every resolver does."""

    def __init__(self, preview: Preview | str, *, cookie: str = "", **options: Any) -> None:
        url = urlsplit(preview if isinstance(preview, str) else preview.url)
        self.host, self.port = url.netloc, url.port or 80
        self.enter = f"/?{url.query}" if url.query else "/"
        headers = {"host": url.netloc, "accept": "text/html", **options.pop("headers", {})}
        if cookie:
            headers["cookie"] = cookie
        base = f"http://127.0.0.1:{self.port}"
        options = {"timeout": 60, "trust_env": False, **options}
        super().__init__(base_url=base, headers=headers, **options)


@contextlib.asynccontextmanager
async def visiting(preview: Preview) -> AsyncIterator[Visitor]:
    """With the cookie of the preview."""
    async with Visitor(preview) as entering:
        answer = await entering.get(entering.enter)
    cookie = answer.headers["set-cookie"].partition(";")[0] if preview.token else ""
    async with Visitor(preview, cookie=cookie) as visitor:
        yield visitor


async def raw(preview: Preview, request: bytes, *, wait_s: float = 10) -> bytes:
    """What comes back for these bytes, until the server closes or falls silent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(preview.url).port)
    found = b""
    try:
        writer.write(request)
        async with asyncio.timeout(wait_s):
            while data := await reader.read(1 << 16):
                found += data
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()
    return found
