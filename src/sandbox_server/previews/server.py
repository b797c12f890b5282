"""The preview server: its own listener, never the API's, so that a page out of a box has an origin
of its own and nothing of the API's."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self

import h11
import structlog

from sandbox_sdk.protocol import errors
from sandbox_server.previews import pages
from sandbox_server.previews.boxes import BoxConnections, Destination, SandboxesOf
from sandbox_server.previews.browser import Browser, BrowserGone
from sandbox_server.previews.exchange import BadAnswer, Exchange
from sandbox_server.previews.heads import Asked, entering, fault, read_head
from sandbox_server.previews.limits import PreviewLimits
from sandbox_server.previews.visitors import Visitors
from sandbox_server.sessions.preview_address import PreviewAddress
from sandbox_server.sessions.previews import AllPorts, SessionPreviews
from sandbox_server.tasks import stop

log = structlog.get_logger()

TenantOf = Callable[[str, str], str | None]
"""The tenant whose traffic token this is, for a session; None if it is none."""
PreviewsOf = Callable[[str], Awaitable[SessionPreviews | None]]
"""The previews of a session, whoever it belongs to. Raises RuntimeUnavailable."""
_BACKLOG = 512
_CLOSED = b"retry-after: 2\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_FULL = b"HTTP/1.1 503 Service Unavailable\r\n" + _CLOSED
_MANY = b"HTTP/1.1 429 Too Many Requests\r\n" + _CLOSED
_NOBODY = "00000000-0000-0000-0000-000000000000"
"""A session that there is not."""


def no_tenant(_token: str, _session_id: str) -> None:
    """Of a server that has no traffic tokens."""


@dataclass(eq=False)
class _Visit:
    """A connection of a browser, and what it carries now."""

    task: asyncio.Task[None]
    asked: Asked | None = None


class PreviewServer:
    """Use as an async context manager."""

    def __init__(
        self,
        sandboxes_of: SandboxesOf,
        previews_of: PreviewsOf,
        address: PreviewAddress,
        listener: socket.socket,
        *,
        limits: PreviewLimits = PreviewLimits(),  # noqa: B008 - frozen
        tenant_of: TenantOf = no_tenant,
        behind_proxy: bool = False,
    ) -> None:
        """listener: bound; it is closed in the end. behind_proxy: see Visitors."""
        self._tenant_of = tenant_of
        self._previews_of = previews_of
        self._address = address
        self._listener = listener
        self._limits = limits
        self._boxes = BoxConnections(sandboxes_of, limits)
        self._visits: set[_Visit] = set()
        self._visitors = Visitors(limits, behind_proxy=behind_proxy)
        self._stack = contextlib.AsyncExitStack()

    def __repr__(self) -> str:
        return f"<PreviewServer {self._address} {len(self._visits)} connections>"

    async def __aenter__(self) -> Self:
        self._stack.push_async_callback(self._boxes.close)
        self._stack.push_async_callback(self._leave)
        server = await asyncio.start_server(
            self._accept, sock=self._listener, backlog=_BACKLOG, limit=1 << 16
        )
        self._stack.callback(server.close)
        watching = asyncio.create_task(self._watch())
        self._stack.push_async_callback(stop, watching)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def _leave(self) -> None:
        await stop(*(visit.task for visit in self._visits))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        visit = _Visit(task)
        self._visits.add(visit)
        browser = Browser(reader, writer, self._limits)
        try:
            with self._visitors.connected(browser.peer) as may_be:
                if not may_be:
                    writer.write(_MANY)
                elif len(self._visits) > self._limits.connections:
                    writer.write(_FULL)
                else:
                    await self._serve(browser, visit)
            writer.close()
            async with asyncio.timeout(self._limits.head_s):
                await writer.wait_closed()
        except asyncio.CancelledError:
            pass  # The preview has ended, or the server stops.
        except (BrowserGone, OSError, TimeoutError):
            pass
        except Exception:
            log.exception("preview.failed")
        finally:
            self._visits.discard(visit)
            writer.transport.abort()

    async def _serve(self, browser: Browser, visit: _Visit) -> None:
        first = True
        while True:
            try:
                request = await browser.next_request(first=first)
            except TimeoutError:
                if first:
                    await browser.show(pages.TOO_SLOW, as_html=False)
                return
            except h11.RemoteProtocolError as exc:
                why = "it has too large a head, or is not HTTP/1.1"
                await browser.show(pages.invalid(exc.error_status_hint, why), as_html=False)
                await browser.linger()
                return
            if request is None:
                return
            first = False
            if why := fault(request):
                page = pages.invalid(400, why)
                await browser.show(page, as_html=False, head=_is_head(request), last=True)
                await browser.linger()
                return
            if not await self._respond(browser, visit, request):
                return
            if not browser.next_cycle():
                await browser.linger()
                return

    async def _respond(self, browser: Browser, visit: _Visit, request: h11.Request) -> bool:
        """Whether the response is complete."""
        asked = read_head(request, self._address)
        page: pages.Page | None = pages.NO_PREVIEW
        if asked is not None:
            try:
                page = await self._judged(browser, visit, request, asked)
            except BadAnswer as exc:
                if exc.begun:
                    return False  # Cut, so that the browser sees that it is not complete.
                page = pages.BAD_ANSWER
            except errors.SandboxError as exc:
                page = _page_for(exc, asked)
        if page is not None:
            await browser.show(page, as_html=_wants_html(request, page), head=_is_head(request))
        return True

    async def _judged(
        self, browser: Browser, visit: _Visit, request: h11.Request, asked: Asked
    ) -> pages.Page | None:
        """Answers a request; or the page that is to be shown in place of an answer."""
        previews, port = await self._previews_of(asked.origin.session_id), asked.origin.port
        if previews is None or not self._allows(previews, asked):
            if previews is not None and previews.all_ports is None:
                # The same for what there is and for what there is not: while the registry of a
                # fleet may lack sessions, the latter is told to wait.
                await self._previews_of(_NOBODY)
            return _no_access(previews, asked)
        if asked.in_url and asked.navigates:
            right = [token for token in asked.tokens if previews.is_token(port, token)]
            headers = entering(asked, self._address, right)
            await browser.respond(302, headers, head=_is_head(request))
            return None
        session_id, visitor = previews.session_id, self._visitors.visitor(request, browser.peer)
        if self._visitors.has_many(visitor, session_id):
            return pages.MANY_OF_YOURS
        if self._visitors.session_is_full(session_id):
            return pages.MANY
        try:
            with self._visitors.carrying(visitor, session_id):
                await self._carry(browser, visit, request, asked, previews)
        except errors.SandboxError as exc:
            if previews.all_ports is not None and (page := _e2b_page_for(exc, asked)) is not None:
                return page
            raise
        return None

    def _allows(self, previews: SessionPreviews, asked: Asked) -> bool:
        if previews.ended_at is not None:
            return False
        if previews.allows(asked.origin.port, asked.tokens):
            return True
        if previews.all_ports is None or not asked.traffic_token:
            return False
        return self._tenant_of(asked.traffic_token, previews.session_id) == previews.tenant

    async def _carry(
        self,
        browser: Browser,
        visit: _Visit,
        request: h11.Request,
        asked: Asked,
        previews: SessionPreviews,
    ) -> None:
        visit.asked = asked
        shown = previews.all_ports or AllPorts()
        try:
            exchange = Exchange(
                browser,
                request,
                asked,
                self._boxes,
                to=Destination(asked.origin, previews.tenant, unpause=shown.unpause),
                scheme=self._address.scheme,
                host=shown.host_for(asked.origin.port),
            )
            await exchange.run()
        finally:
            visit.asked = None

    async def _watch(self) -> None:
        """Cut what is still open through previews that have ended."""
        seen: dict[_Visit, Asked] = {}
        while True:
            await asyncio.sleep(self._limits.look_again_s)
            lasting = {v: v.asked for v in self._visits if v.asked and seen.get(v) is v.asked}
            for visit, asked in lasting.items():
                if not await self._may_go_on(asked) and visit.asked is asked:
                    visit.task.cancel()
            seen = {visit: visit.asked for visit in self._visits if visit.asked is not None}

    async def _may_go_on(self, asked: Asked) -> bool:
        try:
            previews = await self._previews_of(asked.origin.session_id)
        except errors.SandboxError:
            return True  # Not known: asked again soon.
        return previews is not None and self._allows(previews, asked)


def _no_access(previews: SessionPreviews | None, asked: Asked) -> pages.Page:
    """In e2b's words where all ports of a session are open, or were."""
    if previews is None or previews.all_ports is None:
        return pages.NO_ACCESS
    if previews.ended_at is not None:
        return pages.e2b_not_found(previews.session_id)
    return pages.e2b_no_token(previews.session_id, given=bool(asked.traffic_token))


def _e2b_page_for(error: errors.SandboxError, asked: Asked) -> pages.Page | None:
    session_id, port = asked.origin
    match error:
        case errors.NotListening():
            return pages.e2b_port_closed(session_id, port)
        case errors.SessionNotFound() | errors.SessionLost():
            return pages.e2b_not_found(session_id)
        case errors.Conflict():
            return pages.e2b_paused(session_id)
        case _:
            return None


def _page_for(error: errors.SandboxError, asked: Asked) -> pages.Page:
    if isinstance(error, errors.NotListening):
        return pages.not_listening(asked.origin.port)
    if isinstance(error, errors.SessionNotFound | errors.SessionLost):
        return pages.NO_ACCESS
    log.warning("preview.unavailable", session=asked.origin.session_id, why=error.message)
    return pages.UNAVAILABLE


def _is_head(request: h11.Request) -> bool:
    return bytes(request.method) == b"HEAD"


def _wants_html(request: h11.Request, page: pages.Page) -> bool:
    headers = dict(request.headers)
    if page.told is not None and pages.is_browser(headers.get(b"user-agent", b"")):
        return True
    return b"text/html" in headers.get(b"accept", b"")
