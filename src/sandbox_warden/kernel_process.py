"""One Jupyter kernel: its process, the sockets to it, and the messages on them.

Not jupyter_client's session: importing that takes longer than starting a kernel's first cell.
"""

import contextlib
import ctypes
import hmac
import json
import os
import signal
import subprocess
import tempfile
import time
import uuid
from typing import Any, Dict, List, Optional, Tuple

from .kernel_specs import Spec

DELIMITER = b"<IDS|MSG>"
PROTOCOL = "5.3"
_DATE = "1970-01-01T00:00:00Z"
"""Kernels need a date and make nothing of it; the clock of a machine may jump."""
_NOT_WANTED = b".execute_input"
"""The topic of messages that tell what was sent to run."""
_PARTS = 5
"""Signature, header, parent header, metadata and content."""
START_S = 60.0
"""How long a kernel may take until it answers."""
_ASK_AGAIN_S = 0.1
_STDERR_KEPT = 2000
_OOM_SCORE = "500"
"""Before the bridge and the warden, a kernel is what has to go when memory is short."""
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class Message:
    """A message from a kernel, as far as it matters here."""

    def __init__(self, kind: str, parent_id: str, content: Dict[str, Any]) -> None:
        self.kind = kind
        self.parent_id = parent_id
        """The id of the request that it belongs to."""
        self.content = content


class Wire:
    """Signs what is sent with the key of one kernel, and checks what comes."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._session = uuid.uuid4().hex
        self._sent = 0

    def request(self, kind: str, content: Dict[str, Any]) -> Tuple[str, List[bytes]]:
        """The id and the parts of a request."""
        self._sent += 1
        ident = "%s_%d_%d" % (self._session, os.getpid(), self._sent)
        header = {
            "msg_id": ident,
            "msg_type": kind,
            "username": "sandbox",
            "session": self._session,
            "date": _DATE,
            "version": PROTOCOL,
        }
        parts = [json.dumps(part).encode() for part in (header, {}, {}, content)]
        return ident, [DELIMITER, self._signature(parts), *parts]

    def message(self, received: List[bytes]) -> Optional[Message]:
        """The message in these parts. None if it is not one, or not of the kernel: code in the box
        may write to its kernel's sockets too."""
        try:
            if received[0].endswith(_NOT_WANTED):
                return None
            start = received.index(DELIMITER) + 1
            signature, *parts = received[start : start + _PARTS]
            if len(parts) < _PARTS - 1:
                return None
            if not hmac.compare_digest(signature, self._signature(parts)):
                return None
            header, parent, _, content = (json.loads(part) for part in parts)
            return Message(str(header["msg_type"]), str(parent.get("msg_id")), dict(content))
        except (ValueError, IndexError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def _signature(self, parts: List[bytes]) -> bytes:
        return hmac.digest(self._key, b"".join(parts), "sha256").hex().encode()


class Kernel:
    """A process that runs the cells of one context, one at a time."""

    def __init__(
        self, zmq: Any, context: Any, spec: Spec, *, cwd: str, env: Dict[str, str], ident: str
    ) -> None:
        """Raises OSError."""
        self._zmq = zmq
        self._spec = spec
        self.ready = False
        self.started = time.monotonic()
        self._asked_at = 0.0
        self._heard = False
        self._answered = False
        self._asked: List[str] = []
        self._stderr = b""
        self._stderr_ended = False
        key = os.urandom(16).hex()
        self._wire = Wire(key.encode())
        about = _addresses(spec, ident, key)
        self._file = _connection_file(about)
        self._sockets = {name: self._socket(context, about, name) for name in _SOCKETS}
        self.shell, self.iopub = self._sockets["shell"], self._sockets["iopub"]
        self._control = self._sockets["control"]
        try:
            self._process = self._spawn(cwd, env)
        except OSError:
            self._close()
            raise
        assert self._process.stderr is not None
        self.stderr = self._process.stderr.fileno()
        os.set_blocking(self.stderr, False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def _socket(self, context: Any, about: Dict[str, Any], name: str) -> Any:
        zmq = self._zmq
        socket = context.socket(zmq.SUB if name == "iopub" else zmq.DEALER)
        socket.linger = 0
        socket.reconnect_ivl = 5
        socket.rcvhwm = socket.sndhwm = 0  # At a limit, ZeroMQ would drop output silently.
        if name == "iopub":
            socket.subscribe(b"")
        between = "-" if about["transport"] == "ipc" else ":"
        address = "%s://%s%s%d" % (
            about["transport"], about["ip"], between, about[name + "_port"],
        )  # fmt: skip
        socket.connect(address)
        return socket

    def _spawn(self, cwd: str, env: Dict[str, str]) -> "subprocess.Popen[bytes]":
        argv = [word.replace("{connection_file}", self._file) for word in self._spec.argv]
        if self._spec.is_ipykernel:
            argv += ["--HistoryManager.enabled=False"]  # A database, which costs at every cell.
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env={**env, **self._spec.env, "JPY_PARENT_PID": str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        oom_score = "/proc/%d/oom_score_adj" % process.pid
        with contextlib.suppress(OSError), open(oom_score, "w") as file:
            file.write(_OOM_SCORE)
        return process

    # Starting

    def ask_until_ready(self, now: float) -> None:
        """Ask again, until it has answered and its outputs are heard: what a kernel says before
        anybody is connected is lost."""
        if not self.ready and now - self._asked_at >= _ASK_AGAIN_S:
            self._asked_at = now
            self._asked = [*self._asked[-50:], self.send("kernel_info_request", {})]

    def next_ask(self) -> float:
        return self._asked_at + _ASK_AGAIN_S

    def takes_for_start(self, message: Message, *, iopub: bool) -> bool:
        """Whether a message belongs to the start."""
        if message.parent_id not in self._asked:
            return False
        if iopub:
            self._heard = True
        else:
            self._answered = True
        if self._heard and self._answered and not self.ready:
            self.ready = True
            _remove(self._file)
        return True

    # Talking

    def send(self, kind: str, content: Dict[str, Any]) -> str:
        ident, parts = self._wire.request(kind, content)
        self.shell.send_multipart(parts)
        return ident

    def receive(self, socket: Any) -> Optional[Message]:
        """The next message of a socket, if there is one. Invalid ones are passed over."""
        while True:
            try:
                parts = socket.recv_multipart(self._zmq.NOBLOCK)
            except self._zmq.ZMQError:
                return None
            message = self._wire.message(parts)
            if message is not None:
                return message

    def sources(self) -> List[Any]:
        """What to wait for."""
        found = [self.shell, self.iopub]
        return found if self._stderr_ended else [*found, self.stderr]

    def read_stderr(self) -> None:
        try:
            data = os.read(self.stderr, 65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._stderr = (self._stderr + data)[-_STDERR_KEPT:]
        self._stderr_ended = not data

    @property
    def last_words(self) -> str:
        return self._stderr.decode("utf-8", "replace").strip()

    # Ending

    def interrupt(self) -> None:
        if self._spec.by_message:
            _, parts = self._wire.request("interrupt_request", {})
            self._control.send_multipart(parts)
        else:
            self._signal(signal.SIGINT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for send in (os.killpg, os.kill):  # Its group may be another one by now.
            with contextlib.suppress(OSError):
                send(self._process.pid, number)
                return

    def ended(self) -> Optional[int]:
        """Its exit code as a shell tells it, None while it runs."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def close(self) -> None:
        """Kill it, and wait for its end."""
        self.kill()
        # One that hangs in the system has the signal wait for it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self.read_stderr()
        assert self._process.stderr is not None
        self._process.stderr.close()
        self._close()

    def _close(self) -> None:
        for socket in self._sockets.values():
            socket.close()
        _remove(self._file)

    def memory_bytes(self) -> Optional[int]:
        try:
            with open("/proc/%d/statm" % self.pid) as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, IndexError):
            return None


_SOCKETS = ("shell", "iopub", "control")
_ALL_PORTS = ("shell", "iopub", "stdin", "control", "hb")


def _addresses(spec: Spec, ident: str, key: str) -> Dict[str, Any]:
    """Sockets without a file where a kernel knows them, which need no free port."""
    about: Dict[str, Any] = {
        "key": key,
        "signature_scheme": "hmac-sha256",
        "kernel_name": spec.name,
    }
    if spec.is_ipykernel:
        name = "@kernel-%s-%s" % (ident, os.urandom(4).hex())
        ports = dict(zip(_ALL_PORTS, range(1, 6)))
        about.update(transport="ipc", ip=name)
    else:
        ports = dict(zip(_ALL_PORTS, _free_ports(len(_ALL_PORTS))))
        about.update(transport="tcp", ip="127.0.0.1")
    about.update({name + "_port": port for name, port in ports.items()})
    return about


def _free_ports(count: int) -> List[int]:
    import socket

    bound = []
    for _ in range(count):
        one = socket.socket()
        one.bind(("127.0.0.1", 0))
        bound.append(one)
    ports = [one.getsockname()[1] for one in bound]
    for one in bound:
        one.close()
    return ports


def _connection_file(about: Dict[str, Any]) -> str:
    """Readable by the user alone, and removed when it was read: it has the key."""
    fd, path = tempfile.mkstemp(prefix="kernel-", suffix=".json")
    with os.fdopen(fd, "w") as file:
        json.dump(about, file)
    return path


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
