"""How a result looks in a notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandbox_sdk.protocol.models import CodeResult, Result


def as_html(result: CodeResult) -> str:
    """Output, results and error, one below the other."""
    parts = [_pre(text) for text in (result.stdout, result.stderr) if text]
    parts += [_shown(each) for each in result.results]
    if result.error is not None:
        traceback = "\n".join(result.error.traceback)
        parts.append(_pre(traceback or f"{result.error.name}: {result.error.value}"))
    return "\n".join(parts)


def _shown(result: Result) -> str:
    """Its richest form. HTML was made by code in the sandbox: it is shown in a frame that may not
    run scripts."""
    for mime in ("image/png", "image/jpeg"):
        if result.image(mime) is not None:
            return f'<img src="data:{mime};base64,{escape(str(result.data[mime]))}">'
    rich = result.html or result.svg
    if rich is not None:
        style = "border:0;width:100%;min-height:12em"
        return f'<iframe sandbox srcdoc="{escape(rich)}" style="{style}"></iframe>'
    return _pre(result.markdown or result.text or "")


def _pre(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"
