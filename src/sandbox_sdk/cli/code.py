"""`sandbox code`: a file of code, its output and results as they come."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from base64 import b64decode
from pathlib import Path
from typing import Annotated

import typer

from sandbox_sdk.cli.caller import INTERRUPTED, Caller
from sandbox_sdk.cli.escape import escaped_json
from sandbox_sdk.cli.follow import note, write
from sandbox_sdk.cli.options import (
    Environment,
    EnvPairs,
    NewSandbox,
    Provider,
    duration_option,
    env_of,
)
from sandbox_sdk.cli.run import on_interrupt
from sandbox_sdk.client import AsyncSandboxClient
from sandbox_sdk.options import CodeOptions
from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.protocol.events import (
    CodeErrorEvent,
    CodeEvent,
    EndEvent,
    GapEvent,
    OutputEvent,
    ResultEvent,
    StartEvent,
)

LANGUAGES = {
    ".py": "python", ".js": "javascript", ".ts": "typescript", ".r": "r", ".sh": "bash",
}  # fmt: skip
_SUFFIXES = {"image/png": ".png", "image/jpeg": ".jpg", "image/svg+xml": ".svg"}


def code(
    file: Annotated[str, typer.Argument(help="A file of code, or `-` for stdin.")],
    *,
    thread: Annotated[
        str | None,
        typer.Option("--thread", "-t", help="Whose sandbox; without it, one for this run alone."),
    ] = None,
    language: Annotated[
        str | None,
        typer.Option("--language", "-l", help="By default from the file's name, or python."),
    ] = None,
    context: Annotated[str | None, typer.Option(help="The context to run it in.")] = None,
    images: Annotated[
        Path | None, typer.Option(help="A folder for the images that it shows.")
    ] = None,
    timeout: Annotated[
        float | None, duration_option("When it is interrupted: 90s, 5m, or seconds.")
    ] = None,
    env: EnvPairs = None,
    environment: Environment = None,
    provider: Provider = None,
    caller: Caller,
) -> None:
    """Run code on a Jupyter kernel of the sandbox. Leaves with 1 if it raised.

    Variables stay in the sandbox of a thread, for the next run. Ctrl-C interrupts it. A new
    sandbox needs an --environment with a kernel; bash needs none. With --json, a line of JSON for
    every event.
    """
    source = sys.stdin.read() if file == "-" else _read(file)
    given = language or (None if context else LANGUAGES.get(Path(file).suffix.lower()))
    options: CodeOptions = {"timeout": timeout, "env": env_of(env), "context": context}
    sandbox = caller.client(thread, NewSandbox(environment=environment, provider=provider))
    caller.run(_run(caller, sandbox, source, given, images, options))


def _read(file: str) -> str:
    try:
        return Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise typer.BadParameter(f"{file} cannot be read: {exc}") from None


async def _run(
    caller: Caller,
    client: AsyncSandboxClient,
    source: str,
    language: str | None,
    images: Path | None,
    options: CodeOptions,
) -> int:
    interrupted = on_interrupt()
    failed = False
    shown = _Shown(images)
    async with client as sandbox:
        stopping: asyncio.Task[None] | None = None
        try:
            events = sandbox.stream_code(source, language, **options)
            async with contextlib.aclosing(events):
                async for event in events:
                    if isinstance(event, StartEvent):
                        stop = _interrupt(sandbox, event.command_id, interrupted)
                        stopping = asyncio.create_task(stop)
                    failed |= isinstance(event, CodeErrorEvent)
                    if caller.json:
                        write(escaped_json(event.model_dump_json()) + "\n", to="stdout")
                    else:
                        shown.show(event)
        finally:
            if stopping is not None:
                stopping.cancel()
    return INTERRUPTED if interrupted.is_set() else int(failed)


async def _interrupt(sandbox: AsyncSandboxClient, command_id: str, when: asyncio.Event) -> None:
    await when.wait()
    try:
        await (await sandbox.process(command_id)).signal("INT")
    except SandboxError as exc:
        note(f"the code could not be interrupted: {exc.message}")


class _Shown:
    """Shows events to a person."""

    def __init__(self, images: Path | None) -> None:
        self._images = images
        self._count = 0

    def show(self, event: CodeEvent) -> None:
        if isinstance(event, OutputEvent):
            write(event.data, to=event.event)
        elif isinstance(event, GapEvent):
            note(f"{event.next_offset - event.offset} bytes of output are no longer kept")
        elif isinstance(event, ResultEvent):
            self._result(event)
        elif isinstance(event, CodeErrorEvent):
            text = "\n".join(event.traceback) or f"{event.name}: {event.value}"
            write(text + "\n", to="stderr")
        elif isinstance(event, EndEvent):
            self._end(event)

    def _result(self, event: ResultEvent) -> None:
        for mime, suffix in _SUFFIXES.items():
            if mime in event.data and self._images is not None:
                self._save(str(event.data[mime]), suffix)
                return
        text = event.markdown or event.text or event.html
        write(f"{text or ', '.join(event.data)}\n", to="stdout")

    def _save(self, data: str, suffix: str) -> None:
        assert self._images is not None
        self._images.mkdir(parents=True, exist_ok=True)
        self._count += 1
        path = self._images / f"image-{self._count}{suffix}"
        path.write_bytes(data.encode() if suffix == ".svg" else b64decode(data))
        write(f"{path}\n", to="stdout")

    def _end(self, event: EndEvent) -> None:
        if event.context_state == "restarted":
            note("the context of earlier runs was lost; this one began without their variables")
        if event.timed_out:
            note("the code ran into its --timeout and was interrupted")
        elif event.reason == "oom":
            note("the kernel ran out of memory and was ended; variables are lost")
