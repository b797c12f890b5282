"""`sandbox run`: one command, its output as it comes, its exit code."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from sandbox_sdk.cli.caller import INTERRUPTED, Caller
from sandbox_sdk.cli.follow import run_command, shown_as
from sandbox_sdk.cli.options import (
    ApiKey,
    CpuLimit,
    DiskLimit,
    Environment,
    EnvPairs,
    History,
    Json,
    MemoryLimit,
    MountPairs,
    Network,
    PidsLimit,
    Provider,
    Url,
    VolumeNames,
    duration,
    env_of,
    limits_of,
    mounts_of,
    volumes_of,
)
from sandbox_sdk.cli.terminal import refuse_waiting
from sandbox_sdk.client import AsyncSandboxClient
from sandbox_sdk.options import CommandOptions
from sandbox_sdk.protocol.errors import SandboxError


def run(
    command: Annotated[str, typer.Argument(help="Bash source.")],
    thread: Annotated[
        str | None,
        typer.Option("--thread", "-t", help="Whose sandbox; without it, one for this run alone."),
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--file", "-f", metavar="LOCAL[:PATH]", help="A file to put there first; repeatable."
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            parser=duration,
            metavar="DURATION",
            help="When it is ended: 90s, 5m, or seconds; 30 unless the server is set up otherwise.",
        ),
    ] = None,
    env: EnvPairs = None,
    cwd: Annotated[str | None, typer.Option(help="Where to run it.")] = None,
    no_stdin: Annotated[
        bool, typer.Option("--no-stdin", "-n", help="Do not pass on what is piped in.")
    ] = False,
    mount: MountPairs = None,
    volume: VolumeNames = None,
    environment: Environment = None,
    provider: Provider = None,
    history: History = False,
    network: Network = None,
    memory: MemoryLimit = None,
    cpus: CpuLimit = None,
    pids: PidsLimit = None,
    disk: DiskLimit = None,
    artifacts: Annotated[
        bool,
        typer.Option(
            "--artifacts", help="Keep the files it makes or changes; see `sandbox artifacts`."
        ),
    ] = False,
    url: Url = None,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """Run a command and leave with its exit code.

    Its stdout and stderr come as they are written; what is piped in becomes its stdin. Ctrl-C kills
    it with everything it has started. It has no terminal, so editors such as vim are refused: use
    `sandbox cp`, sed or a here-document. With --json, a line of JSON for every event. Environment,
    provider, limits, network and volumes are those of a new sandbox; one that is there keeps its
    own, and a line names them.
    """
    options: CommandOptions = {"timeout": timeout, "env": env_of(env)}
    if cwd is not None:
        options["cwd"] = cwd
    if artifacts:
        options["artifacts"] = True
    files = [split_file(each) for each in file or ()]
    caller = Caller(url=url, api_key=api_key, json=as_json)
    limits = limits_of(memory=memory, cpus=cpus, pids=pids, disk=disk)
    try:
        sandbox = caller.client(
            thread,
            environment=environment,
            provider=provider,
            limits=limits,
            network=network,
            mounts=mounts_of(mount),
            history=history,
            volumes=volumes_of(volume),
        )
    except SandboxError as exc:
        caller.fail(exc)
    caller.run(_run(caller, sandbox, command, files, None if no_stdin else _stdin(), options))


async def _run(
    caller: Caller,
    client: AsyncSandboxClient,
    command: str,
    files: list[tuple[str, str]],
    stdin: int | None,
    options: CommandOptions,
) -> int:
    refuse_waiting(command)  # Before a box is made for it.
    interrupted = on_interrupt()
    async with client as sandbox:
        for local, path in files:
            await sandbox.upload_file(local, path)
        show = shown_as(json=caller.json)
        exit_ = await run_command(
            sandbox, command, show=show, interrupted=interrupted, input_fd=stdin, **options
        )
    return INTERRUPTED if interrupted.is_set() else exit_.exit_code


def on_interrupt() -> asyncio.Event:
    """An event that the first Ctrl-C sets. The second cancels this task."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    interrupted = asyncio.Event()

    def handle() -> None:
        if interrupted.is_set() and task is not None:
            task.cancel()
        interrupted.set()

    loop.add_signal_handler(signal.SIGINT, handle)
    return interrupted


def split_file(text: str) -> tuple[str, str]:
    """LOCAL[:PATH]. A local name with a colon in it is a file that is there."""
    local, colon, path = text.rpartition(":")
    if not colon or Path(text).exists():
        return text, Path(text).name
    return local, path or Path(local).name


def _stdin() -> int | None:
    """The descriptor to pass on: none if stdin is a terminal, or closed."""
    try:
        return None if sys.stdin is None or os.isatty(0) else 0
    except OSError:
        return None
