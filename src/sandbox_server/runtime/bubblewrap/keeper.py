"""Starts a box and its keeper, the process that outlives the server and cleans up after the box.

    keeper (sh) ── bubblewrap, which the launcher became ── the warden, PID 1 of the box

or, where boxes are forked (zygote.py), without bubblewrap in between. When the warden ends, the
keeper removes the control groups, the uid claim and the folder. If the keeper is killed, the kernel
kills the others. Before the keeper runs, a box is only a folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.private import private_listener
from sandbox_server.runtime import gpus, loop_disk
from sandbox_server.runtime.base import USUAL_USER, BoxSpec, BoxUser
from sandbox_server.runtime.bubblewrap import launcher, mounts
from sandbox_server.runtime.bubblewrap.bare import BareBox, write_plan
from sandbox_server.runtime.bubblewrap.plan import Plan
from sandbox_server.runtime.bubblewrap.setup import BoxGpus, Setup
from sandbox_server.runtime.bubblewrap.state import StateFolder, boot_id
from sandbox_server.runtime.bubblewrap.zygote import Zygote
from sandbox_server.runtime.gpus import GpuUse

LAUNCHER = (sys.executable, "-I", "-S", launcher.__file__)
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

# Double fork: init adopts and reaps the keeper. A background process gets no stdin, so the
# listening socket is passed as descriptor 3.
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
    while [ -d "$group" ] && ! rmdir "$group" && [ $tries -lt 600 ]; do
      sleep 0.05
      tries=$((tries + 1))
    done
  done
  rm -rf -- ${BOX_CLAIM:+"$BOX_CLAIM"} "$BOX_FOLDER"
} &
"""


@dataclass(frozen=True)
class PreparedBox:
    """A box without a keeper yet."""

    folder: Path
    plan: Plan
    claim: Path | None
    disk: str = ""
    """Its handle."""

    def write_plan(self) -> str:
        return write_plan(self.folder, self.plan)

    def discard(self) -> None:
        if self.claim is not None:
            self.claim.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def prepare(
    setup: Setup,
    state: StateFolder,
    spec: BoxSpec,
    folder: Path,
    held: ExitStack,
    *,
    bare: BareBox | None = None,
    use: GpuUse | None = None,
) -> PreparedBox:
    """Prepare a box up to the launcher's start. `held` closes what must stay open until it runs.

    Blocks for a millisecond. Raises OSError and SandboxError.
    """
    uid = claim = None
    if bare is not None:
        uid, claim = bare.uid, bare.claim
    elif setup.uids is not None:
        uid, claim = state.claim(folder.name, setup.uids)
        if not setup.namespace:  # bubblewrap then opens what it binds as that user.
            state.allow_traversal()
    device = handle = ""
    if spec.disk is not None and not setup.has_disk:
        raise RuntimeUnavailable(f"no box can begin with the copy of a disk: {setup.no_disk}")
    if setup.has_disk:
        disk = loop_disk.new_disk(
            state.disks,
            size=spec.limits.disk_bytes,
            inodes=spec.limits.inodes,
            label=folder.name,
            image=None if spec.disk is None else spec.disk.path,
        )
        held.callback(disk.close)
        device, handle = disk.device, disk.handle
        if spec.volumes:
            owner = spec.disk.owner if spec.disk is not None else uid or 0
            loop_disk.make_folders(device, [each.name for each in spec.volumes], owner=owner)
    has = _box_gpus(use)
    if spec.user != USUAL_USER:
        spec = replace(spec, layers={**spec.layers, **_accounts(folder, spec.user)})
    plan = setup.plan(spec, box_id=folder.name, uid=uid, disk=device, gpus=has)
    plan = {**plan, "folder": str(folder), "claim": str(claim or "")}
    return PreparedBox(folder, plan, claim, handle)


def _accounts(folder: Path, user: BoxUser) -> dict[str, str]:
    """Files of a box with a user of its own, by path in the box."""
    found = {}
    for path, text in mounts.accounts(user).items():
        file = folder / Path(path).name
        file.write_text(text)
        file.chmod(0o644)
        found[path] = str(file)
    return found


def start(
    setup: Setup,
    state: StateFolder,
    spec: BoxSpec,
    folder: Path,
    held: ExitStack,
    use: GpuUse | None = None,
) -> int:
    """Start a box with bubblewrap. Returns a pipe to read the startup errors from.

    Blocks for some milliseconds. Raises like `prepare`; a keeper runs only if nothing was raised.
    """
    box = prepare(setup, state, spec, folder, held, use=use)
    box.plan["record"] = _record(spec, box, use)
    plan = box.write_plan()
    stderr, stderr_writer = os.pipe()
    held.callback(os.close, stderr)
    try:
        with private_listener(folder / "sock", backlog=16) as listener:
            locks = [each.lock for each in spec.volumes if each.lock is not None]
            _spawn(box, plan, listener.fileno(), stderr_writer, locks)
    finally:
        os.close(stderr_writer)
    return stderr


def fork(
    setup: Setup,
    state: StateFolder,
    spec: BoxSpec,
    folder: Path,
    held: ExitStack,
    zygote: Zygote,
    spare: BareBox | None,
    use: GpuUse | None = None,
) -> BareBox:
    """Start a box from the spare, or else from the zygote. Blocks and raises like `start`."""
    bare = spare or BareBox.start(folder, setup, state, zygote)
    held.callback(bare.close)
    box = prepare(setup, state, spec, folder, held, bare=bare, use=use)
    box.plan["record"] = _record(spec, box, use)
    bare.go(box.plan)
    return bare


def _spawn(box: PreparedBox, plan: str, listener: int, stderr: int, locks: Sequence[int]) -> None:
    """locks: for the keeper alone, which has them as long as it lives: the launcher closes what it
    does not know."""
    subprocess.run(
        ["/bin/sh", "-c", _KEEPER, "sandbox-keeper", *LAUNCHER, plan],
        stdin=listener,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        cwd="/",
        env={**ENVIRONMENT, **_keeper_variables(box)},
        start_new_session=True,
        pass_fds=locks,
        check=True,
    )


def _keeper_variables(box: PreparedBox) -> dict[str, str]:
    return {
        "BOX_FOLDER": str(box.folder),
        "BOX_CLAIM": str(box.claim or ""),
        "BOX_GROUPS": "\n".join(box.plan["groups"]),
    }


def _box_gpus(use: GpuUse | None) -> BoxGpus:
    if use is None:
        return BoxGpus()
    return BoxGpus(
        devices=tuple(gpus.devices(use)), libraries={path: path for path in gpus.libraries()}
    )


def _record(spec: BoxSpec, box: PreparedBox, use: GpuUse | None) -> str:
    return json.dumps(
        {
            "id": box.folder.name,
            "owner": spec.owner,
            "created_at": time.time(),
            "boot": boot_id(),
            "limits": asdict(spec.limits),
            "groups": box.plan["groups"],
            "claim": str(box.claim or ""),
            "layers": sorted(set(spec.layers.values())),
            "gpus": str(use or ""),
            "disk": box.disk,
            "disk_owner": _disk_owner(spec, box),
        }
    )


def _disk_owner(spec: BoxSpec, box: PreparedBox) -> int:
    if spec.disk is not None:
        return spec.disk.owner
    uid = box.plan["uid"]
    return os.getuid() if uid is None else uid


def read_startup_errors(fd: int) -> str:
    """The error output of a box that did not start. Waits up to 1 s for its end."""
    os.set_blocking(fd, False)
    output = b""
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline and len(output) < 65536:
        with contextlib.suppress(BlockingIOError):
            piece = os.read(fd, 65536)
            if not piece:
                break
            output += piece
            continue
        time.sleep(0.01)
    return output.decode("utf-8", "replace")
