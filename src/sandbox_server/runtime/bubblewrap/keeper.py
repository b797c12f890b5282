"""Starting a box: everything up to the keeper, the one process that outlives us and cleans up.

    keeper (sh) ── bubblewrap, which the launcher became ── the warden, PID 1 of the box

When the warden ends, for whatever reason, bubblewrap ends, and the keeper removes the groups, the
claim and the folder. When the keeper is killed the kernel ends the other two. Until the keeper runs
a box is nothing but a folder.
"""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from sandbox_server.private import private_listener
from sandbox_server.runtime import loop_disk
from sandbox_server.runtime.base import BoxSpec
from sandbox_server.runtime.bubblewrap import launcher
from sandbox_server.runtime.bubblewrap.plan import Plan
from sandbox_server.runtime.bubblewrap.setup import Setup
from sandbox_server.runtime.bubblewrap.state import StateFolder, boot_id

LAUNCHER = (sys.executable, "-I", "-S", launcher.__file__)
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

# In the background twice: the keeper is nobody's child, so nobody has to reap it. A background
# process gets no stdin, hence the way of the listening socket by descriptor 3.
_KEEPER = """
exec 3<&0 </dev/null
{
  "$@" <&3 3<&- &
  exec 3<&- 2>/dev/null
  wait $!
  IFS='
'
  set -f
  for group in $BOX_GROUPS; do
    tries=0
    while [ -d "$group" ] && ! rmdir "$group" && [ $tries -lt 100 ]; do
      sleep 0.05
      tries=$((tries + 1))
    done
  done
  rm -rf -- ${BOX_CLAIM:+"$BOX_CLAIM"} "$BOX_FOLDER"
} &
"""


@dataclass(frozen=True)
class Making:
    """A box that has no keeper yet."""

    folder: Path
    plan: Plan
    claim: Path | None

    def write_plan(self) -> str:
        path = self.folder / "plan"
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            marshal.dump(dict(self.plan), file)
        return str(path)

    def discard(self) -> None:
        if self.claim is not None:
            self.claim.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def prepare(
    setup: Setup, state: StateFolder, spec: BoxSpec, folder: Path, held: ExitStack
) -> Making:
    """Everything before the launcher. `held` gets what has to be kept open until the box runs.

    Blocks for a millisecond. Raises OSError and SandboxError.
    """
    uid = claim = None
    if setup.uids is not None:
        uid, claim = state.claim(folder.name, setup.uids)
        if not setup.namespace:  # Then bubblewrap itself looks for what it binds, as that user.
            state.let_pass()
    device = ""
    if setup.has_disk:
        limits = spec.limits
        disk = loop_disk.new_disk(
            state.path, size=limits.disk_bytes, inodes=limits.inodes, label=folder.name
        )
        held.callback(disk.close)
        device = disk.device
    plan = setup.plan(spec, box_id=folder.name, uid=uid, disk=device)
    return Making(folder, {**plan, "folder": str(folder)}, claim)


def start(setup: Setup, state: StateFolder, spec: BoxSpec, folder: Path, held: ExitStack) -> int:
    """Start a box's keeper. Returns the end of a pipe that tells why where the box does not run.

    Blocks for some milliseconds. Raises like `prepare`; a keeper runs only if nothing was raised.
    """
    making = prepare(setup, state, spec, folder, held)
    making.plan["record"] = _record(spec, making)
    words = ["/bin/sh", "-c", _KEEPER, "sandbox-keeper", *LAUNCHER, making.write_plan()]
    complaints, complain = os.pipe()
    held.callback(os.close, complaints)
    try:
        with private_listener(folder / "sock", backlog=16) as listener:
            subprocess.run(
                words,
                stdin=listener.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=complain,
                cwd="/",
                env={**ENVIRONMENT, **_keeper_variables(making)},
                start_new_session=True,
                check=True,
            )
    finally:
        os.close(complain)
    return complaints


def _keeper_variables(making: Making) -> dict[str, str]:
    return {
        "BOX_FOLDER": str(making.folder),
        "BOX_CLAIM": str(making.claim or ""),
        "BOX_GROUPS": "\n".join(making.plan["groups"]),
    }


def _record(spec: BoxSpec, making: Making) -> str:
    return json.dumps(
        {
            "id": making.folder.name,
            "owner": spec.owner,
            "created_at": time.time(),
            "boot": boot_id(),
            "limits": asdict(spec.limits),
            "groups": making.plan["groups"],
            "claim": str(making.claim or ""),
        }
    )


def read_complaints(fd: int) -> str:
    """What a box that did not start has said. Waits for its end, which is near."""
    os.set_blocking(fd, False)
    said = b""
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline and len(said) < 65536:
        with contextlib.suppress(BlockingIOError):
            piece = os.read(fd, 65536)
            if not piece:
                break
            said += piece
            continue
        time.sleep(0.01)
    return said.decode("utf-8", "replace")
