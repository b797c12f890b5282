"""Sends events to webhooks: signed, again when that fails, in order for each thread."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import structlog

from sandbox_sdk.protocol.errors import InvalidRequest, SandboxError
from sandbox_sdk.webhooks import DELIVERY, EVENT_ID, SIGNATURE, sign
from sandbox_server import __version__
from sandbox_server.events.log import Event, EventLog
from sandbox_server.events.outbox import Delivery, Outbox, open_outbox
from sandbox_server.events.webhooks import Webhook, read_webhooks
from sandbox_server.network.dialing import Resolver, SystemResolver
from sandbox_server.network.hosts import IPAddress, is_public, parse_address, plain
from sandbox_server.tasks import stop

log = structlog.get_logger()

AT_ONCE = 8
"""Of each webhook: a slow one holds up no other."""
FIRST_S = 1.0
LONGEST_S = 3600.0
TIMEOUT_S = 10.0
_LOOK_S = 1.0


class NotAllowed(Exception):
    """The host of a webhook has an address that it may not have."""


class Sender:
    """Use as an async context manager: it sends inside."""

    def __init__(
        self,
        events: EventLog,
        webhooks: Mapping[str, Webhook],
        outbox: Outbox,
        *,
        attempts: int = 12,
        resolver: Resolver | None = None,
    ) -> None:
        self._attempts = attempts
        self._events = events
        self._webhooks = webhooks
        self._outbox = outbox
        self._resolver = resolver or SystemResolver()
        self._wake = asyncio.Event()
        self._under_way: dict[str, dict[int, asyncio.Task[None]]] = {name: {} for name in webhooks}
        self._clients: dict[str, httpx.AsyncClient] = {}
        self._ended: set[int] = set()
        """Of these, what is read meanwhile may say that they are due."""
        self._lost = 0

    async def __aenter__(self) -> Self:
        tls = await asyncio.to_thread(ssl.create_default_context)
        # One of each: a connection of one host is not another's that has the same address.
        self._clients = {
            name: httpx.AsyncClient(verify=tls, trust_env=False) for name in self._webhooks
        }
        self._outbox.give_up_all_but(list(self._webhooks))
        self._events.listeners.append(self.note)
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._events.listeners.remove(self.note)
        under_way = [task for each in self._under_way.values() for task in each.values()]
        await stop(self._task, *under_way)
        for client in self._clients.values():
            await client.aclose()
        self._resolver.close()

    def of(self, tenant: str) -> list[str]:
        """The names of the webhooks that a tenant's commands can name."""
        return sorted(each.name for each in self._webhooks.values() if each.is_for(tenant))

    def promise(self, command_id: str, session_id: str, webhook: str) -> None:
        """It is told when the command ends. Raises RuntimeUnavailable."""
        self._outbox.promise(command_id, session_id, webhook)

    def forget(self, command_id: str) -> None:
        """It did not begin."""
        self._outbox.forget(command_id)

    def promised(self, session_id: str) -> list[str]:
        """Commands of a session whose end somebody waits for."""
        try:
            return [command_id for command_id, _ in self._outbox.promised(session_id)]
        except SandboxError as exc:
            log.error("webhook.promises_unknown", session=session_id, why=exc.message)
            return []

    def note(self, event: Event) -> None:
        """Write it down for those webhooks that want it, before anybody is told."""
        named: dict[str, list[str]] = {}
        try:
            named = self._named(event)
        except SandboxError as exc:
            log.error("webhook.not_kept", kind=event.kind, why=exc.message)
        for webhook in self._webhooks.values():
            if webhook.name in named or webhook.wants(event):
                self._add(webhook, event, named.get(webhook.name, []))

    def _named(self, event: Event) -> dict[str, list[str]]:
        """The webhooks that are told because commands have named them, with those commands: their
        end, or that of their session, if it came first."""
        named: dict[str, list[str]] = {}
        if event.kind == "command.finished" and event.data.get("background"):
            command_id = str(event.data["command_id"])
            if (webhook := self._outbox.promise_of(command_id)) is not None:
                named[webhook] = [command_id]
        elif event.kind in ("session.ended", "session.lost") and event.session_id is not None:
            for command_id, webhook in self._outbox.promised(event.session_id):
                named.setdefault(webhook, []).append(command_id)
        return named

    def _add(self, webhook: Webhook, event: Event, commands: list[str]) -> None:
        told = self._events.told(event)
        data = {**told.data, "tenant": event.tenant}
        if commands and "command_id" not in data:
            data["unfinished"] = commands
        body = told.model_copy(update={"data": data})
        thread = f"{event.tenant}/{event.thread_id or ''}"
        try:
            text = body.model_dump_json()
            kept = self._outbox.add(webhook.name, thread, told.id, text, keeps=commands)
        except SandboxError as exc:
            kept = False
            log.error("webhook.not_kept", webhook=webhook.name, why=exc.message)
        if not kept:
            self._lost += 1
            log.error("webhook.lost", webhook=webhook.name, kind=event.kind, lost=self._lost)
        self._wake.set()

    async def _run(self) -> None:
        while True:
            pause_s = _LOOK_S
            self._wake.clear()
            with contextlib.suppress(SandboxError, OSError):
                if self._outbox.is_ours():
                    pause_s = await self._begin_due()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()

    async def _begin_due(self) -> float:
        """Begin what is due; how long until there may be more."""
        now = time.time()
        soonest = now + _LOOK_S
        self._ended.clear()
        for name in self._webhooks:
            busy = self._under_way[name]
            some = AT_ONCE + len(busy)
            for each in await asyncio.to_thread(self._outbox.first_of_each, name, some):
                if len(busy) >= AT_ONCE:  # The end of one wakes us.
                    break
                if each.due > now:
                    soonest = min(soonest, each.due)
                    break
                if each.id not in busy and each.id not in self._ended:
                    task = asyncio.create_task(self._deliver(each))
                    busy[each.id] = task
                    task.add_done_callback(partial(self._over, name, each.id))
        return soonest - now

    def _over(self, webhook: str, delivery_id: int, _task: asyncio.Task[None]) -> None:
        self._under_way[webhook].pop(delivery_id, None)
        self._ended.add(delivery_id)
        self._wake.set()

    async def _deliver(self, delivery: Delivery) -> None:
        webhook = self._webhooks[delivery.webhook]
        try:
            await self._attempt(webhook, delivery)
        except SandboxError as exc:  # It is sent again: better twice than not at all.
            log.error("webhook.not_kept", webhook=webhook.name, why=exc.message)

    async def _attempt(self, webhook: Webhook, delivery: Delivery) -> None:
        """Raises RuntimeUnavailable if it cannot be written down what became of it."""
        try:
            why = await self._sent(webhook, delivery)
        except NotAllowed as exc:
            why = str(exc)
        except (httpx.HTTPError, OSError, TimeoutError) as exc:
            why = f"{type(exc).__name__}: {exc}"
        if not why:
            self._outbox.done(delivery.id)
            return
        attempts = delivery.attempts + 1
        given_up = attempts >= self._attempts
        pause_s = min(FIRST_S * 2**attempts, LONGEST_S) * random.uniform(0.5, 1.0)
        again_at = None if given_up else time.time() + pause_s
        self._outbox.failed(delivery.id, again_at=again_at, why=why)
        event = "webhook.given_up" if given_up else "webhook.failed"
        log.warning(event, webhook=webhook.name, attempts=attempts, why=why[:200])

    async def _sent(self, webhook: Webhook, delivery: Delivery) -> str:
        """Why it was not taken; empty if it was. Raises NotAllowed, HTTPError, OSError."""
        body = delivery.body.encode()
        parts = urlsplit(webhook.url)
        assert parts.hostname is not None
        address = await self._judged(webhook, parts.hostname)
        host = f"[{address}]" if address.version == 6 else str(address)
        port = f":{parts.port}" if parts.port else ""
        headers = {
            "host": parts.netloc,
            "content-type": "application/json",
            "user-agent": f"agent-sandbox/{__version__}",
            SIGNATURE: sign(body, webhook.secret, int(time.time())),
            EVENT_ID: delivery.event_id,
            DELIVERY: str(delivery.id),
        }
        # To the address that was judged; the certificate has to be that of the name.
        url = parts._replace(netloc=f"{host}{port}").geturl()
        extensions: dict[str, Any] = {"sni_hostname": parts.hostname}
        client = self._clients[webhook.name]
        async with (
            asyncio.timeout(2 * TIMEOUT_S),
            client.stream(
                "POST", url, content=body, headers=headers, extensions=extensions, timeout=TIMEOUT_S
            ) as answer,
        ):
            return "" if answer.is_success else f"answered {answer.status_code}"

    async def _judged(self, webhook: Webhook, host: str) -> IPAddress:
        written = parse_address(host)
        if written is not None:
            return written
        try:
            found = [plain(each) for each in await self._resolver.resolve(host)]
        except OSError as exc:
            raise NotAllowed(f"{host} cannot be resolved: {exc.strerror or exc}") from None
        good = [each for each in found if webhook.private or is_public(each)]
        if not good:
            at = found[0] if found else "no address"
            raise NotAllowed(f"{host} is at {at}, which is not public; `private: true` allows it")
        return ip_address(str(good[0]))


def require_webhook(sender: Sender | None, name: str, tenant: str) -> None:
    """Raises InvalidRequest if a tenant has no such webhook."""
    theirs = [] if sender is None else sender.of(tenant)
    if name not in theirs:
        there = f"there is {', '.join(theirs)}" if theirs else "the operator has named none"
        raise InvalidRequest(f"notify: no webhook is named {name!r}: {there}")


@contextlib.asynccontextmanager
async def open_webhooks(
    file: Path | None, events: EventLog, state: Path, name: str, *, attempts: int
) -> AsyncIterator[Sender | None]:
    """None without webhooks. state, name: the folder of the server, and its name, which its
    processes share. Raises InvalidRequest, RuntimeUnavailable."""
    webhooks = read_webhooks(file)
    if not webhooks:
        yield None
        return
    kept = open_outbox(state, name)
    try:
        async with Sender(events, webhooks, kept, attempts=attempts) as sender:
            yield sender
    finally:
        kept.close()
