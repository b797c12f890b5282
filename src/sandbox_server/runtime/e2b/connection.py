"""The connection to one E2B sandbox, opened on first use, and what the sandbox reports."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from e2b import AsyncSandbox
from pydantic import ValidationError
from pydantic_core import from_json

from sandbox_sdk.protocol.errors import RuntimeUnavailable, SessionLost
from sandbox_sdk.protocol.models import WORKSPACE
from sandbox_server.runtime.agent import BoxAbout, Fenced
from sandbox_server.runtime.e2b import scripts
from sandbox_server.runtime.e2b.account import E2bAccount
from sandbox_server.runtime.e2b.processes import Processes

PROTOCOL = 1
OWN = "+"
"""In place of a key: a command of the server, which counts for nobody."""


@dataclass(frozen=True)
class CommandRecord:
    """What the launcher wrote down of a command (launch.sh)."""

    command_id: str
    pid: int
    mark: str
    digest: str
    key_digest: str
    age_s: float
    exit_code: int | None
    running: bool


@dataclass
class Report:
    """What report.sh tells."""

    home: str = ""
    cwd: str = WORKSPACE
    pids: int = 0
    uptime_s: float = 0.0
    idle_s: float = 0.0
    state: dict[str, Any] = field(default_factory=dict)
    commands: dict[str, CommandRecord] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, box_id: str) -> Report:
        """Raises Fenced, and RuntimeUnavailable for what no launcher has written."""
        head, _, session = text.partition("\nsession\n")
        try:
            return cls._parsed(head.splitlines(), from_json(session or "{}"))
        except (ValueError, IndexError, KeyError, TypeError) as exc:
            raise RuntimeUnavailable(f"box {box_id} reports nonsense: {exc}") from None

    @classmethod
    def _parsed(cls, lines: list[str], state: dict[str, Any]) -> Report:
        found = cls(state=dict(state))
        facts: dict[str, str] = {}
        for line in lines:
            word, _, rest = line.partition(" ")
            if word == "command":
                record = _record(rest.split(" "), now=float(facts["now"]))
                if record.key_digest != OWN:
                    found.commands[record.command_id] = record
            else:
                facts[word] = rest
        if "fenced" in facts:
            raise Fenced(f"a server with epoch {facts['fenced']} has taken this box over")
        found.home, found.cwd, found.uptime_s = facts["home"], facts["cwd"], float(facts["up"])
        found.pids = int(facts["pids"])
        found.idle_s = max(float(facts["now"]) - float(facts["used"]), 0.0)
        return found


def _record(parts: list[str], *, now: float) -> CommandRecord:
    command_id, pid, mark, digest, key, began, state = parts
    ended = state not in ("running", "gone")
    return CommandRecord(
        command_id,
        int(pid),
        mark,
        digest,
        key,
        age_s=max(now - float(began), 0.0),
        exit_code=int(state) & 255 if ended else None,
        running=state == "running",
    )


class BoxConnection:
    """Base of the agent: everything that takes a sandbox begins with opened()."""

    def __init__(
        self,
        account: E2bAccount,
        box_id: str,
        *,
        epoch: int,
        deadman_s: float,
        sandbox: AsyncSandbox | None = None,
    ) -> None:
        """sandbox: one that was just made."""
        self.box_id = box_id
        self.about: BoxAbout | None = None
        self._account = account
        self._epoch = epoch
        self._deadman_s = deadman_s
        self._sandbox = sandbox
        self._processes: Processes | None = None
        self._opening = asyncio.Lock()
        self._home = ""
        self.cwd = WORKSPACE
        self._ran = self._pids = 0
        self._since = time.monotonic()

    async def connect(self) -> None:
        await self.opened()

    async def opened(self) -> Processes:
        """Raises SessionLost, Fenced, RuntimeUnavailable."""
        async with self._opening:
            if self._processes is None or self.about is None:
                self._processes = await self._open()
                self._about(await self._ask())
            return self._processes

    async def _open(self) -> Processes:
        if self._sandbox is None:
            self._sandbox = await self._account.connect(self.box_id, lifetime_s=self._deadman_s)
        return Processes(self._sandbox, self._account.failures)

    async def sandbox(self) -> AsyncSandbox:
        await self.opened()
        assert self._sandbox is not None
        return self._sandbox

    async def ping(self) -> None:
        await self.opened()
        await self._account.prolong(self.box_id, lifetime_s=self._deadman_s)

    async def check_alive(self) -> None:
        """Raises SessionLost, RuntimeUnavailable."""
        sandbox = await self.sandbox()
        async with self._account.failures.translated(f"box {self.box_id}"):
            alive = await sandbox.is_running()
        if not alive:
            raise SessionLost(f"box {self.box_id} has ended: E2B does not have it any more")

    async def report(self, state: Mapping[str, Any] | None = None) -> Report:
        """state: to store, for the next owner."""
        await self.opened()
        report = await self._ask(state)
        self._about(report)
        return report

    async def _ask(self, state: Mapping[str, Any] | None = None) -> Report:
        assert self._processes is not None
        args = [str(self._epoch), *([] if state is None else [json.dumps(dict(state))])]
        code, output, errors = await self._processes.output(scripts.REPORT, *args)
        text = output.decode("utf-8", "replace")
        if code != 0 or text.startswith("lacking"):
            why = errors.decode("utf-8", "replace").strip()[:200] or f"exit code {code}"
            raise RuntimeUnavailable(f"box {self.box_id} was not made by this runtime: {why}")
        return Report.parse(text, self.box_id)

    def _about(self, report: Report) -> None:
        """Raises RuntimeUnavailable."""
        self._home, self.cwd, self._pids = report.home, report.cwd, report.pids
        try:
            self.about = BoxAbout(
                version=PROTOCOL,
                box=self.box_id,
                boot=self.box_id,
                build=scripts.build(),
                epoch=self._epoch,
                uptime_s=report.uptime_s,
                idle_s=report.idle_s,
                ran=max(self._ran, len(report.commands)),
                cwd=self.cwd,
                state=report.state,
            )
        except ValidationError as exc:
            raise RuntimeUnavailable(f"box {self.box_id} reports nonsense: {exc}") from None
