"""The bridge: a process in the box between its warden and its Jupyter kernels.

The warden starts it with the first cell. It speaks frames on stdin and stdout, as the warden does
with a server: every request is answered by one REPLY or ERROR, a cell by its output before that.
It runs with the Python of the environment, which has ipykernel and with it ZeroMQ; nothing else is
needed. It is one thread: kernels do the work.
"""

import importlib
import os
import signal
import sys
import time
from typing import Any, Callable, Dict, List, Optional

from . import frames
from .errors import Refused, refusal
from .kernel_contexts import Cell, Context, start_folder
from .kernel_output import CellOutput
from .kernel_process import Kernel
from .kernel_specs import Spec, spec_for

MOST_CONTEXTS = 16
MOST_WAITING = 32
_AT_ONCE = 256 * 1024
_LAST_MS = 20
_PR_SET_DUMPABLE = 4

Body = Dict[str, Any]


class Bridge:
    def __init__(self) -> None:
        self._contexts: Dict[str, Context] = {}
        self._decoder = frames.Decoder()
        self._zmq: Any = None
        self._sockets: Any = None
        self._env = _environment()
        self._out = bytearray()
        self._told: List[Body] = []
        self._requests: Dict[str, Callable[[Body], Body]] = {
            "list": self._list,
            "create": self._create,
            "restart": self._restart,
            "remove": self._remove,
            "interrupt": self._interrupt,
            "warm": self._warm,
            "env": self._set_env,
            "remember": self._remember,
        }

    # The loop

    def serve(self) -> None:
        """Until the warden closes stdin."""
        woken, wake = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while self._turn(woken):
            pass
        for context in list(self._contexts.values()):
            if context.kernel is not None:
                context.kernel.close()

    def _turn(self, woken: int) -> bool:
        ready = self._wait(woken)
        if woken in ready:
            os.read(woken, 4096)
        for context in list(self._contexts.values()):
            self._listen(context, ready)
        if 0 in ready:
            data = os.read(0, 1 << 20)
            if not data:
                return False
            for kind, number, payload in self._decoder.feed(data):
                self._handle(kind, number, frames.decode_json(payload))
        self._flush()
        return True

    def _wait(self, woken: int) -> Dict[Any, int]:
        times = [context.tick(time.monotonic()) for context in list(self._contexts.values())]
        self._flush()
        due = min((t for t in times if t is not None), default=None)
        pause_ms = None if due is None else max(int((due - time.monotonic()) * 1000) + 1, 0)
        if self._zmq is None:
            return _wait_plain(woken, pause_ms)
        sources = [0, woken]
        for context in self._contexts.values():
            if context.kernel is not None:
                sources += context.kernel.sources()
        return dict(self._zmq.zmq_poll([(source, self._zmq.POLLIN) for source in sources],
                                       -1 if pause_ms is None else pause_ms))  # fmt: skip

    def _listen(self, context: Context, ready: Dict[Any, int]) -> None:
        kernel = context.kernel
        if kernel is None:
            return
        if kernel.stderr in ready:
            kernel.read_stderr()
        # Output first: a reply comes after what was written before it.
        for socket, handle in ((kernel.iopub, context.on_output), (kernel.shell, context.on_shell)):
            if socket in ready:
                while context.kernel is kernel:
                    message = kernel.receive(socket)
                    if message is None:
                        break
                    handle(message)
        code = kernel.ended()
        if context.kernel is kernel and code is not None:
            while kernel.iopub.poll(_LAST_MS):  # What it wrote before may still be on its way.
                message = kernel.receive(kernel.iopub)
                if message is not None:
                    context.on_output(message)
            context.kernel_ended(code)

    # Requests

    def _handle(self, kind: int, number: int, body: Body) -> None:
        try:
            if kind == frames.CODE:
                self._run(number, body)
            elif kind == frames.SIGNAL:
                self._signal(body)
            else:
                answer = self._requests[str(body["op"])](body)
                self._reply(number, answer)
                self._tell_contexts()
        except Refused as exc:
            self._refuse(number, exc.code, str(exc))
        except OSError as exc:
            self._refuse(number, refusal(exc).code, str(exc))
        except (KeyError, TypeError, ValueError) as exc:
            self._refuse(number, "invalid_request", "%s: %s" % (type(exc).__name__, exc))

    def _run(self, number: int, body: Body) -> None:
        context = self._context_of(body)
        if len(context.waiting) >= MOST_WAITING:
            raise Refused("exhausted", "%d cells wait for context %s already; wait for them"
                          % (len(context.waiting), context.ident))  # fmt: skip
        if body.get("env") and context.language != "python":
            raise Refused("invalid_request", "env is for python and bash; in %s set the variables"
                          " in the code" % context.language)  # fmt: skip
        output = CellOutput(
            lambda kind, data: self._send(frames.encode(kind, number, data)),
            text_limit=int(body["output_limit"]),
            result_limit=int(body["result_limit"]),
        )
        context.add(
            Cell(
                body,
                output,
                lambda ended: self._reply(number, ended),
                lambda code, message: self._refuse(number, code, message),
            )
        )
        self._tell_contexts()

    def _context_of(self, body: Body) -> Context:
        """The context for a cell: one that is named has to live, the default of a language is made
        or restarted."""
        named, language = body.get("context_id"), body.get("language")
        if named is not None:
            context = self._get(str(named))
            if language not in (None, context.language):
                raise Refused("invalid_request", "context %s is for %s, not for %s"
                              % (named, context.language, language))  # fmt: skip
            if context.kernel is None and not context.default:
                raise Refused("context_lost", "context %s is lost: %s; restart it, which begins"
                              " without its variables" % (named, context.lost))  # fmt: skip
        else:
            language = str(language or "python")
            if language not in self._contexts:
                return self._new(language, language, body, default=True)
            context = self._contexts[language]
        if context.kernel is None:
            self._start(context, body)
        return context

    def _get(self, ident: str) -> Context:
        context = self._contexts.get(ident)
        if context is None:
            raise Refused("context_not_found", "no context %s in this session; list its contexts,"
                          " or create one" % ident[:64])  # fmt: skip
        return context

    def _new(self, ident: str, language: str, body: Body, *, default: bool) -> Context:
        if len(self._contexts) >= MOST_CONTEXTS:
            raise Refused("exhausted", "a session has at most %d contexts; remove one first"
                          % MOST_CONTEXTS)  # fmt: skip
        cwd = start_folder(body.get("cwd"))
        context = Context(ident, None, language, cwd=cwd, default=default)
        self._start(context, body)
        self._contexts[ident] = context
        return context

    def _start(self, context: Context, body: Body) -> None:
        """Raises Refused, OSError."""
        context.spec = self._spec(context.language, body)
        context.kernel = Kernel(
            self._zmq,
            self._sockets,
            context.spec,
            cwd=context.cwd,
            env=self._env,
            ident=context.ident,
        )

    def _spec(self, language: str, body: Body) -> Spec:
        spec = spec_for(language, dict(body.get("kernels") or {}))
        if self._zmq is None:
            try:
                importlib.invalidate_caches()
                self._zmq = importlib.import_module("zmq")
            except ImportError:
                raise Refused("no_kernel", "this sandbox has a kernel for %s, but its Python lacks"
                              " pyzmq; install ipykernel" % language) from None  # fmt: skip
            self._sockets = self._zmq.Context()
        return spec

    # Contexts

    def _list(self, _body: Body) -> Body:
        return {"contexts": [context.about() for context in self._contexts.values()]}

    def _create(self, body: Body) -> Body:
        ident = str(body["context_id"])
        context = self._contexts.get(ident)
        if context is None:
            language = str(body.get("language") or "python")
            context = self._new(ident, language, body, default=False)
        return {"contexts": [context.about()]}

    def _restart(self, body: Body) -> Body:
        context = self._get(str(body["context_id"]))
        context.close("restarted")
        self._start(context, body)
        context.lost, context.used, context.count = None, True, 0
        return {"contexts": [context.about()]}

    def _remove(self, body: Body) -> Body:
        context = self._get(str(body["context_id"]))
        context.close("removed")
        del self._contexts[context.ident]
        return {"contexts": [context.about()]}

    def _interrupt(self, body: Body) -> Body:
        context = self._get(str(body["context_id"]))
        if context.cell is not None:
            context.interrupt(context.cell, "interrupted")
        return {"contexts": [context.about()]}

    def _signal(self, body: Body) -> None:
        """To the cell of a command id: INT interrupts it, what kills ends its kernel."""
        for context in self._contexts.values():
            for cell in [*([context.cell] if context.cell else []), *context.waiting]:
                if cell.ident == body["command_id"]:
                    self._signal_cell(context, cell, int(body["signal"]))
                    return

    def _signal_cell(self, context: Context, cell: Cell, number: int) -> None:
        if number != signal.SIGKILL or cell is not context.cell:
            context.interrupt(cell, "interrupted")
        elif context.kernel is not None:
            cell.reason = cell.reason or "killed"
            context.kernel.kill()

    def _warm(self, body: Body) -> Body:
        """Start the kernels of languages ahead of their first cell."""
        for language in body.get("languages") or ():
            if language not in self._contexts:
                self._new(str(language), str(language), body, default=True)
        return self._list(body)

    def _set_env(self, body: Body) -> Body:
        """Variables of the session, also for kernels that were started before they were known."""
        env = {str(name): str(value) for name, value in dict(body["env"]).items()}
        self._env.update(env)
        for context in self._contexts.values():
            if context.language == "python":
                context.new_env.update(env)
            elif context.kernel is not None and not context.used:
                context.close("restarted")
                self._start(context, body)
        return {"contexts": []}

    def _remember(self, body: Body) -> Body:
        """Contexts of a bridge before this one, which are lost."""
        for about in body["contexts"]:
            ident = str(about["context_id"])
            context = Context(
                ident, None, str(about["language"]), cwd=str(about["cwd"]),
                default=bool(about["default"]),
            )  # fmt: skip
            context.used, context.lost = True, "the process that kept its kernel was killed"
            self._contexts[ident] = context
        return {"contexts": []}

    # Answers

    def _tell_contexts(self) -> None:
        """What the warden has to remember, in case this process is killed."""
        known = [context.remembered() for context in self._contexts.values() if context.used]
        if known == self._told:
            return
        self._told = known
        self._send(frames.encode_json(frames.CONTEXTS, 0, {"contexts": known}))

    def _reply(self, number: int, body: Body) -> None:
        self._send(frames.encode_json(frames.REPLY, number, body))

    def _refuse(self, number: int, code: str, message: str) -> None:
        self._send(frames.encode_error(number, code, message))

    def _send(self, data: bytes) -> None:
        self._out += data
        if len(self._out) >= _AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        """Write all that came up in a turn at once: the warden wakes up for every write."""
        while self._out:
            del self._out[: os.write(1, self._out)]


def _wait_plain(woken: int, pause_ms: Optional[int]) -> Dict[Any, int]:
    """Without ZeroMQ there are no kernels to listen to."""
    import select

    pause_s = None if pause_ms is None else pause_ms / 1000
    ready: List[int] = select.select([0, woken], [], [], pause_s)[0]
    return dict.fromkeys(ready, 1)


def _packages() -> List[str]:
    """Folders of packages that the box was made with, whatever PYTHONPATH a command has set."""
    return [path for path in os.environ.get("SANDBOX_BRIDGE_PATH", "").split(os.pathsep) if path]


def _environment() -> Dict[str, str]:
    """The variables of a kernel: those of the shell, which may have replaced PYTHONPATH."""
    env = dict(os.environ)
    env.pop("SANDBOX_BRIDGE_PATH", None)
    paths = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    paths += [path for path in _packages() if path not in paths]
    if paths:
        env["PYTHONPATH"] = os.pathsep.join(paths)
    return env


def main() -> None:
    import ctypes

    # Other processes of the box must not write to our pipes.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    sys.path[:] = [*_packages(), *sys.path]
    Bridge().serve()
