"""The SDK's methods with their signatures, as API_REFERENCE.md has them.

python scripts/signatures.py    writes them there; a test fails where they differ
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from sandbox_sdk import (
    AsyncBatchSandboxClient,
    AsyncProcess,
    AsyncSandboxClient,
    BatchSandboxClient,
    LocalBackend,
    Process,
    RemoteBackend,
    SandboxClient,
)
from sandbox_sdk.backends.local import LocalSettings
from sandbox_sdk.options import CommandOptions

REFERENCE = Path(__file__).parents[1] / "API_REFERENCE.md"
START, END = "<!-- signatures -->\n", "<!-- end of signatures -->\n"
PAIRS = (
    (SandboxClient, AsyncSandboxClient),
    (Process, AsyncProcess),
    (BatchSandboxClient, AsyncBatchSandboxClient),
)
BACKENDS = (RemoteBackend, LocalBackend)
OPTIONS = (CommandOptions, LocalSettings)


def text() -> str:
    """The whole of it, in Markdown."""
    parts = [_client(sync, awaited) for sync, awaited in PAIRS]
    parts += [f"### {kind.__name__}\n\n```text\n{_call(kind)}\n```\n" for kind in BACKENDS]
    parts += [_options(kind) for kind in OPTIONS]
    return "\n".join(parts)


def _client(sync: type, awaited: type) -> str:
    # A process is what `start` returns.
    lines = [] if sync is Process else [_call(sync), ""]
    for name, method in vars(sync).items():
        if not name.startswith("_") and inspect.isfunction(method):
            lines.append(f".{name}{_signature(method, leave_out=('self',))}")
        elif not name.startswith("_") and isinstance(method, property):
            assert method.fget is not None
            returned = inspect.signature(method.fget).return_annotation
            lines.append(f".{name}: {returned}")
    listing = "\n".join(lines)
    return (
        f"### {sync.__name__}\n\n`{awaited.__name__}` has the same methods, to be awaited, and its"
        f" streams are iterated with `async for`.\n\n```text\n{listing}\n```\n"
    )


def _call(kind: type) -> str:
    return f"{kind.__name__}{_signature(kind, leave_out=(), returns=False)}"


def _signature(function: Any, *, leave_out: tuple[str, ...], returns: bool = True) -> str:
    """Annotations as they are written in the source."""
    found = inspect.signature(function)
    kept = [p for p in found.parameters.values() if p.name not in leave_out]
    shown = found.replace(parameters=kept)
    if not returns:
        shown = shown.replace(return_annotation=inspect.Signature.empty)
    return re.sub(r"'([^']*)'(?=[,)=\s]|$)", _unquoted, str(shown))


def _unquoted(match: re.Match[str]) -> str:
    """An annotation is a text here, a default value is one too: only the first loses its quotes."""
    before = match.string[: match.start()]
    return match[1] if before.endswith((": ", "-> ")) else match[0]


def _options(kind: Any) -> str:
    lines = "\n".join(
        f"{name}: {_plain(kind.__annotations__[name])}" for name in kind.__annotations__
    )
    return f"### {kind.__name__}\n\n```text\n{lines}\n```\n"


def _plain(annotation: Any) -> str:
    return str(getattr(annotation, "__forward_arg__", annotation))


def written(reference: str) -> str:
    """The reference with today's signatures in it."""
    before, _, rest = reference.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}{text()}{END}{after}"


if __name__ == "__main__":
    REFERENCE.write_text(written(REFERENCE.read_text()))
