"""What a caller takes away from what the operator allows."""

from collections.abc import Sequence
from ipaddress import ip_address

import pytest

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.models import EgressRules
from sandbox_server.network.modes import NetworkModes, NetworkTerms
from sandbox_server.network.narrowing import Narrowing, narrowing_of
from sandbox_server.network.networks import Networks
from sandbox_server.runtime.box_network import Network

ALL = "0.0.0.0/0"


def narrowing(allow: Sequence[str] = (), deny: Sequence[str] = ()) -> Narrowing:
    found = narrowing_of(EgressRules(allow=list(allow), deny=list(deny)))
    assert found is not None
    return found


def passes(found: Narrowing, address: str, host: str | None = None) -> bool:
    parsed = ip_address(address)
    return found.passes(host or parsed, parsed)


def test_denied_addresses() -> None:
    found = narrowing(deny=["8.8.8.8", "9.9.9.0/24", "2001:4860::/32"])
    for address in ("8.8.8.8", "9.9.9.77", "2001:4860::1", "::ffff:8.8.8.8", "64:ff9b::808:808"):
        assert not passes(found, address), address
        assert not passes(found, address, "a.example.com"), "its name does not matter"
    for address in ("8.8.4.4", "9.9.8.1", "2001:4861::1"):
        assert passes(found, address)
    assert found.may_pass("a.example.com")


def test_everything_is_of_both_kinds() -> None:
    for everything in (ALL, "::/0"):
        found = narrowing(deny=[everything])
        assert found.nothing
        for address in ("8.8.8.8", "2001:4860::1"):
            assert not passes(found, address)
        assert not found.may_pass("example.com"), "not even resolved"
    assert passes(narrowing([ALL], ["8.8.8.8"]), "8.8.8.8")


def test_allowed_counts_before_denied() -> None:
    found = narrowing(["1.1.1.1", "8.8.8.0/24", "Example.com", "*.example.org"], [ALL])
    for address in ("1.1.1.1", "8.8.8.8"):
        assert passes(found, address)
        assert passes(found, address, "whatever.test"), "it is there"
    for host in ("example.com", "a.example.org", "a.b.example.org"):
        assert passes(found, "9.9.9.9", host)
    for host in ("www.example.com", "example.org", "notexample.org", "example.com.test"):
        assert not passes(found, "9.9.9.9", host)
    assert not passes(found, "9.9.9.9")
    assert found.may_pass("www.example.com"), "it may be at an address that is allowed"
    names_alone = narrowing(["example.com"], [ALL])
    assert not names_alone.may_pass("www.example.com")
    assert not narrowing_of(EgressRules())


@pytest.mark.parametrize(
    ("allow", "deny", "told"),
    [
        (["example.com"], [], "deny 0.0.0.0/0"),
        (["example.com"], ["10.0.0.0/8"], "deny 0.0.0.0/0"),
        ([], ["example.com"], "names cannot be denied"),
        ([], ["999.1.1.1"], "not an address"),
        (["example.com:443"], [ALL], "not the name of a host"),
        (["*"], [ALL], "not the name of a host"),
        (["a b"], [ALL], "not the name of a host"),
        (["1.2.3"], [ALL], "not an address"),
        (["localhost"], [ALL], "name a host"),
    ],
)
def test_what_means_nothing(allow: list[str], deny: list[str], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        narrowing(allow, deny)


def terms(
    mode: Network, allow: Sequence[str] = (), deny: Sequence[str] = (), *, operator: str = ""
) -> NetworkTerms:
    networks = Networks(NetworkModes(default=mode), allow=[each for each in [operator] if each])
    rules = EgressRules(allow=list(allow), deny=list(deny))
    return networks.granted(None, None, "docker", rules)


def test_the_operator_is_stronger() -> None:
    assert terms("open", ["a.test"], [ALL]).told() == ("allowlist", ["a.test"])
    assert terms("open", [], ["8.8.8.8"]).told() == ("open", [])
    assert terms("open", [], [ALL]).told() == ("none", [])
    assert terms("none", [], [ALL]).mode == "none"
    assert terms("bridge", [], [ALL]).mode == "none"
    for name in ("a.test", "*.test.example", "b.a.test.example"):
        terms("allowlist", [name], [ALL], operator="*.test.example" if "ex" in name else name)
    terms("allowlist", ["*.a.test"], [ALL], operator="x.a.test:8443")
    terms("allowlist", ["10.1.2.3"], [ALL], operator="10.1.0.0/16")


@pytest.mark.parametrize(
    ("mode", "allow", "deny", "told"),
    [
        ("bridge", [], ["8.8.8.8"], "over a bridge"),
        ("none", ["1.1.1.1"], [ALL], "SANDBOX_NETWORK"),
        ("allowlist", ["b.test"], [ALL], "not among what the operator allows. Allowed are: a.test"),
        ("allowlist", ["*.b.test"], [ALL], "not among what the operator allows"),
        ("open", ["10.1.2.3"], [ALL], "not a public address"),
        ("open", ["169.254.169.254"], [], "not a public address"),
    ],
)
def test_what_cannot_be_had(mode: Network, allow: list[str], deny: list[str], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        terms(mode, allow, deny, operator="a.test")
