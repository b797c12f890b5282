"""The pure parts of the e2b door: tokens, signatures, envelopes, paths."""

from collections.abc import AsyncIterator
from datetime import datetime

import pytest

from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.events import ExitEvent
from sandbox_server.api.auth import ApiKeys
from sandbox_server.api.e2b.control import _at_or_after
from sandbox_server.api.e2b.errors import told
from sandbox_server.api.e2b.filesystem import Watcher
from sandbox_server.api.e2b.messages import end_of_stream, envelope, messages, one_message
from sandbox_server.api.e2b.network import Egress, Network, egress_of, ports_of
from sandbox_server.api.e2b.process_events import EventFrames
from sandbox_server.api.e2b.routes import full_path
from sandbox_server.api.e2b.templates import from_template
from sandbox_server.api.e2b.tokens import AccessTokens, Holder, Signed, claimed_tenant

TOKENS = AccessTokens(lambda: b"secret")
ACME = Holder("acme", "key-1")


def test_a_token_is_bound_to_caller_session_and_purpose() -> None:
    token = TOKENS.make(ACME, "s1")
    assert TOKENS.check(token, "s1", "access") == ACME
    assert claimed_tenant(token) == "acme"
    other = AccessTokens(lambda: b"another")
    for tokens, shown, session_id, purpose in [
        (TOKENS, token, "s2", "access"),
        (TOKENS, token, "s1", "traffic"),
        (TOKENS, TOKENS.make(ACME, "s1", "traffic"), "s1", "access"),
        (other, token, "s1", "access"),
        (TOKENS, "", "s1", "access"),
        (TOKENS, "é.é.é", "s1", "access"),
        (TOKENS, token.replace("YWNtZQ", "Z2xvYmV4"), "s1", "access"),
    ]:
        with pytest.raises(errors.Unauthorized):
            tokens.check(shown, session_id, purpose)  # type: ignore[arg-type]
    assert claimed_tenant("\xff.x") is None
    assert claimed_tenant("") is None


def test_a_token_goes_with_its_key() -> None:
    keys = ApiKeys([("acme", "k")])
    assert keys.holder("acme", "").tenant == "acme"
    assert keys.holders() == [("acme", "")]
    for tenant, key_id in [("globex", ""), ("acme", "unknown")]:
        with pytest.raises(errors.Unauthorized):
            keys.holder(tenant, key_id)
    open_to_all = ApiKeys([])
    assert open_to_all.holder("default", "").tenant == "default"
    with pytest.raises(errors.Unauthorized):
        open_to_all.holder("acme", "")


def test_signatures() -> None:
    """As e2b's SDK makes them."""
    from e2b.sandbox.signature import get_signature

    made = get_signature("a.txt", "read", None, "token", 60)
    signed = Signed(
        path="a.txt",
        operation="read",
        user="",
        signature=made["signature"],
        expiration=str(made["expiration"]),
    )
    assert signed.fits("token")
    assert not signed.fits("another")
    signed.check_time(float(made["expiration"] or 0) - 1)
    with pytest.raises(errors.Unauthorized):
        signed.check_time(float(made["expiration"] or 0) + 1)


async def test_envelopes() -> None:
    whole = envelope({"a": 1}) + envelope({}) + end_of_stream()

    async def in_pieces() -> AsyncIterator[bytes]:
        for byte in whole:
            yield bytes([byte])

    assert [m async for m in messages(in_pieces(), most_bytes=100)] == [b'{"a":1}', b"{}"]
    assert one_message(envelope({"a": 1})) == b'{"a":1}'
    for wrong in (b"", b"\0\0\0\0", b"\0\0\0\0\5{}", b"\1\0\0\0\2{}", b"\x80\0\0\0\2{}"):
        with pytest.raises(errors.InvalidRequest):
            one_message(wrong)


async def test_messages_are_bounded() -> None:
    async def large() -> AsyncIterator[bytes]:
        yield b"\0\xff\xff\xff\xff"

    with pytest.raises(errors.FileTooLarge):
        async for _ in messages(large(), most_bytes=100):
            pass


def test_paths() -> None:
    home = full_path(None)
    assert [full_path(p) for p in ("", "~", "a", "~/a", "/tmp/a")] == [
        home, home, f"{home}/a", f"{home}/a", "/tmp/a",
    ]  # fmt: skip
    with pytest.raises(errors.InvalidRequest):
        full_path("a\0b")


def test_templates() -> None:
    assert from_template("base") == {"environment": "base"}
    assert from_template("base:default") == {"environment": "base"}
    assert from_template("code-interpreter-v1") == {"environment": "code-interpreter"}
    assert from_template("Node") == {"environment": "Node"}
    assert from_template("cp-0199-5d") == {"checkpoint_id": "cp-0199-5d"}


def test_networks() -> None:
    everything = "0.0.0.0/0"
    assert egress_of(Network(), internet=None) == {"allow": [], "deny": []}
    assert egress_of(Network(), internet=True) == {"allow": [], "deny": []}
    assert egress_of(Network(), internet=False) == {"allow": [], "deny": [everything]}
    both = Network(allow_out=["a.example"], deny_out=[everything], dns_servers=[])
    assert egress_of(both, internet=False) == {"allow": ["a.example"], "deny": [everything]}
    for network in (
        Network(rules={"a.example": []}),
        Network(https_ports=[8443]),
        Egress(dns_servers=["1.1.1.1"]),
        Egress(egress_proxy={"address": "a.example:1080"}),
    ):
        with pytest.raises(errors.SandboxError) as raised:
            egress_of(network, internet=None)
        assert raised.value.status == 501


def test_ports() -> None:
    assert ports_of(Network(), auto_resume=None) == {"public": True, "unpause": False}
    for resume in ({"enabled": True}, {"policy": "any"}):
        assert ports_of(Network(), auto_resume=resume)["unpause"]
    for resume in ({"enabled": False}, {"policy": "off"}, {}):
        assert not ports_of(Network(), auto_resume=resume)["unpause"]
    masked = Network(allow_public_traffic=False, mask_request_host="a.example:${PORT}")
    assert ports_of(masked, auto_resume=None) == {
        "public": False,
        "unpause": False,
        "host": "a.example:${PORT}",
    }


def test_watchers() -> None:
    for watcher in (Watcher("abc", None), Watcher("abc", "/tmp/é")):
        assert Watcher.parse(str(watcher)) == watcher
    with pytest.raises(errors.InvalidRequest):
        Watcher.parse("abc.é")


def test_errors() -> None:
    assert told(errors.SessionLost("")).status == 502
    assert told(errors.FileMissing("")).code == "not_found"
    assert told(errors.InvalidPath("")).code == "invalid_argument"
    assert told(errors.RateLimited("")).code == "resource_exhausted"
    assert told(errors.Internal("")).code == "internal"


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({"exit_code": 0}, {"exitCode": 0, "exited": True, "status": "exit status 0"}),
        (
            {"exit_code": 3},
            {"exitCode": 3, "exited": True, "status": "exit status 3", "error": "exit status 3"},
        ),
        (
            {"exit_code": 137, "signal": "KILL"},
            {
                "exitCode": -1,
                "exited": False,
                "status": "signal: killed",
                "error": "signal: killed",
            },
        ),
    ],
)
def test_ends(fields: dict[str, object], end: dict[str, object]) -> None:
    event = ExitEvent.model_validate(
        {"command_id": "c", "duration_ms": 1.0, "timed_out": False, "truncated": False,
         "output_bytes": 0, "cwd": "/", "session_id": "s", "generation": 1,
         "session_state": "live", **fields}
    )  # fmt: skip
    assert list(EventFrames(pty=False).of(event)) == [{"event": {"end": end}}]


def test_a_list_since_a_moment_has_what_began_in_it() -> None:
    began = "2026-01-31T12:00:00+00:00"
    since = _at_or_after(began)
    assert isinstance(since, datetime)
    assert since < datetime.fromisoformat(began)
    assert _at_or_after("soon") == "soon"
    assert _at_or_after("") is None
