"""Which way the stream of a box goes: over TCP to its pod, or through an exec, which passes through
the API server and the kubelet.

The first stream of a box begins as an exec in any case, by which its warden learns the key of this
server. If the pod can then be reached at its own address, the exec is closed; otherwise it stays.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from functools import cached_property

import structlog

from sandbox_sdk.protocol.errors import RuntimeUnavailable, SandboxError
from sandbox_server.metrics.recorder import NO_METRICS, Metrics
from sandbox_server.runtime.kubernetes import config, failures, tcp
from sandbox_server.runtime.kubernetes.api import Api
from sandbox_server.runtime.kubernetes.failures import ApiError
from sandbox_server.runtime.kubernetes.stream import ExecStream, open_exec
from sandbox_server.runtime.registry import StreamWay
from sandbox_server.runtime.streams import ByteStream
from sandbox_warden import frames
from sandbox_warden.port import NONCE_SIZE

log = structlog.get_logger(__name__)

TRY_AGAIN_S = 600.0
"""How long no TCP is tried once pods could not be reached."""
_ENOUGH = 2
"""Pods in a row that are not reached before all are held for unreachable: one may be at fault."""
_ANSWER_S = 10.0
_MAX_ANSWER = 64 << 10


class PodStreams:
    """Opens streams to the boxes of one cluster, and remembers whether pods can be reached."""

    def __init__(self, api: Api, way: StreamWay = "auto", metrics: Metrics = NO_METRICS) -> None:
        self._api = api
        self._way = way
        self._metrics = metrics
        self._reached = False
        self._not_reached: set[str] = set()
        self._why = ""
        self._again_at = 0.0

    def __repr__(self) -> str:
        return f"<PodStreams {self._way}: {self.told()}>"

    @cached_property
    def identity(self) -> tcp.Identity:
        return tcp.Identity.make()

    def told(self) -> str:
        """Which way streams go, as far as it is known."""
        if self._way == "exec":
            return "through the API server (exec), as configured"
        if not self._tries_tcp():
            return f"through the API server (exec), as pods are not reached: {self._why}"
        if self._reached:
            return "directly to pods (TCP)"
        return "directly to pods (TCP) where they can be reached; no box has shown it yet"

    async def look(self) -> str:
        """The same, after trying a box that is there already."""
        if self._tries_tcp() and not self._reached and (address := await self._any_address()):
            try:
                await tcp.can_reach(address, config.PORT)
                self._reached = True
            except tcp.NotReached as exc:
                self._give_up(str(exc))
        return self.told()

    async def _any_address(self) -> str:
        try:
            pods = await self._api.objects("pods", config.MARKED, limit="20")
        except SandboxError:
            return ""
        return next((failures.address(pod) for pod in pods if failures.is_running(pod)), "")

    def _tries_tcp(self) -> bool:
        return self._way == "tcp" or (self._way == "auto" and time.monotonic() >= self._again_at)

    async def open(self, box: PodAddress) -> ByteStream:
        """Raises SessionLost, RuntimeUnavailable."""
        # A pod that was reached before and is not now may be gone, with its node: that says nothing
        # of others. If it is there, the exec works, and TCP is tried once more.
        if box.port and self._tries_tcp() and (known := await self._tcp(box, counts=False)):
            return known
        stream = await self._exec(box)
        if self._tries_tcp():
            try:
                stream = await self._change(box, stream)
            except BaseException:
                await stream.close()
                raise
        if isinstance(stream, ExecStream):
            self._metrics.pod_stream("exec")
        return stream

    async def _change(self, box: PodAddress, stream: ByteStream) -> ByteStream:
        """From an exec to TCP, if the box can do it. If this raises, the exec is the caller's."""
        try:
            if not box.refuses:
                box.port = await _listen(stream, box.key, self.identity.certificate)
        except _RefusedError as exc:
            box.refuses = str(exc)
            if exc.ended:  # A warden from before there was such a request closes the stream.
                await stream.close()
                stream = await self._exec(box)
        if box.refuses and self._way == "tcp":
            raise RuntimeUnavailable(f"no stream over TCP to {box.name}: {box.refuses}")
        over_tcp = None if box.refuses else await self._tcp(box, counts=True)
        if over_tcp is None:
            return stream
        await stream.close()
        return over_tcp

    async def _exec(self, box: PodAddress) -> ByteStream:
        """Raises SessionLost, RuntimeUnavailable."""
        return await open_exec(self._api, box.name, config.relay_command(), gone=box.gone)

    async def _tcp(self, box: PodAddress, *, counts: bool) -> ByteStream | None:
        """None if that is not possible, and an exec will do. counts: towards not trying any."""
        try:
            address = box.address = box.address or await self._address(box.name)
            stream = await tcp.open_tcp(address, box.port, box.key, self.identity)
        except (tcp.NotReached, tcp.NotTheWarden) as exc:
            box.port = 0
            if self._way == "tcp":
                raise RuntimeUnavailable(f"no stream over TCP to {box.name}: {exc}") from exc
            if counts and isinstance(exc, tcp.NotReached):
                self._failed(box.name, str(exc))
            return None
        self._not_reached.clear()
        if not self._reached:
            self._reached = True
            log.info("pods.streams", way=self.told())
        self._metrics.pod_stream("tcp")
        return stream

    async def _address(self, name: str) -> str:
        try:
            pod = await self._api.get(self._api.path("pods", name), "get pods")
        except ApiError as exc:
            raise tcp.NotReached(exc.message) from exc
        if found := failures.address(pod):
            return found
        raise tcp.NotReached("the pod has no address")

    def _failed(self, name: str, why: str) -> None:
        self._not_reached.add(name)
        if len(self._not_reached) >= _ENOUGH:
            self._give_up(why)

    def _give_up(self, why: str) -> None:
        self._why = why
        self._reached = False
        self._not_reached.clear()
        self._again_at = time.monotonic() + TRY_AGAIN_S
        log.warning("pods.streams", way=self.told())


class PodAddress:
    """How to reach the warden of one pod."""

    def __init__(self, name: str, *, gone: str, address: str = "") -> None:
        """gone: what to say if there is no such pod. address: of the pod, as the cluster says;
        what comes out of a box is no address to connect to."""
        self.name = name
        self.gone = gone
        self.address = address
        self.key = secrets.token_bytes(NONCE_SIZE)
        self.port = 0
        """Where its warden listens for our key; 0 if it has not been asked."""
        self.refuses = ""
        """Why it does not listen."""


class _RefusedError(Exception):
    def __init__(self, message: str, *, ended: bool = False) -> None:
        super().__init__(message)
        self.ended = ended


async def _listen(stream: ByteStream, key: bytes, certificate: str) -> int:
    """Have the warden at the other end of a new stream listen; returns its port. The stream can be
    used as before, unless it has ended. Raises _RefusedError."""
    decoder, size = frames.Decoder(), 0
    body = {"key": key.hex(), "certificate": certificate}
    try:
        async with asyncio.timeout(_ANSWER_S):
            await stream.write(frames.encode_json(frames.LISTEN, 1, body))
            while data := await stream.read():
                size += len(data)
                for kind, channel, payload in decoder.feed(data):
                    if channel == 1 or kind == frames.ERROR:
                        return _answer(kind, channel, payload)
                if size > _MAX_ANSWER:
                    break
    except (frames.FrameError, ConnectionError, TimeoutError) as exc:
        raise _RefusedError(str(exc) or "no answer", ended=True) from exc
    raise _RefusedError("the stream ended", ended=True)


def _answer(kind: int, channel: int, payload: bytes) -> int:
    body = frames.decode_json(payload)
    if kind == frames.REPLY and body.get("port") == config.PORT:
        return config.PORT
    message = ascii(body.get("message", "no port"))[:200]
    raise _RefusedError(message, ended=channel != 1)
