"""What the caller of a session takes away from what the operator lets it reach."""

import asyncio
import contextlib
from typing import Any

import pytest

from sandbox_sdk import Sandboxes
from sandbox_sdk.protocol.errors import InvalidRequest, SessionLost, SessionNotFound
from sandbox_sdk.protocol.models import (
    CreateSessionRequest,
    EgressRules,
    ExecuteRequest,
    Target,
)
from sandbox_server.network.narrowing import narrowing_of
from sandbox_server.network.outbound import Note
from sandbox_server.runtime.base import Runtime
from sandbox_server.runtime.warden.client import WardenClient
from tests.egress import Serve, box, closed, internet, notes, run, serve
from tests.internet import HERE, Internet

from .test_egress import execute, modes, sessions, standing

__all__ = ["box", "internet", "notes", "serve"]

T = Target(thread_id="t")
ALL = "0.0.0.0/0"


def rules(*allow: str, deny: tuple[str, ...] = (ALL,)) -> EgressRules:
    return EgressRules(allow=list(allow), deny=list(deny))


def curl(internet: Internet, host: str) -> str:
    return f"curl -sS -m 20 --noproxy '' http://{host}:{internet.http}/hello"


async def test_names_and_addresses(
    warden: WardenClient, serve: Serve, internet: Internet, notes: list[Note]
) -> None:
    allow = [*internet.here("web.test"), *internet.here("other.test")]
    egress = await serve(*allow)
    for given, reached in (
        (rules("web.test"), {"web.test"}),
        (rules("*.test"), {"web.test", "other.test"}),
        (rules(HERE), {"web.test", "other.test", HERE}),
        (rules(deny=(HERE,)), set()),
        (rules(deny=("192.0.2.0/24",)), {"web.test", "other.test", HERE}),
        (rules(), set()),
        (None, {"web.test", "other.test", HERE}),
    ):
        egress.use(egress._out.rules.narrowed(narrowing_of(given)))
        for host in ("web.test", "other.test", HERE):
            told = await warden.run(curl(internet, host))
            assert (told.output == "hello\n") == (host in reached), (given, host, told.output)
    await closed(egress)
    assert {"allowed", "refused"} == {note.verdict for note in notes}


async def test_names_that_cannot_pass_are_not_resolved(
    warden: WardenClient, serve: Serve, internet: Internet
) -> None:
    """What asks for names could tell something by them."""
    egress = await serve(*internet.here("web.test"), mode="open")
    egress.use(egress._out.rules.narrowed(narrowing_of(rules("web.test"))))
    told = await warden.run(f"curl -sS http://secret.web.test:{internet.http}/hello")
    assert "Allowed are: web.test." in told.output
    assert internet.resolver.asked == []
    for socks in ("socks5h://127.0.0.1:3128",):
        await warden.run(f"curl -sS -x {socks} http://secret.web.test/")
    assert internet.resolver.asked == []


async def test_what_is_open_is_cut(warden: WardenClient, serve: Serve, internet: Internet) -> None:
    egress = await serve(*internet.here("web.test"), f"{HERE}:{internet.https}")
    tunnel = f"curl -sS -m 60 -p -x http://127.0.0.1:3128 http://web.test:{internet.http}/large"
    command = f"{tunnel}?pieces=9999999 -o /dev/null"
    running = asyncio.create_task(warden.run(command, timeout_s=60))
    async with asyncio.timeout(30):
        while not egress._out._open:
            await asyncio.sleep(0.02)
    egress.use(egress._out.rules.narrowed(narrowing_of(rules("web.test"))))
    await asyncio.sleep(0.2)
    assert egress.open == 1, "it is still allowed"
    egress.use(egress._out.rules.narrowed(narrowing_of(rules(deny=(HERE,)))))
    assert (await running).exit_code != 0
    await closed(egress)
    assert await run(warden, "echo goes on") == "goes on\n"
    egress.use(egress._out.rules.narrowed(None))
    assert await run(warden, curl(internet, "web.test")) == "hello\n"


# Sessions


async def test_a_session_is_made_with_them(runtime: Runtime, internet: Internet) -> None:
    allow = [*internet.here("web.test"), *internet.here("other.test")]
    async with standing(runtime, internet, modes("allowlist"), *allow) as stand:
        sandboxes = stand.sandboxes
        wanted = rules("web.test")
        request = CreateSessionRequest(thread_id="t", egress_rules=wanted)
        made = await sandboxes.create_session(request)
        assert made.egress_rules == wanted
        assert (made.limits.network, made.limits.network_allow) == ("allowlist", ["web.test"])
        await reaches(sandboxes, internet, "web.test")
        await stand.lose_box("t")
        with contextlib.suppress(SessionLost):
            await execute(sandboxes, "true")
        await reaches(sandboxes, internet, "web.test")
        again = await sandboxes.create_session(
            CreateSessionRequest(thread_id="t", egress_rules=rules())
        )
        assert again.not_applied == ["egress_rules"]
        with pytest.raises(InvalidRequest, match="not among what the operator allows"):
            await sandboxes.create_session(
                CreateSessionRequest(thread_id="u", egress_rules=rules("third.test"))
            )


async def reaches(sandboxes: Any, internet: Internet, *hosts: str) -> None:
    for host in ("web.test", "other.test"):
        told = await execute(sandboxes, curl(internet, host))
        assert (told.output == "hello\n") == (host in hosts), (host, told.output)


async def test_they_change_while_it_runs(runtime: Runtime, internet: Internet) -> None:
    allow = [*internet.here("web.test"), *internet.here("other.test")]
    async with standing(runtime, internet, modes("allowlist"), *allow) as stand:
        sandboxes = stand.sandboxes
        await reaches(sandboxes, internet, "web.test", "other.test")
        await sandboxes.set_egress(T, allow=["other.test"], deny=[ALL])
        await reaches(sandboxes, internet, "other.test")
        assert (await sandboxes.session(T)).egress_rules == rules("other.test")
        with pytest.raises(InvalidRequest, match="not among what the operator allows"):
            await sandboxes.set_egress(T, allow=["third.test"], deny=[ALL])
        await reaches(sandboxes, internet, "other.test")
        await stand.lose_box("t")  # The next session of the thread has those that were last said.
        with contextlib.suppress(SessionLost):
            await execute(sandboxes, "true")
        await reaches(sandboxes, internet, "other.test")
        await sandboxes.set_egress(T, deny=[ALL])
        await reaches(sandboxes, internet)
        assert (await sandboxes.session(T)).limits.network == "none"
        await sandboxes.set_egress(T)
        await reaches(sandboxes, internet, "web.test", "other.test")
        assert (await sandboxes.session(T)).egress_rules is None


async def test_the_answer_to_the_end_has_them(runtime: Runtime, internet: Internet) -> None:
    allow = [*internet.here("web.test"), *internet.here("other.test")]
    async with sessions(runtime, internet, modes("allowlist"), *allow) as sandboxes:
        await execute(sandboxes, "true")
        await sandboxes.set_egress(T, allow=["web.test"], deny=[ALL])
        assert (await sandboxes.cleanup(T)).egress_rules == rules("web.test")


@pytest.mark.seam
async def test_every_way(sandboxes: Sandboxes) -> None:
    await sandboxes.execute(ExecuteRequest(thread_id="t", command="true"))
    told = await sandboxes.set_egress(T, deny=[ALL])
    assert told.thread_id == "t"
    assert (await sandboxes.session(T)).egress_rules == rules()
    with pytest.raises(InvalidRequest, match="SANDBOX_NETWORK"):
        await sandboxes.set_egress(T, allow=["1.1.1.1"], deny=[ALL])
    with pytest.raises(InvalidRequest, match="names cannot be denied"):
        await sandboxes.set_egress(T, deny=["example.com"])
    assert (await sandboxes.session(T)).egress_rules == rules()
    with pytest.raises(SessionNotFound):
        await sandboxes.set_egress(Target(thread_id="nobody"), deny=[ALL])
