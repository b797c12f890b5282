"""What rules allow, and what they say of themselves."""

from ipaddress import ip_address

import pytest

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.network.headers import fixed
from sandbox_server.network.hosts import InvalidHost, Target, parse_target
from sandbox_server.network.modes import NetworkModes
from sandbox_server.network.networks import Networks
from sandbox_server.network.rules import Refused, Rule, RuleSet, parse_rule
from sandbox_server.registry.environments import Environment


def rules(*texts: str, open_: bool = False) -> RuleSet:
    return RuleSet([parse_rule(text) for text in texts], open_=open_)


@pytest.mark.parametrize(
    ("rule", "allowed", "refused"),
    [
        ("a.test", ["a.test:80", "a.test:443"], ["b.a.test:443", "a.test:22", "xa.test:443"]),
        ("*.a.test", ["b.a.test:443", "c.b.a.test:80"], ["a.test:443", "ba.test:443"]),
        ("a.test:8443", ["a.test:8443"], ["a.test:443"]),
        ("*.a.test:22", ["b.a.test:22"], ["b.a.test:443"]),
        ("10.1.2.3", ["10.1.2.3:80", "[::ffff:10.1.2.3]:443"], ["10.1.2.4:80", "a.test:80"]),
        ("10.0.0.0/8:5432", ["10.9.9.9:5432"], ["10.9.9.9:80", "11.0.0.1:5432"]),
        ("[2001:db8::1]:443", ["[2001:db8::1]:443"], ["[2001:db8::2]:443"]),
        ("fd00::/8", ["[fd00::5]:443"], ["[fe00::5]:443"]),
    ],
)
def test_tunnels(rule: str, allowed: list[str], refused: list[str]) -> None:
    found = rules(rule)
    for where in allowed:
        found.tunnel(parse_target(where))
    for where in refused:
        with pytest.raises(Refused):
            found.tunnel(parse_target(where))


def test_only_tls_unless_the_port_is_named() -> None:
    found = rules("a.test", "b.test:22", "c.test:443")
    assert not found.tunnel(Target("a.test", 443)).plain
    assert not found.tunnel(Target("a.test", 80)).plain
    assert found.tunnel(Target("b.test", 22)).plain
    assert not found.tunnel(Target("c.test", 443)).plain
    assert rules(open_=True).tunnel(Target("d.test", 22)).plain


@pytest.mark.parametrize(
    "text", ["*", "*.", "*.test", "a.*.test", "http://a.test", "a.test/path", "10.0.0.1/8", "a b",
             "a.test:0", "a.test:70000", "127.1", "a.test:http", ""],
)  # fmt: skip
def test_no_rules(text: str) -> None:
    with pytest.raises(InvalidHost):
        parse_rule(text)


def test_addresses_have_to_be_named_as_such() -> None:
    found = rules("a.test", "10.1.2.3:443")
    assert found.address(ip_address("8.8.8.8"), 443)
    assert found.address(ip_address("10.1.2.3"), 443)
    assert found.address(ip_address("::ffff:10.1.2.3"), 443)
    assert not found.address(ip_address("10.1.2.3"), 80)
    assert not found.address(ip_address("10.1.2.4"), 443)
    assert not rules(open_=True).address(ip_address("127.0.0.1"), 80)


def test_requests() -> None:
    secret = fixed("s3cret", "of a test")
    api = Rule(
        host="api.test",
        methods=frozenset({"GET"}),
        paths=("/repos/*", "/user"),
        https=True,
        headers={"authorization": secret},
    )
    found = RuleSet([api, parse_rule("web.test")])
    at = Target("api.test", 80)
    allowed = found.request(at, "GET", "/repos/a?b=c", https=False)
    assert (allowed.https, allowed.target.port) == (True, 443)
    assert allowed.headers == {"authorization": secret}
    assert "s3cret" not in repr((allowed, found, api))
    found.request(at, "GET", "/user", https=False)
    for method, path in (("POST", "/user"), ("GET", "/users"), ("GET", "/user/"), ("GET", "/")):
        with pytest.raises(Refused, match="may not"):
            found.request(at, method, path, https=False)
    for path in ("/repos/../user", "/repos/%2e%2e/x", "/repos//x", "/repos/%2Fx", "/repos/\\x",
                 "/repos/.", "/repos/.."):  # fmt: skip
        with pytest.raises(Refused, match="ambiguous"):
            found.request(at, "GET", path, https=False)
    with pytest.raises(Refused, match="one by one"):
        found.tunnel(Target("api.test", 443))
    plain = found.request(Target("web.test", 80), "POST", "/x/../y", https=False)
    assert (plain.https, plain.target.port, plain.headers) == (False, 80, {})
    assert found.request(Target("web.test", 443), "GET", "/", https=True).https


def test_trace_would_tell_a_secret() -> None:
    found = RuleSet([Rule(host="a.test", https=True, headers={"x": fixed("s", "t")})])
    with pytest.raises(Refused, match="TRACE"):
        found.request(Target("a.test", 80), "TRACE", "/", https=False)


def test_what_is_told() -> None:
    assert rules().told() == "It may reach nothing: the operator has allowed no host."
    assert "every public host" in rules(open_=True).told()
    assert rules("a.test", "10.0.0.1:22", "[fd00::1]:22").texts == [
        "a.test", "10.0.0.1:22", "[fd00::1]:22",
    ]  # fmt: skip
    many = rules(*(f"host{n}.test" for n in range(100)))
    assert "and 60 more" in many.told()


def test_names_in_an_allowlist() -> None:
    networks = Networks(presets={"web": [Rule(host="a.test")]})
    networks.check(["web", "indexes", "b.test", "build:80"], "X")
    with pytest.raises(InvalidRequest, match="X: no preset 'index'; did you mean indexes"):
        networks.check(["index"], "X")
    with pytest.raises(InvalidRequest, match=r"SANDBOX_NETWORK_ALLOW: 'http://a\.test'"):
        Networks(allow=["http://a.test"])
    declared = Environment(name="e", network="allowlist", allow=("web",))
    assert networks.terms("allowlist", declared).rules.texts == ["a.test"]
    assert networks.terms("none", declared).rules.texts == []
    networks.close()


def test_modes() -> None:
    of = NetworkModes(default="none", providers={"b": frozenset({"none", "allowlist", "open"})})
    web = Environment(name="web", network="open")
    assert of.granted(None, None, "b") == "none"
    assert of.granted(None, web, "b") == "open"
    assert of.granted("allowlist", web, "b") == "allowlist"
    with pytest.raises(InvalidRequest, match="raise SANDBOX_MAX_NETWORK"):
        of.granted("allowlist", None, "b")
    most = NetworkModes(default="none", most="bridge", providers=of.providers)
    assert most.granted("open", None, "b") == "open"
    with pytest.raises(InvalidRequest, match="b boxes cannot have 'bridge'"):
        most.granted("bridge", None, "b")
    bound = NetworkModes(default="none", most="allowlist")
    with pytest.raises(InvalidRequest, match="environment 'web' has the network 'open'"):
        bound.granted(None, web, "b")
    bridge = NetworkModes(default="bridge", providers=of.providers)
    assert bridge.granted(None, None, "b") == "none"
    assert (bound.still("open", None), most.still("open", None)) == ("allowlist", "open")
    assert (of.still("open", web), of.still("open", None)) == ("open", "none")
