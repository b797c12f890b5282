"""The server name of a real ClientHello, and of what pretends to be one."""

import ssl
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_server.network.server_name import BadHello, looks_like_tls, server_name


@cache
def hello(name: str | None) -> bytes:
    """What a client sends first."""
    sent = ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    client = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


def test_the_name() -> None:
    assert server_name(hello("a.test")) == "a.test"
    assert server_name(hello("Web.Example.COM")) == "web.example.com"
    assert server_name(hello(None)) == ""
    assert server_name(hello("a.test") + b"more") == "a.test"


def test_a_hello_in_pieces() -> None:
    whole = hello("a.test")
    assert {server_name(whole[:size]) for size in range(len(whole))} == {None}
    body = whole[5:]
    records = [body[at : at + 7] for at in range(0, len(body), 7)]
    split = b"".join(b"\x16\x03\x01" + len(r).to_bytes(2, "big") + r for r in records)
    assert server_name(split) == "a.test"


def test_two_names_are_none() -> None:
    whole = hello("a.test")
    name = b"\x00\x00\x06a.test"
    assert name in whole
    other = whole.replace(b"\x00\x09" + name, b"\x00\x12" + name + name)
    grown = len(other) - len(whole)
    assert grown == 9
    with pytest.raises(BadHello):
        server_name(other + bytes(grown))


@pytest.mark.parametrize(
    "data",
    [b"\x16\x03\x01\x00\x00", b"\x16\x03\x01\x00\x04\x02\x00\x00\x01", b"\x16\x02\x01\x00\x01x",
     b"\x16\x03\x01\x00\x04\x01\xff\xff\xff", b"\x15\x03\x01\x00\x02\x02\x28",
     b"\x16\x03\x01\x50\x00" + bytes(9)],
)  # fmt: skip
def test_what_is_none(data: bytes) -> None:
    with pytest.raises(BadHello):
        server_name(data)


@given(st.binary(max_size=300), st.integers(0, 400))
def test_anything_is_a_name_or_bad(noise: bytes, at: int) -> None:
    whole = hello("a.test")
    try:
        found = server_name(whole[:at] + noise + whole[at + len(noise) :])
    except BadHello:
        return
    assert found is None or isinstance(found, str)


def test_what_looks_like_tls() -> None:
    assert looks_like_tls(b"") is None
    assert looks_like_tls(b"\x16") is None
    assert looks_like_tls(b"\x16\x03") is True
    assert looks_like_tls(b"\x16\x02") is False
    assert looks_like_tls(b"G") is False
