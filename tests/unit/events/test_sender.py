"""Webhooks: signed, in order, again when that fails, and only to where they may go."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from ipaddress import ip_address
from pathlib import Path

import pytest

from sandbox_server.events import sender as module
from sandbox_server.events.log import EventLog
from sandbox_server.events.outbox import Outbox
from sandbox_server.events.sender import Sender
from sandbox_server.events.webhooks import Webhook
from sandbox_server.network.hosts import IPAddress
from tests.webhook_receiver import SECRET, Received, receiving

KINDS = frozenset({"session.created", "session.ended", "command.finished"})


def webhook(url: str, *, name: str = "ops", private: bool = True, **more: object) -> Webhook:
    known = {"kinds": KINDS, "tenants": None, **more}
    return Webhook(name=name, url=url, secret=SECRET, private=private, **known)  # type: ignore[arg-type]


class Names:
    """A resolver whose answers change."""

    def __init__(self, *answers: str) -> None:
        self._answers = list(answers)

    async def resolve(self, name: str) -> Sequence[IPAddress]:
        found = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return [ip_address(found)]

    def close(self) -> None:
        """No-op."""


@contextlib.asynccontextmanager
async def sending(
    *webhooks: Webhook, path: Path | None = None, resolver: Names | None = None
) -> AsyncIterator[tuple[EventLog, Outbox]]:
    outbox, events = Outbox(path), EventLog("w")
    by_name = {each.name: each for each in webhooks}
    try:
        async with Sender(events, by_name, outbox, resolver=resolver):
            yield events, outbox
    finally:
        outbox.close()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_S", 0.01)
    monkeypatch.setattr(module, "LONGEST_S", 0.05)
    monkeypatch.setattr(module, "_LOOK_S", 0.05)


async def test_it_is_signed_and_says_what_happened() -> None:
    async with receiving() as receiver, sending(webhook(receiver.url)) as (events, outbox):
        events.publish("session.ended", "acme", thread_id="t", session_id="s", reason="expired")
        events.publish("checkpoint.created", "acme", thread_id="t")
        await receiver.until(lambda: len(receiver.received) == 1)
        (got,) = receiver.received
        assert got.is_signed
        assert got.event["kind"] == "session.ended"
        assert got.event["data"] == {"reason": "expired", "tenant": "acme"}
        assert got.headers["x-sandbox-event-id"] == got.event["id"]
        assert SECRET not in str(got.headers)
        await receiver.until(lambda: not outbox.first_of_each("ops", 10))


async def test_only_what_it_wants() -> None:
    of_acme = frozenset({"acme"})
    async with receiving() as receiver:
        hook = webhook(receiver.url, tenants=of_acme)
        async with sending(hook) as (events, _):
            events.publish("session.ended", "globex", thread_id="t")
            events.publish("session.ended", "acme", thread_id="t")
            await receiver.until(lambda: len(receiver.received) == 1)
            assert receiver.received[0].event["data"]["tenant"] == "acme"


async def test_in_order_for_each_thread() -> None:
    """A thread whose event fails waits; others go on."""
    async with receiving() as receiver, sending(webhook(receiver.url)) as (events, _):
        refused = 3

        def status(got: Received) -> int:
            nonlocal refused
            if got.event["thread_id"] == "a" and refused:
                refused -= 1
                return 503
            return 200

        receiver.status = status
        for number in range(5):
            for thread in ("a", "b"):
                events.publish("command.finished", "acme", thread_id=thread, number=number)
        await receiver.until(lambda: len(receiver.received) == 13)
        taken = [each.event for each in receiver.received]
        of_b = [each["data"]["number"] for each in taken if each["thread_id"] == "b"]
        of_a = [each["data"]["number"] for each in taken if each["thread_id"] == "a"]
        assert of_b == [0, 1, 2, 3, 4]
        assert of_a == [0, 0, 0, 0, 1, 2, 3, 4]
        same = {each.headers["x-sandbox-event-id"] for each in receiver.received[:1]}
        assert len(same) == 1


async def test_what_is_given_up_is_kept_and_sent_again() -> None:
    async with receiving() as receiver, sending(webhook(receiver.url)) as (events, outbox):
        receiver.status = lambda _: 500
        events.publish("session.ended", "acme", thread_id="t")
        await receiver.until(lambda: len(outbox.dead()) == 1)
        (dead,) = outbox.dead()
        assert (dead.attempts, dead.why) == (12, "answered 500")
        receiver.status = lambda _: 200
        assert outbox.revive() == 1
        await receiver.until(lambda: not outbox.first_of_each("ops", 1) and not outbox.dead())


async def test_it_outlives_the_server(tmp_path: Path) -> None:
    path = tmp_path / "outbox"
    async with sending(webhook("http://127.0.0.1:1/"), path=path) as (events, outbox):
        events.publish("session.ended", "acme", thread_id="t")
        (before,) = outbox.first_of_each("ops", 1)
    async with receiving() as receiver, sending(webhook(receiver.url), path=path):
        await receiver.until(lambda: len(receiver.received) == 1)
        assert receiver.received[0].headers["x-sandbox-event-id"] == before.event_id


async def test_redirects_are_not_followed() -> None:
    async with receiving() as receiver, sending(webhook(receiver.url)) as (events, outbox):
        receiver.status = lambda _: 302
        events.publish("session.ended", "acme", thread_id="t")
        await receiver.until(lambda: len(outbox.dead()) == 1)
        assert outbox.dead()[0].why == "answered 302"


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "::ffff:127.0.0.1", "fd00::1"]
)
async def test_a_name_with_a_private_address(address: str) -> None:
    """Nor one that changes its address between two lookups: the judged one is connected to."""
    async with receiving() as receiver:
        url = receiver.url.replace("127.0.0.1", "hooks.example.com")
        hook = webhook(url, private=False)
        async with sending(hook, resolver=Names(address)) as (events, outbox):
            events.publish("session.ended", "acme", thread_id="t")
            await receiver.until(lambda: len(outbox.dead()) == 1)
            assert "not public" in outbox.dead()[0].why
            assert receiver.received == []


async def test_a_private_name_that_the_operator_allows() -> None:
    async with receiving() as receiver:
        hook = webhook(receiver.url.replace("127.0.0.1", "hooks.example.com"))
        async with sending(hook, resolver=Names("127.0.0.1")) as (events, _):
            events.publish("session.ended", "acme", thread_id="t")
            await receiver.until(lambda: len(receiver.received) == 1)
            assert receiver.received[0].headers["host"].startswith("hooks.example.com:")


async def test_a_slow_receiver_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT_S", 2.0)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    slow = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server, receiving() as receiver:
        hooks = webhook(slow, name="slow"), webhook(receiver.url, name="quick")
        async with sending(*hooks) as (events, _):
            for number in range(20):
                events.publish("session.ended", "acme", thread_id=f"t{number}")
            await receiver.until(lambda: len(receiver.received) == 20)


async def test_a_promise_and_its_delivery_are_one_step(tmp_path: Path) -> None:
    """Whenever the server is killed, one of the two is there."""
    outbox = Outbox(tmp_path / "o")
    outbox.promise("c", "s", "ops")
    assert outbox.promise_of("c") == "ops"
    assert outbox.add("ops", "acme/t", "1", "{}", keeps=["c"])
    assert (outbox.promise_of("c"), len(outbox.first_of_each("ops", 10))) == (None, 1)
    outbox.close()


async def test_webhooks_that_there_are_no_more(tmp_path: Path) -> None:
    before = Outbox(tmp_path / "o")
    before.add("gone", "acme/t", "1", "{}")
    before.promise("c", "s", "gone")
    before.close()
    async with (
        receiving() as receiver,
        sending(webhook(receiver.url), path=tmp_path / "o") as (_, outbox),
    ):
        (dead,) = outbox.dead()
        assert (dead.webhook, dead.why) == ("gone", "there is no such webhook any more")
        assert outbox.promise_of("c") is None
