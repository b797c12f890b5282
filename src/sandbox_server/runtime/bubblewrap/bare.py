"""Bare boxes: forked from the zygote, and waiting for a plan.

A bare box has its folder, its uid, its keeper, its control groups and a PID 1, none of which
depends on what it will be used for. The runtime keeps one as a spare, because all of that takes
longer than the rest of a start: the kernel alone makes a process wait for 10 ms until it is in a
control group.

It is removed like any other box: when the server ends, in whatever way, PID 1 sees the end of its
channel and exits, and the keeper cleans up. Its record has no owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import marshal
import os
import select
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from sandbox_server.private import private_listener
from sandbox_server.runtime.bubblewrap.plan import BarePlan, Plan
from sandbox_server.runtime.bubblewrap.setup import Setup
from sandbox_server.runtime.bubblewrap.state import StateFolder, boot_id
from sandbox_server.runtime.bubblewrap.zygote import Zygote

_KEPT_S = 20.0
"""How long the zygote may take to fork a keeper; twenty may be starting at once."""


@dataclass(frozen=True)
class BareBox:
    folder: Path
    uid: int
    claim: Path
    stderr: int
    """A pipe to read startup errors from."""
    channel: socket.socket
    """To PID 1."""

    @classmethod
    def start(cls, folder: Path, setup: Setup, state: StateFolder, zygote: Zygote) -> BareBox:
        """Fork one. Does not wait for it. Raises OSError and RuntimeUnavailable."""
        assert setup.uids is not None
        uid, claim = state.claim(folder.name, setup.uids)
        with ExitStack() as ours, ExitStack() as theirs:
            stderr, stderr_writer = os.pipe()
            ours.callback(os.close, stderr)
            theirs.callback(os.close, stderr_writer)
            channel, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.enter_context(channel)
            theirs.enter_context(far_end)
            listener = theirs.enter_context(private_listener(folder / "sock", backlog=16))
            groups = setup.groups.folders(folder.name)
            plan = write_plan(folder, _bare_plan(folder, claim, groups))
            zygote.fork(plan, [listener.fileno(), stderr_writer, far_end.fileno()])
            ours.pop_all()
        return cls(folder, uid, claim, stderr, channel)

    def alive(self) -> bool:
        """Whether it has not ended. It may still be starting."""
        poll = select.poll()
        poll.register(self.channel, 0)
        return not poll.poll(0)

    def go(self, plan: Plan) -> None:
        """Have it become the box of a plan. It may fail to: then it is never ready.

        Raises OSError if its record cannot be written.
        """
        self.channel.settimeout(_KEPT_S)
        if not self.channel.recv(1):
            return  # What it says about that is in the pipe.
        record = self.folder / "box.json"
        body = {**json.loads(record.read_bytes()), **json.loads(plan["record"])}
        new = record.with_suffix(".new")
        with open(new, "w", opener=_private) as file:
            json.dump(body, file)
        new.rename(record)
        with contextlib.suppress(ConnectionError):
            self.channel.send(write_plan(self.folder, plan).encode())

    async def ready(self) -> bool:
        """Wait until the warden serves; False if the box has failed."""
        self.channel.setblocking(False)
        try:
            return await asyncio.get_running_loop().sock_recv(self.channel, 1) != b""
        except ConnectionError:
            return False

    def close(self) -> None:
        """Close the descriptors. A box without a plan then ends. Idempotent."""
        if self.channel.fileno() >= 0:
            self.channel.close()
            os.close(self.stderr)


def write_plan(folder: Path, plan: Plan | BarePlan) -> str:
    path = folder / "plan"
    with open(path, "xb", opener=_private) as file:
        marshal.dump(dict(plan), file)
    return str(path)


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def _bare_plan(folder: Path, claim: Path, groups: list[str]) -> BarePlan:
    record = {
        "id": folder.name,
        "owner": "",
        "created_at": 0.0,
        "boot": boot_id(),
        "groups": groups,
        "claim": str(claim),
    }
    return {
        "folder": str(folder),
        "claim": str(claim),
        "record": json.dumps(record),
        "groups": groups,
    }
