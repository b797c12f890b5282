"""What a model is told of a run of code: its output, results and error as text, images beside."""

from __future__ import annotations

import json
from typing import Any

from sandbox_sdk.integrations.presenting import (
    RECREATED,
    REPLAYED,
    Presenting,
    clean,
    resumed_note,
    shorten,
)
from sandbox_sdk.protocol.models import CodeResult, Result, ToolImage

IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
MAX_IMAGES = 8
_STATES = {
    "restarted": "Note: variables and imports of earlier runs were lost; this is a new context.",
    "lost": "[the context is lost: variables and imports are gone, files are not. The next run"
    " begins in a new one]",
}


def images_of(result: CodeResult) -> tuple[ToolImage, ...]:
    """The images of a run, one of each result."""
    found = [
        ToolImage(mime=mime, data=str(each.data[mime]))
        for each in result.results
        if (mime := next((mime for mime in IMAGES if mime in each.data), None))
    ]
    return tuple(found[:MAX_IMAGES])


def present_code(result: CodeResult, *, options: Presenting | None = None) -> str:
    """A run of code as text."""
    options = options or Presenting()
    parts = [REPLAYED] if result.replayed else []
    if result.session_state == "recreated":
        parts.append(RECREATED)
    if result.resumed is not None:
        parts.append(resumed_note(result.resumed))
    if result.context_state == "restarted":
        parts.append(_STATES["restarted"])
    if result.late_output:
        parts.append(f"[written since the last run: {_short(result.late_output, options)}]")
    for name, text in (("", result.stdout), ("stderr:\n", result.stderr)):
        if text:
            parts.append(name + _short(text, options))
    parts += [_short(_text_of(each), options) for each in result.results]
    parts += _ending(result, options)
    return "\n".join(part for part in parts if part) or "(no output)"


def _text_of(result: Result) -> str:
    """Its form that says most as text."""
    if any(mime in result.data for mime in IMAGES):
        return f"[an image: {result.text or 'shown'}]"
    for text in (result.markdown, result.text, result.html, result.svg):
        if text:
            return text
    return json.dumps(result.json) if result.json is not None else f"[{', '.join(result.data)}]"


def _ending(result: CodeResult, options: Presenting) -> list[str]:
    parts = []
    if result.error is not None:
        traceback = "\n".join(result.error.traceback)
        parts.append(_short(traceback or f"{result.error.name}: {result.error.value}", options))
    if result.timed_out:
        seconds = result.duration_ms / 1000
        parts.append(f"[interrupted after {seconds:.0f} s: it ran into its timeout]")
    if result.reason == "oom":
        parts.append("[killed, out of memory. Use less at once]")
    if result.context_state == "lost":
        parts.append(_STATES["lost"])
    return parts


def _short(text: str, options: Presenting) -> str:
    text = clean(text, options).rstrip("\n")
    cut = shorten(text, options.max_chars)
    if cut is None:
        return text
    return f"{cut.head}\n[… the middle left out, {cut.chars:,} characters in all …]\n{cut.tail}"


def openai_parts(text: str, images: tuple[ToolImage, ...]) -> list[dict[str, Any]]:
    """Content parts of a chat completion."""
    shown = [{"type": "image_url", "image_url": {"url": image.url}} for image in images]
    return [{"type": "text", "text": text}, *shown]
