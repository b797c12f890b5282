"""What all subcommands share: the way to the sandboxes, the output and the exit codes."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import logging
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import typer
from pydantic import BaseModel

from sandbox_sdk.backends.local import LocalBackend
from sandbox_sdk.cli.escape import escaped, escaped_json
from sandbox_sdk.cli.options import ApiKey, Json, NewSandbox, Url, mounts_of, volumes_of
from sandbox_sdk.client import AsyncSandboxClient
from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.protocol.models import NetworkMode

if TYPE_CHECKING:
    from sandbox_sdk.backends.remote import RemoteBackend

SANDBOX_FAILED = 125
"""Like `docker run`: what failed is not the command, but what should run it."""
INTERRUPTED = 130
_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Options that nearly every subcommand has, see subcommand(), and what it does with them."""

    url: Url = None
    api_key: ApiKey = None
    json: Json = False

    def client(
        self, thread_id: str | None = None, new: NewSandbox | None = None
    ) -> AsyncSandboxClient:
        """A client for a thread; without one, for a session that ends with the client. Raises
        InvalidRequest."""
        _Warnings.attach(self)
        new = new or NewSandbox()
        return AsyncSandboxClient(
            thread_id,
            backend=self.sandboxes(),
            environment=new.environment,
            provider=new.provider,
            limits=new.limits(),
            network=cast("NetworkMode | None", new.network),
            mounts=mounts_of(new.mount),
            history=new.history,
            volumes=volumes_of(new.volume),
        )

    def sandboxes(self) -> RemoteBackend | LocalBackend:
        """Those of the server, or without one those of this process."""
        if self.url:
            from sandbox_sdk.backends.remote import RemoteBackend

            _Warnings.attach(self)
            return RemoteBackend(self.url, api_key=self.api_key)
        # About settings: a line of ours, without the place in our code.
        warnings.showwarning = lambda message, *_: self.complain(str(message))
        return LocalBackend()

    def run(
        self,
        work: Coroutine[Any, Any, int | None],
        *,
        loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> NoReturn:
        """Do the work and exit with its code, or with a line that says what went wrong.

        loop: makes the event loop, if not asyncio's own.
        """
        gc.freeze()
        gc.enable()  # The start is over, see main().
        try:
            with asyncio.Runner(loop_factory=loop) as runner:
                code = runner.run(work)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except (SandboxError, OSError) as exc:
            self.fail(exc)
        raise typer.Exit(code or 0)

    def fail(self, error: SandboxError | OSError) -> NoReturn:
        """Print an error and exit."""
        if isinstance(error, BrokenPipeError):
            raise error  # The reader of our output has left: printing would fail again.
        if self.json:
            self.tell({"error": error_body(error)})
        else:
            self.complain(error_body(error)["message"])
        raise typer.Exit(SANDBOX_FAILED) from None

    async def follow(
        self, found: AsyncIterator[_Model], line: Callable[[_Model], str], count: int | None
    ) -> None:
        """Tell each as it comes. line: of one, for people. count: after how many to stop."""
        async for each in found:
            if self.json:
                self.tell(each)
            else:
                print(line(each), flush=True)
            count = None if count is None else count - 1
            if count == 0:
                return

    def complain(self, message: str) -> None:
        print(f"sandbox: {escaped(' '.join(message.split()))}", file=sys.stderr, flush=True)

    def say(self, document: Any, text: str = "") -> None:
        """A document with --json; else the text for people, if there is any."""
        if self.json:
            self.tell(document)
        elif text:
            print(text, flush=True)

    def tell(self, document: Any) -> None:
        """One JSON document, on a line of its own where the output is not a terminal."""
        if isinstance(document, BaseModel):
            document = document.model_dump(mode="json")
        indent = 2 if sys.stdout.isatty() else None
        text = json.dumps(document, ensure_ascii=False, indent=indent)
        print(escaped_json(text), flush=True)

    def say_table(self, document: Any, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A document with --json; else rows for people."""
        if self.json:
            self.tell(document)
        else:
            self.table(heads, rows)

    def complain_of_cut(self, limit: int, *, truncated: bool) -> None:
        """Tell people that a list is cut at its limit, if it is."""
        if truncated and not self.json:
            self.complain(f"there are more than {limit}: see --limit")

    def complain_of_missing(self, unreachable: Sequence[str], what: str) -> None:
        """Tell people which workers have not answered, if any, and what a list lacks by that."""
        if unreachable and not self.json:
            self.complain(f"no answer from {', '.join(unreachable)}: {what}")

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Rows below heads; without heads, rows alone."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold", show_header=bool(heads))
        for head in heads:
            table.add_column(head, overflow="fold")
        for row in rows:
            table.add_row(*(Text(escaped(cell)) for cell in row))
        # A pipe has no width: nothing is folded there, and nothing is filled up with spaces.
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 10_000)
        with console.capture() as shown:
            console.print(table)
        print("\n".join(line.rstrip() for line in shown.get().splitlines()), flush=True)


def subcommand(
    function: Callable[..., Any], *, without: Collection[str] = ()
) -> Callable[..., None]:
    """What typer makes a subcommand of: a function, with the fields of every dataclass among its
    parameters as further options. Its parameter `caller` runs the coroutine, if it is one, and
    prints its errors.

    without: fields that are no options of this one.
    """
    groups: dict[str, tuple[type, list[str]]] = {}
    parameters: list[inspect.Parameter] = []
    for name, given in inspect.signature(function, eval_str=True).parameters.items():
        if is_dataclass(kind := given.annotation) and isinstance(kind, type):
            options = [each for each in _options(kind) if each.name not in without]
            groups[name] = kind, [each.name for each in options]
            parameters += options
        else:
            parameters.append(given.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    def command(**values: Any) -> None:
        for name, (kind, names) in groups.items():
            values[name] = kind(**{each: values.pop(each) for each in names})
        caller: Caller = values["caller"]
        try:
            done = function(**values)
        except (SandboxError, OSError) as exc:
            caller.fail(exc)
        if inspect.iscoroutine(done):
            caller.run(done)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _options(kind: type) -> list[inspect.Parameter]:
    types = inspect.get_annotations(kind, eval_str=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(each.name, keyword, default=each.default, annotation=types[each.name])
        for each in fields(kind)
    ]


class _Warnings(logging.Handler):
    """Shows on stderr what the client warns of: that it waits for a server, for example."""

    def __init__(self, caller: Caller) -> None:
        super().__init__(logging.WARNING)
        self._caller = caller

    @classmethod
    def attach(cls, caller: Caller) -> None:
        """In place of the one before, so that nothing is shown twice."""
        for name in ("sandbox.client", "sandbox.remote"):
            logging.getLogger(name).handlers = [cls(caller)]

    def emit(self, record: logging.LogRecord) -> None:
        self._caller.complain(record.getMessage())


def error_body(error: SandboxError | OSError) -> dict[str, Any]:
    """An error in the form it has on the wire."""
    if isinstance(error, SandboxError):
        details = {"details": error.details} if error.details else {}
        return {"code": error.code, "message": error.message, **details}
    name = f"{error.filename}: " if error.filename else ""
    return {"code": "local", "message": f"{name}{error.strerror or error}"}
