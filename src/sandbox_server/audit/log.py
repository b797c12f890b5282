"""AuditLog: takes records from calls, and writes them in a thread of its own."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import structlog

from sandbox_sdk.protocol.errors import AuditUnavailable, RuntimeUnavailable
from sandbox_server import log_fields
from sandbox_server.audit.chain import Head
from sandbox_server.audit.files import ChainFiles, claimed, now
from sandbox_server.metrics.recorder import NO_METRICS, Metrics

log = structlog.get_logger()

MAX_TEXT = 16384
"""Longer commands are cut; the digest is of the whole text."""
HOLD_S = 0.05
"""How long a record may wait for others, to be written with them. A server that is killed loses no
more than this."""
HEAD_S = 0.5
"""How old the head file may be: replacing it costs more than a line."""
AGAIN_S = 1.0
"""The pause before another try, while the file cannot be written."""
MOST_HELD = 10_000
"""Records that wait while the file cannot be written; more are counted, and lost."""
HEAD_EVERY_S = 3600.0
"""How often the head is told in the server's log."""

Commands = Literal["text", "hash", "off"]
Full = Literal["refuse", "continue"]


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    commands: Commands = "text"
    """What lines have of commands."""
    full: Full = "continue"
    """What becomes of calls while the file cannot be written."""
    size: int = 100 << 20
    count: int = 20
    """See ChainFiles."""


class AuditLog:
    """Use as a context manager, or close it."""

    def __init__(
        self,
        path: Path,
        settings: AuditSettings = AuditSettings(),  # noqa: B008
        metrics: Metrics = NO_METRICS,
    ) -> None:
        """Raises RuntimeUnavailable if the file cannot be opened and calls are to be refused then,
        or if it is a folder; otherwise it is opened once it can be."""
        self._path = path
        self._settings = settings
        self._metrics = metrics
        self._stack = contextlib.ExitStack()
        self._files: ChainFiles | None = None
        self._held: deque[dict[str, Any]] = deque()
        self._writing = threading.Lock()
        self._some = threading.Event()
        self._closing = threading.Event()
        self._told_head_at = self._kept_head_at = time.monotonic()
        self._unsettled = False
        """Whether lines were written since the head was kept."""
        self.problem: str | None = None
        """Why the file cannot be written now."""
        self.failures = 0
        """How often writing has failed after it had worked."""
        self.lost = 0
        """Records that were not written, over the life of this process."""
        self.refused = 0
        """Calls that were refused because they could not be recorded."""
        self._since = ""
        self._untold: Counter[str] = Counter()
        """Lost records by kind, and refused calls, that no line tells of yet."""
        self._pid = os.getpid()
        try:
            self._open()
        except OSError as exc:
            if settings.full == "refuse" or isinstance(exc, IsADirectoryError):
                raise RuntimeUnavailable(
                    f"the audit log {path} cannot be written: {_why(exc)}"
                ) from None
            self._failed(exc)
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<AuditLog {self._file} {self.head.seq} lines>"

    def _open(self) -> ChainFiles:
        """Raises OSError."""
        with contextlib.ExitStack() as opening:
            mine = opening.enter_context(claimed(self._path))
            size, count = self._settings.size, self._settings.count
            files = ChainFiles(mine, size=size, count=count)
            opening.callback(files.close)
            self._stack = opening.pop_all()
        self._files = files
        return files

    @property
    def _file(self) -> Path:
        return self._path if self._files is None else self._files.path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is held. What cannot be written now is lost, which the server's log tells."""
        if self._closing.is_set() or self._pid != os.getpid():
            return
        self._closing.set()
        self._some.set()
        self._thread.join()
        self.flush()
        if self._held or self.lost:
            log.error("audit.lost", records=self.lost + len(self._held), file=str(self._file))
        log.info("audit.head", **vars(self.head))
        self._stack.close()

    @property
    def head(self) -> Head:
        """The last line that was written."""
        return Head("") if self._files is None else self._files.head

    @property
    def check(self) -> str:
        """For /health."""
        if self.problem is None:
            return "ok"
        return f"cannot be written: {self.problem}; {len(self._held)} wait, {self.lost} lost"

    @property
    def refuses(self) -> bool:
        """Whether calls are refused now."""
        return self.problem is not None and self._settings.full == "refuse"

    def require(self) -> None:
        """Raises AuditUnavailable if a call that is to be recorded cannot be, and must be."""
        if self.refuses:
            self.refused += 1
            self._untold["refused"] += 1
            raise AuditUnavailable(
                f"the audit log of this server cannot be written ({self.problem}), and no call is"
                " carried out that it would not have; retry in 5 s",
                retry_after_s=5,
            )

    def write(self, *, command: str, **facts: Any) -> None:
        """Record the verdict on a command."""
        bound = log_fields.bound()
        of_caller = {name: bound.get(name) for name in ("request_id", "key")}
        self.record("verdict", **of_caller, **facts, **self.of_command(command))

    def of_command(self, command: str) -> dict[str, Any]:
        """What lines say of a command: its text and digest, its digest, or nothing."""
        if self._settings.commands == "off":
            return {}
        whole = command.encode("utf-8", "surrogatepass")
        digest = {"command_bytes": len(whole), "command_sha256": hashlib.sha256(whole).hexdigest()}
        if self._settings.commands == "hash":
            return digest
        return {"command": command[:MAX_TEXT], **digest}

    def record(self, kind: str, **facts: Any) -> None:
        """Have a line written soon. facts: JSON values."""
        if len(self._held) >= MOST_HELD:
            if self.problem is None:
                self.flush()  # The disk is slower than the calls: they wait.
            if self.problem is not None:
                self.lost += 1
                self._untold[kind] += 1
                self._metrics.audit_lost()
                return
        self._held.append({"at": now(), "kind": kind, **facts})
        if not self._some.is_set():
            self._some.set()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._some.wait(HEAD_S if self._unsettled or self.problem is not None else None)
            self._closing.wait(HOLD_S if self.problem is None else AGAIN_S)
            self._some.clear()
            self.flush()

    def flush(self) -> None:
        """Write what is held, or find out that it cannot be written."""
        with self._writing:
            batch = list(self._held)
            told = [] if self.problem is None else [self._interruption()]
            try:
                files = self._files or self._open()
                if batch or told:
                    files.append([*batch, *told])
                    for _ in batch:
                        self._held.popleft()
                    if told:
                        self._untold.clear()
                        self._worked()
                    self._unsettled = True
                if self._unsettled and self._settles_now(files):
                    files.settle()
                    self._unsettled, self._kept_head_at = False, time.monotonic()
            except OSError as exc:
                self._failed(exc)
        if time.monotonic() - self._told_head_at > HEAD_EVERY_S:
            self._told_head_at = time.monotonic()
            log.info("audit.head", **vars(self.head))

    def _settles_now(self, files: ChainFiles) -> bool:
        due = time.monotonic() - self._kept_head_at >= HEAD_S
        return due or files.is_large or self._closing.is_set()

    def _interruption(self) -> dict[str, Any]:
        """The record that tells what the log has missed."""
        lost = dict(self._untold)
        refused = lost.pop("refused", 0)
        return {"at": now(), "kind": "interruption", "since": self._since, "why": self.problem,
                "lost": sum(lost.values()), "lost_by_kind": lost, "refused": refused}  # fmt: skip

    def _failed(self, exc: OSError) -> None:
        if self.problem is None:
            self.failures += 1
            self._since = now()
            self._metrics.audit_failed()
            log.error("audit.failed", file=str(self._file), why=_why(exc),
                      calls=self._settings.full)  # fmt: skip
        self.problem = _why(exc)

    def _worked(self) -> None:
        log.warning("audit.works_again", file=str(self._file), lost=self.lost,
                    refused=self.refused)  # fmt: skip
        self.problem = None


def _why(exc: OSError) -> str:
    return exc.strerror or str(exc) or type(exc).__name__
