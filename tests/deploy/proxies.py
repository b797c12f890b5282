"""nginx and haproxy in front of a server on this machine."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.deploy.stack import DEPLOY
from tests.internet import HERE, self_signed
from tests.ports import free_port

HOST = "sandbox.example.com"
_PREVIEWS = "*.previews.example.com"
_MAIN = """
daemon off; user root; pid {folder}/pid; error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/site.conf;
}}
"""
_HAPROXY = f"""
defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
    http-reuse always
listen api
    bind {HERE}:{{port}}
    server api {HERE}:{{api}}
"""
_STARTED_S = 20.0


def program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def adapted(
    folder: Path, port: int, api: int, previews: int, *, more: tuple[tuple[str, str], ...] = ()
) -> None:
    """deploy/nginx-bare-metal.conf with other ports, addresses and certificates."""
    certificate, key = self_signed(HOST, _PREVIEWS)
    (folder / "fullchain.pem").write_bytes(certificate)
    (folder / "privkey.pem").write_bytes(key)
    text = (DEPLOY / "nginx-bare-metal.conf").read_text()
    for pattern, instead in (
        *more,
        (r"/etc/letsencrypt/live/[a-z.]+", str(folder)),
        (r"listen 443", f"listen {HERE}:{port}"),
        (r"listen 80;", f"listen {HERE}:{free_port()};"),
        (r"10\.0\.0\.11:8000", f"{HERE}:{api}"),
        (r"10\.0\.0\.11:8001", f"{HERE}:{previews}"),
        (r"server 10\.0\.0\.12:\d+ .*;", ""),
    ):
        text, count = re.subn(pattern, instead, text)
        assert count, pattern
    (folder / "site.conf").write_text(text)
    (folder / "nginx.conf").write_text(_MAIN.format(folder=folder))


@contextlib.contextmanager
def plain_nginx(folder: Path, api: int) -> Iterator[int]:
    """Its port. It is that of deploy/ without TLS and without the limit by address, which all
    requests of a test would share."""
    port = free_port()
    without = (("listen 443 ssl http2", "listen 443"), (r"rate=200r/s", "rate=1000000r/s"))
    adapted(folder, port, api, api + 1, more=without)
    words = [str(program("nginx")), "-p", str(folder), "-c", str(folder / "nginx.conf")]
    with _running(words, folder / "nginx.log", port):
        yield port


@contextlib.contextmanager
def haproxy(folder: Path, api: int) -> Iterator[int]:
    """Its port. It passes on all that it can read, upgrades too."""
    port = free_port()
    config = folder / "haproxy.cfg"
    config.write_text(_HAPROXY.format(port=port, api=api))
    with _running([str(program("haproxy")), "-f", str(config)], folder / "haproxy.log", port):
        yield port


@contextlib.contextmanager
def _running(words: list[str], log: Path, port: int) -> Iterator[None]:
    with log.open("wb") as out:
        started = subprocess.Popen(words, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + _STARTED_S
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection((HERE, port)).close()
                break
            assert started.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        yield
    finally:
        started.terminate()
        started.wait()
