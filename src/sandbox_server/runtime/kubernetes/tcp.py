"""A stream to the warden of a pod over TCP: the server's end of the handshake that
sandbox_warden/port.py describes."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sandbox_server.runtime.kubernetes.access import as_files
from sandbox_server.runtime.streams import BUFFER, SocketStream
from sandbox_warden.port import MAGIC, NONCE_SIZE, PROOF_SIZE, proof

CONNECT_S = 1.5
"""Longer than the second after which a lost SYN is sent again. A policy that lets nothing through
most often says nothing either."""
_HANDSHAKE_S = 5.0
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


class NotReached(Exception):
    """Nothing answers at the pod's address."""


class NotTheWarden(Exception):
    """What answers there does not know the key."""


@dataclass(frozen=True)
class Identity:
    """By what wardens know a server: one certificate for all of its boxes, made when it starts and
    kept in memory. Each box has a key besides."""

    certificate: str
    """PEM."""
    tls: ssl.SSLContext

    @classmethod
    def make(cls) -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "agent-sandbox server")])
        # Any time: clocks of nodes differ, and the certificate lives no longer than this process.
        made = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(datetime(2000, 1, 1, tzinfo=UTC))
            .not_valid_after(datetime(9999, 12, 31, tzinfo=UTC))
            .sign(key, hashes.SHA256())
        )
        certificate = made.public_bytes(serialization.Encoding.PEM)
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.minimum_version = ssl.TLSVersion.TLSv1_3
        tls.num_tickets = 0  # Nobody resumes.
        as_files([certificate, private], lambda names: tls.load_cert_chain(*names))
        return cls(certificate.decode(), tls)


async def open_tcp(address: str, port: int, key: bytes, identity: Identity) -> SocketStream:
    """Raises NotReached, NotTheWarden."""
    sock = await _connect(address, port)
    try:
        async with asyncio.timeout(_HANDSHAKE_S):
            theirs, ours = await _show_key(sock, key)
            return await _secure(sock, proof(key, b"warden", theirs, ours), identity)
    except (OSError, TimeoutError) as exc:
        why = str(exc) or "no answer in time"
        raise NotTheWarden(f"{address}:{port}: the handshake failed: {why}") from exc


async def can_reach(address: str, port: int) -> None:
    """Whether a pod answers, be it that nobody listens. Raises NotReached."""
    try:
        (await _connect(address, port)).close()
    except NotReached as exc:
        if not isinstance(exc.__cause__, ConnectionRefusedError):
            raise


async def _connect(address: str, port: int) -> socket.socket:
    """The socket is of this call alone until it is connected."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        async with asyncio.timeout(CONNECT_S):
            await asyncio.get_running_loop().sock_connect(sock, (address, port))
    except (OSError, TimeoutError) as exc:
        sock.close()
        raise NotReached(f"{address}:{port}: {exc or f'no answer in {CONNECT_S:g} s'}") from exc
    except BaseException:
        sock.close()
        raise
    return sock


async def _show_key(sock: socket.socket, key: bytes) -> tuple[bytes, bytes]:
    """The random bytes of both ends. Closes the socket if that fails."""
    try:
        hello = await _exactly(sock, len(MAGIC) + NONCE_SIZE)
        if not hello.startswith(MAGIC):
            raise ConnectionError("no warden listens there")
        theirs, ours = hello[len(MAGIC) :], secrets.token_bytes(NONCE_SIZE)
        shown = ours + proof(key, b"server", theirs, ours)
        await asyncio.get_running_loop().sock_sendall(sock, shown)
    except BaseException:
        sock.close()
        raise
    return theirs, ours


async def _secure(sock: socket.socket, expected: bytes, identity: Identity) -> SocketStream:
    """Owns the socket."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=BUFFER)
    protocol = asyncio.StreamReaderProtocol(reader)
    # What uvloop returns as the protocol is its own, of TLS.
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, sock, ssl=identity.tls)
    stream = SocketStream(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
    try:
        if not hmac.compare_digest(await reader.readexactly(PROOF_SIZE), expected):
            raise ConnectionError("it does not know the key")
    except asyncio.IncompleteReadError:
        await stream.close()
        raise ConnectionError("closed during the handshake") from None
    except BaseException:
        await stream.close()
        raise
    return stream


async def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = await asyncio.get_running_loop().sock_recv(sock, count - len(data))
        if not piece:
            raise ConnectionError("closed during the handshake")
        data += piece
    return data
