"""Parses a long listing in slices, so that a coordinator can serve others in between."""

from __future__ import annotations

import asyncio
import json
import re

from sandbox_sdk.protocol.models import FileEntry, ListResult

_SLICE = 200
_START = re.compile(r'"entries"\s*:\s*\[\s*')
"""Matches nothing else: inside a string the quotes would be escaped."""
_NEXT = re.compile(r"\s*,\s*")
_END = re.compile(r"\s*\]")


async def read_listing(body: bytes) -> ListResult:
    """Raises ValueError."""
    text = body.decode()
    start = _START.search(text)
    if start is None:
        return ListResult.model_validate_json(body)
    decode = json.JSONDecoder().raw_decode
    entries: list[FileEntry] = []
    place = start.end()
    while _END.match(text, place) is None:
        found, place = decode(text, place)
        entries.append(FileEntry.model_validate(found))
        if after := _NEXT.match(text, place):
            place = after.end()
        if len(entries) % _SLICE == 0:
            await asyncio.sleep(0)
    rest = json.loads(f"{text[: start.end()]}{text[place:]}")
    return ListResult(**{**rest, "entries": entries})
