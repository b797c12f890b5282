"""Folders into a sandbox, as archives that are unpacked there."""

from __future__ import annotations

import secrets
import shlex
from pathlib import Path

from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.protocol.models import ExecuteRequest, Target, checked
from sandbox_sdk.protocol.sandboxes import Sandboxes
from sandbox_sdk.transfer import FileChunks

# `exec` replaces the shell, so the thread's working directory and variables stay as they are.
_UNPACK = (
    """exec bash -c 'mkdir -p -- "$2" && tar -x -p -f "$1" -C "$2"; code=$?; rm -f -- "$1"; """
    """exit "$code"' cp {archive} {folder}"""
)
_UNPACK_S = 600.0


async def send_archive(sandboxes: Sandboxes, target: Target, archive: Path, folder: str) -> int:
    """Unpack a tar of this machine into a folder of the sandbox. Returns its size.

    Raises SandboxError with what tar says, such as that the disk is full.
    """
    name = f".sandbox-cp-{secrets.token_hex(8)}.tar"
    stored = await sandboxes.upload_file(target, name, FileChunks(archive))
    unpack = _UNPACK.format(archive=shlex.quote(stored.path), folder=shlex.quote(folder))
    request = checked(ExecuteRequest, **dict(target), command=unpack, timeout=_UNPACK_S)
    result = await sandboxes.execute(request)
    if result.exit_code != 0:
        raise SandboxError(
            f"{folder} could not be unpacked in the sandbox (exit code {result.exit_code}):"
            f" {result.output[-1000:]}"
        )
    return stored.size
