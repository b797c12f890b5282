"""The server's side of a warden: everything that can be done in a box.

A client keeps one link and replaces it when it breaks. Commands carry an id of their own, so asking
again after a break joins the command that is already running: nothing runs twice, nothing is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from typing import Any, TypedDict, Unpack

from sandbox_sdk.protocol import errors
from sandbox_server.runtime.base import Box
from sandbox_warden import frames

from .answers import (
    BoxAbout,
    BoxState,
    DownloadAbout,
    FileEntry,
    Listing,
    Uploaded,
    Usage,
    checked,
    checked_entries,
    raise_answer,
    readable,
    reply_body,
)
from .events import CommandResult, Event, Exited, Gap, Output, Started, event_of
from .link import Channel, Link, LinkLost

ANSWER_S = 30.0
"""How long a warden may take for an answer that does not depend on a command."""
CONNECT_S = 10.0
SILENCE_S = 5.0
"""After so long without a word, the warden is asked whether it is still there."""
OUTPUT_LIMIT = 1 << 20
MAX_LIST_BYTES = 64 << 20


class RunOptions(TypedDict, total=False):
    """How a command is run."""

    timeout_s: float | None
    """30 s unless told; None for no limit."""
    cwd: str | None
    env: Mapping[str, str] | None
    stdin: bytes | None
    key: str | None
    """A second run under the same key joins the first instead."""
    command_id: str | None
    output_limit: int


class Download:
    """A file on its way out: what it is, then its bytes. A folder comes as a tar."""

    def __init__(self, about: DownloadAbout, channel: Channel) -> None:
        self.about = about
        self._channel = channel

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            kind, _, payload = await self._channel.receive(silence_s=ANSWER_S)
            if kind == frames.DATA:
                yield payload
            elif kind == frames.REPLY:
                return
            else:
                raise_answer(kind, payload)


class WardenClient:
    """Speaks to the warden of one box in the name of one epoch."""

    def __init__(self, box: Box, *, epoch: int = 1, deadman_s: float | None = None) -> None:
        self._box = box
        self._epoch = epoch
        self._deadman_s = deadman_s
        self._link: Link | None = None
        self.about: BoxAbout | None = None
        self._connecting = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<WardenClient {self._box!r} epoch {self._epoch} {self._link!r}>"

    async def __aenter__(self) -> WardenClient:
        await self.connect()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of the link. The box and what runs in it live on."""
        if self._link is not None:
            link, self._link = self._link, None
            await link.close()

    async def connect(self) -> None:
        """Make sure there is a link.

        Raises SessionLost where the box is gone, Fenced where it is somebody else's, and
        RuntimeUnavailable where the warden cannot be reached.
        """
        await self._get_link()

    # Commands

    async def run(self, command: str, **options: Unpack[RunOptions]) -> CommandResult:
        """Run a command to its end and return what is kept of its output."""
        body = _run_body(command, options, follow=False)
        timeout_s = body["timeout_s"]
        patience_s = None if timeout_s is None else timeout_s + ANSWER_S
        pieces: list[Output | Gap] = []
        try:
            async with (
                asyncio.timeout(patience_s),
                contextlib.aclosing(self._follow(frames.RUN, body, options.get("stdin"))) as events,
            ):
                async for event in events:
                    if isinstance(event, Exited):
                        return CommandResult(event.result, tuple(pieces))
                    if isinstance(event, Output | Gap):
                        pieces.append(event)
        except TimeoutError:
            raise errors.RuntimeUnavailable("the box did not answer in time; try again") from None
        raise AssertionError("a followed command exits or raises")

    def stream(self, command: str, **options: Unpack[RunOptions]) -> AsyncGenerator[Event]:
        """Run a command and yield its output as it comes. Leaving early does not end it."""
        body = _run_body(command, options, follow=True)
        return self._follow(frames.RUN, body, options.get("stdin"))

    def attach(self, command_id: str, *, offset: int = 0) -> AsyncGenerator[Event]:
        """Follow a command that was started before, from an offset in its output on."""
        body = {"command_id": command_id, "offset": offset, "follow": True}
        return self._follow(frames.ATTACH, body, None)

    async def signal(self, command_id: str, number: int) -> None:
        """Send a signal to everything a command has started; 9 ends all of it for sure."""
        await self._ask(frames.SIGNAL, {"command_id": command_id, "signal": number})

    async def _follow(
        self, kind: int, body: dict[str, Any], stdin: bytes | None
    ) -> AsyncGenerator[Event]:
        offset = int(body.get("offset", 0))
        told = False
        while True:
            link = await self._get_link()
            try:
                async with link.request(kind, {**body, "offset": offset}) as channel:
                    while True:
                        event = event_of(*await self._next(link, channel))
                        if isinstance(event, dict):
                            if stdin is not None:
                                channel.feed(stdin, int(event.get("stdin_received", 0)))
                            if told:
                                continue
                            told, event = True, Started(str(event["command_id"]))
                        elif isinstance(event, Output):
                            offset = event.offset + len(event.data)
                        elif isinstance(event, Gap):
                            offset = event.end
                        elif isinstance(event, Exited):
                            break
                        yield event
            except LinkLost:
                continue
            yield event
            return

    async def _next(self, link: Link, channel: Channel) -> frames.Frame:
        """The next frame, however long a command is silent, as long as its warden lives: an engine
        does not always end the streams of a box that is gone."""
        while True:
            try:
                return await channel.receive(silence_s=SILENCE_S)
            except TimeoutError:
                await self._make_sure(link)

    async def _make_sure(self, link: Link) -> None:
        """Give a link up whose warden does not answer."""
        try:
            async with asyncio.timeout(SILENCE_S), link.request(frames.PING, {}) as channel:
                await channel.receive()
        except (TimeoutError, LinkLost):
            await link.close()

    # Files

    async def put(
        self, path: str, chunks: AsyncIterable[bytes], *, mode: int = 0o644, limit: int = 1 << 62
    ) -> Uploaded:
        """Store a file. It appears under its name when it is whole, or not at all."""
        link = await self._get_link()
        body = {"path": path, "mode": mode, "limit": limit}
        try:
            async with link.request(frames.PUT, body) as channel:
                answer = asyncio.ensure_future(channel.receive())
                try:
                    async for chunk in chunks:
                        for start in range(0, len(chunk), frames.CHUNK):
                            await channel.send(frames.DATA, chunk[start : start + frames.CHUNK])
                        if answer.done():
                            break
                    else:
                        await channel.send(frames.EOF)
                    async with asyncio.timeout(ANSWER_S):
                        kind, _, payload = await answer
                finally:
                    answer.cancel()
                return checked(Uploaded, reply_body(kind, payload))
        except (LinkLost, TimeoutError) as exc:
            raise errors.RuntimeUnavailable("the upload was cut off; try again") from exc

    @contextlib.asynccontextmanager
    async def get(self, path: str, *, digest: bool = False) -> AsyncIterator[Download]:
        """Read a file or a folder. With digest, its sha256 is known before the first byte."""
        link = await self._get_link()
        try:
            async with link.request(frames.GET, {"path": path, "digest": digest}) as channel:
                kind, _, payload = await channel.receive(silence_s=ANSWER_S)
                if kind != frames.STARTED:
                    raise_answer(kind, payload)
                yield Download(checked(DownloadAbout, frames.decode_json(payload)), channel)
        except (LinkLost, TimeoutError) as exc:
            raise errors.RuntimeUnavailable("the download was cut off; try again") from exc

    async def list(self, path: str, *, recursive: bool = False, limit: int = 1000) -> Listing:
        link = await self._get_link()
        body = {"path": path, "recursive": recursive, "limit": limit}
        entries: list[FileEntry] = []
        batch = bytearray()
        try:
            async with asyncio.timeout(ANSWER_S), link.request(frames.LIST, body) as channel:
                while True:
                    kind, _, payload = await channel.receive()
                    if kind == frames.DATA and len(batch) < MAX_LIST_BYTES:
                        batch += payload
                    elif kind == frames.EOF:
                        entries += checked_entries(bytes(batch))
                        batch.clear()
                    else:
                        truncated = bool(reply_body(kind, payload).get("truncated"))
                        return Listing(entries[:limit], truncated)
        except (LinkLost, TimeoutError) as exc:
            raise errors.RuntimeUnavailable("the box did not answer; try again") from exc

    async def stat(self, path: str) -> FileEntry:
        return checked(FileEntry, readable(await self._ask(frames.STAT, {"path": path})))

    # The box

    async def usage(self) -> Usage:
        return checked(Usage, await self._ask(frames.USAGE, {}))

    async def state(self) -> BoxState:
        """What the owner left in the box, and the commands it knows."""
        return checked(BoxState, await self._ask(frames.STATE, {}))

    async def set_state(self, state: Mapping[str, Any]) -> BoxState:
        """Leave something in the box for whoever owns it next."""
        return checked(BoxState, await self._ask(frames.STATE, {"set": dict(state)}))

    async def ping(self) -> None:
        """Tell the warden that its owner lives."""
        await self._ask(frames.PING, {})

    async def end(self) -> None:
        """Let the box end itself."""
        link = await self._get_link()
        with contextlib.suppress(LinkLost):
            async with link.request(frames.END, {}) as channel:
                while True:
                    await channel.receive()

    async def _ask(self, kind: int, body: dict[str, Any]) -> dict[str, Any]:
        """A request that may be asked again: one break of the link is not an error yet."""
        for attempt in (1, 2):
            link = await self._get_link()
            try:
                async with asyncio.timeout(ANSWER_S), link.request(kind, body) as channel:
                    answer, _, payload = await channel.receive()
                    return reply_body(answer, payload)
            except (LinkLost, TimeoutError) as exc:
                if attempt == 2:
                    raise errors.RuntimeUnavailable("the box did not answer; try again") from exc
        raise AssertionError("unreachable")

    async def _get_link(self) -> Link:
        if self._link is not None and self._link.lost is None:
            return self._link
        async with self._connecting:
            if self._link is None or self._link.lost is not None:
                await self.close()
                self._link = await self._connect()
            return self._link

    async def _connect(self) -> Link:
        """Open a stream and say hello, for as long as the box lives and patience lasts."""
        deadline = asyncio.get_running_loop().time() + CONNECT_S
        pause_s = 0.01
        while True:
            try:
                return await self._hello()
            except (LinkLost, TimeoutError) as exc:
                if not await self._box.is_alive():
                    raise errors.SessionLost(f"box {self._box.id} is gone") from exc
                if asyncio.get_running_loop().time() > deadline:
                    raise errors.RuntimeUnavailable(
                        f"the warden of box {self._box.id} does not answer; try again"
                    ) from exc
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.5)

    async def _hello(self) -> Link:
        link = Link(await self._box.open_stream())
        body: dict[str, Any] = {"version": frames.PROTOCOL_VERSION, "epoch": self._epoch}
        if self._deadman_s is not None:
            body["deadman_s"] = self._deadman_s
        try:
            async with asyncio.timeout(CONNECT_S), link.request(frames.HELLO, body) as channel:
                kind, _, payload = await channel.receive()
                self.about = checked(BoxAbout, reply_body(kind, payload))
        except BaseException:
            await link.close()
            raise
        return link


def _run_body(command: str, options: RunOptions, *, follow: bool) -> dict[str, Any]:
    cwd, env, stdin = options.get("cwd"), options.get("env") or {}, options.get("stdin")
    what = [command, cwd, sorted(env.items()), hashlib.sha256(stdin or b"").hexdigest()]
    return {
        "command": command,
        "command_id": options.get("command_id") or uuid.uuid4().hex,
        "digest": hashlib.sha256(json.dumps(what).encode()).hexdigest(),
        "key": options.get("key"),
        "timeout_s": options.get("timeout_s", 30.0),
        "cwd": cwd,
        "env": dict(env),
        "stdin": stdin is not None,
        "output_limit": options.get("output_limit", OUTPUT_LIMIT),
        "follow": follow,
    }
