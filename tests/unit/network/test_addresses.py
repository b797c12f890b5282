"""Which addresses count as public, and in which spellings they are read."""

from ipaddress import ip_address

import pytest

from sandbox_server.network.hosts import (
    InvalidHost,
    Target,
    is_own,
    is_public,
    parse_address,
    parse_host,
    parse_target,
)


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.0", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254",
        "168.63.129.16", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192",
        "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.1", "203.0.113.1",
        "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "::", "::1",
        "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::10.0.0.1", "64:ff9b::10.0.0.1",
        "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1", "2001::1", "2001:0:a9fe:a9fe::1",
        "2001:db8::1", "2002:a00:1::", "2002:808:808::", "3fff::1", "5f00::1", "fc00::1",
        "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1", "::ffff:0:10.0.0.1",
    ],
)  # fmt: skip
def test_not_public(text: str) -> None:
    assert not is_public(ip_address(text))


@pytest.mark.parametrize(
    "text",
    ["8.8.8.8", "1.1.1.1", "172.32.0.1", "168.63.129.17", "2606:4700::1", "::ffff:8.8.8.8",
     "64:ff9b::808:808"],
)  # fmt: skip
def test_public(text: str) -> None:
    assert is_public(ip_address(text))


@pytest.mark.parametrize(
    "text",
    ["127.1", "0x7f.0.0.1", "0177.0.0.1", "2130706433", "127.0.0.1 ", "fe80::1%lo", "", "a.b",
     "127.0.0.01", "1.2.3"],
)  # fmt: skip
def test_not_an_address(text: str) -> None:
    assert parse_address(text) is None


def test_this_machine_knows_its_own_addresses() -> None:
    assert is_own(ip_address("127.0.0.1"))
    assert not is_own(ip_address("192.0.2.1"))


@pytest.mark.parametrize(
    ("text", "host"),
    [("Example.COM", "example.com"), ("example.com.", "example.com"), ("a_b.example.com",) * 2,
     ("bücher.example", "xn--bcher-kva.example"), ("1e100.example", "1e100.example")],
)  # fmt: skip
def test_names(text: str, host: str) -> None:
    assert parse_host(text) == host


@pytest.mark.parametrize(
    "text",
    ["", ".", "a..b", "-a.b", "a-.b", "a b", "a/b", "a@b", "a:b", "*.a", "%61.b", "127.1", "1",
     "0x7f", "a.0x1", "a.1", "a" * 64 + ".b", "a." * 127 + "ab", "a\x00.b", "a\n.b", "::g", "[::1"],
)  # fmt: skip
def test_no_names(text: str) -> None:
    with pytest.raises(InvalidHost):
        parse_host(text)


def test_targets() -> None:
    assert parse_target("a.test:80") == Target("a.test", 80)
    assert parse_target("a.test", port=443) == Target("a.test", 443)
    assert str(parse_target("[2001:db8::1]:80")) == "[2001:db8::1]:80"
    assert str(parse_target("[::ffff:10.0.0.1]:80")) == "10.0.0.1:80"
    for text in ("a.test", "a.test:0", "a.test:65536", "a.test:-1", "a.test:", "::1:80", "a:1:2"):
        with pytest.raises(InvalidHost):
            parse_target(text)
