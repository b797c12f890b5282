"""A small internet on this machine: web servers, and names that lead to them."""

import base64
import datetime
import hashlib
import io
import json
import socket
import ssl
import subprocess
import tarfile
import threading
import time
import urllib.parse
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sandbox_server.network.hosts import IPAddress

HERE = "127.0.0.1"
PACKAGE = "internet-test-package"
PIECE = bytes(range(256)) * 256
"""What large files are made of."""


class TableResolver:
    """Names by table. A name with several answers gives one after the other, the last one for
    good: as somebody does who wants to be judged by one address and reached at another."""

    def __init__(self, table: Mapping[str, Sequence[str]] | None = None) -> None:
        self.table = {name: list(found) for name, found in (table or {}).items()}
        self.asked: list[str] = []

    async def resolve(self, name: str) -> Sequence[IPAddress]:
        self.asked.append(name)
        if name not in self.table:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        answers = self.table[name]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return [ip_address(each) for each in answer.split()]

    def close(self) -> None:
        pass


@dataclass
class Seen:
    """A request that a server got."""

    method: str
    path: str
    headers: list[tuple[str, str]] = field(default_factory=list)

    def header(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_Server"

    def log_message(self, *_args: Any) -> None:
        pass

    def _answer(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(self) -> "hashlib._Hash":
        found = hashlib.sha256()
        left = int(self.headers.get("Content-Length", 0))
        while left:
            data = self.rfile.read(min(left, 1 << 16))
            left -= len(data)
            found.update(data)
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline(), 16):
                found.update(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
        return found

    def _any(self) -> None:
        self.server.seen.append(Seen(self.command, self.path, list(self.headers.items())))
        parts = urllib.parse.urlsplit(self.path)
        asked = dict(urllib.parse.parse_qsl(parts.query))
        body = self._body()
        match parts.path:
            case "/hello":
                self._answer(b"hello\n")
            case "/digest":
                self._answer(body.hexdigest().encode())
            case "/echo":
                self._answer(json.dumps([self.command, self.path, *self.headers.items()]).encode())
            case "/to":
                self._answer(b"", 302, Location=asked["url"])
            case "/large":
                self._large(int(asked["pieces"]))
            case "/slow":
                self._slow()
            case _:
                super().do_GET()

    do_GET = do_POST = do_PUT = do_HEAD = _any  # noqa: N815

    def _large(self, pieces: int) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(pieces * len(PIECE)))
        self.end_headers()
        for _ in range(pieces):
            self.wfile.write(PIECE)

    def _slow(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for _ in range(5):
            self.wfile.write(b"5\r\ntick\n\r\n")
            time.sleep(0.1)
        self.wfile.write(b"0\r\n\r\n")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, folder: Path, seen: list[Seen], context: ssl.SSLContext | None) -> None:
        self.seen = seen
        self.context = context
        super().__init__((HERE, 0), lambda *args: _Handler(*args, directory=str(folder)))

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self.context is None:
            super().finish_request(request, client_address)
            return
        with self.context.wrap_socket(request, server_side=True) as secure:
            super().finish_request(secure, client_address)

    def handle_error(self, _request: Any, _client_address: Any) -> None:
        pass  # Whoever is cut off is not our concern.


def self_signed(*names: str) -> tuple[bytes, bytes]:
    """A certificate for these names and addresses, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "this machine")])
    now = datetime.datetime.now(datetime.UTC)
    named: list[x509.GeneralName] = [
        x509.IPAddress(ip_address(each)) if each == HERE else x509.DNSName(each) for each in names
    ]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(named), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


class Internet:
    """Use as a context manager. Files in `folder` are served by both servers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: list[Seen] = []
        self.resolver = TableResolver()
        self.ca = folder.with_name("ca.pem")
        folder.mkdir()
        context = self._context()
        self._servers = [_Server(folder, self.seen, None), _Server(folder, self.seen, context)]
        self.http, self.https = (server.server_address[1] for server in self._servers)

    def __enter__(self) -> "Internet":
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
        return self

    def __exit__(self, *_exc_info: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def here(self, *names: str) -> list[str]:
        """Rules that allow names of this machine, at the ports of the servers."""
        self.resolver.table |= {name: [HERE] for name in names}
        ports = (self.http, self.https)
        return [f"{name}:{port}" for name in (*names, HERE) for port in ports]

    def _context(self) -> ssl.SSLContext:
        certificate, key = self_signed("web.test", "*.web.test", HERE)
        self.ca.write_bytes(certificate)
        both = self.folder.with_name("server.pem")
        both.write_bytes(certificate + key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(both)
        return context

    def add_package(self) -> None:
        """A package index with one package, at /simple/."""
        name = PACKAGE.replace("-", "_")
        about = f"{name}-1.0.dist-info"
        files = {
            f"{name}.py": "answer = 42\n",
            f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n",
            f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(f"{path},,\n" for path in (*files, f"{about}/RECORD"))
        place = self.folder / "simple" / PACKAGE
        place.mkdir(parents=True)
        wheel = f"{name}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(place / wheel, "w") as archive:
            for path, text in {**files, f"{about}/RECORD": record}.items():
                archive.writestr(path, text)
        (place / "index.html").write_text(f'<!DOCTYPE html><a href="{wheel}">{wheel}</a>')

    def add_npm_package(self) -> None:
        """A registry with one package, at /npm/."""
        place = self.folder / "npm"
        place.mkdir()
        about = {"name": PACKAGE, "version": "1.0.0", "main": "index.js"}
        files = {"package.json": json.dumps(about), "index.js": "module.exports = 42\n"}
        with tarfile.open(place / "package.tgz", "w:gz") as archive:
            for name, text in files.items():
                entry = tarfile.TarInfo(f"package/{name}")
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text.encode()))
        tarball = f"http://web.test:{self.http}/npm/package.tgz"
        digest = base64.b64encode(hashlib.sha512((place / "package.tgz").read_bytes()).digest())
        version = {**about, "dist": {"tarball": tarball, "integrity": f"sha512-{digest.decode()}"}}
        listing = {
            "name": PACKAGE,
            "dist-tags": {"latest": "1.0.0"},
            "versions": {"1.0.0": version},
        }
        (place / PACKAGE).write_text(json.dumps(listing))

    def add_crate(self) -> None:
        """A sparse registry of cargo with one crate, at /crates/."""
        place, name = self.folder / "crates", PACKAGE
        entry = place / name[:2] / name[2:4] / name
        entry.parent.mkdir(parents=True)
        about = f'[package]\nname = "{name}"\nversion = "1.0.0"\nedition = "2021"\n'
        files = {"Cargo.toml": about, "src/lib.rs": "pub fn answer() -> i32 { 42 }\n"}
        with tarfile.open(place / "package.crate", "w:gz") as archive:
            for path, text in files.items():
                member = tarfile.TarInfo(f"{name}-1.0.0/{path}")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
        digest = hashlib.sha256((place / "package.crate").read_bytes()).hexdigest()
        version = {"name": name, "vers": "1.0.0", "deps": [], "cksum": digest, "features": {},
                   "yanked": False}  # fmt: skip
        entry.write_text(json.dumps(version) + "\n")
        url = f"http://web.test:{self.http}/crates/package.crate"
        (place / "config.json").write_text(json.dumps({"dl": f"{url}?{{crate}}-{{version}}"}))

    def add_debian_package(self) -> None:
        """A repository of apt with one package, at /debian/."""
        place, tree = self.folder / "debian", self.folder.with_name("package")
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "DEBIAN").chmod(0o755)
        about = (
            f"Package: {PACKAGE}\nVersion: 1.0\nArchitecture: all\nMaintainer: t <t@example.com>\n"
            "Description: the answer\n"
        )
        (tree / "DEBIAN" / "control").write_text(about)
        (tree / "answer").write_text("42\n")
        place.mkdir()
        deb = place / f"{PACKAGE}_1.0_all.deb"
        subprocess.run(["dpkg-deb", "-b", str(tree), str(deb)], check=True, capture_output=True)
        data = deb.read_bytes()
        (place / "Packages").write_text(
            f"{about}Filename: ./{deb.name}\nSize: {len(data)}\n"
            f"SHA256: {hashlib.sha256(data).hexdigest()}\n"
        )

    def add_repository(self) -> None:
        """A git repository, at /code.git."""
        work = self.folder.with_name("work")
        git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com"]
        for words in (
            ["init", "-q", "-b", "main", str(work)],
            ["-C", str(work), "commit", "-q", "--allow-empty", "-m", "the first one"],
            ["clone", "-q", "--bare", str(work), str(self.folder / "code.git")],
            ["-C", str(self.folder / "code.git"), "update-server-info"],
        ):
            subprocess.run([*git, *words], check=True, capture_output=True)
