"""Presets in files, and what is said of those that are wrong."""

from pathlib import Path

import pytest

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.network.headers import SecretMissing, header_name, secret
from sandbox_server.network.presets import read_presets


def test_a_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "s3cret")
    (tmp_path / "api.yaml").write_text(
        """
description: The API of ours.
rules:
  - host: api.example.com
    methods: [get, POST]
    paths: [/v1/*]
    headers: {Authorization: "Bearer {env:API_TOKEN}"}
  - host: "*.example.org"
    ports: [443, 8443]
  - host: 10.0.0.0/8
"""
    )
    (tmp_path / "notes.txt").write_text("not one of them")
    (rule, wide, inside) = read_presets(tmp_path)["api"]
    assert (rule.host, rule.paths) == ("api.example.com", ("/v1/*",))
    assert rule.methods == {"GET", "POST"}
    assert rule.https
    assert rule.headers["authorization"].reveal() == b"Bearer s3cret"
    assert "s3cret" not in repr(rule)
    assert str(rule) == "api.example.com (GET POST /v1/* as http://)"
    assert wide.ports == {443, 8443}
    assert str(inside.network) == "10.0.0.0/8"
    assert read_presets(None) == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rules: [{host: a.test}]\nrule: 1", r"x.yaml:2: rule: no such field; there are desc"),
        ("rules:\n  - host: a.test\n    port: 1", r"x.yaml:3: rules.0.port: no such field; there"),
        ("rules: []", r"x.yaml:1: rules: .*at least 1"),
        ("a: b: c", r"x.yaml:1: not YAML"),
        ("description: x", r"x.yaml:1: rules: missing"),
        ("- host", r"x.yaml:1"),
        ("rules:\n  - host: http://a.test", r"x.yaml:2: rules.0.host: 'http://a.test'"),
        ("rules:\n  - host: a.test\n    ports: [0]", r"x.yaml:3: rules.0.ports: a port is"),
        ("rules:\n  - host: a.test\n    methods: [CONNECT]", r"x.yaml:3: rules.0.methods: 'CONN"),
        ("rules:\n  - host: a.test\n    paths: [a]", r"x.yaml:3: rules.0.paths: 'a': write /path"),
        ("rules:\n  - host: a.test\n    paths: [/a*/b]", r"paths: '/a\*/b': write"),
        ("rules:\n  - host: a.test\n    headers: {A: b}", r"x.yaml:3: rules.0.headers: A: a sec"),
        ("rules:\n  - host: a.test\n    headers: {A: '{env:NOT_SET}'}", r"variable NOT_SET is not"),
        ("rules:\n  - host: a.test\n    headers: {A: '{file:none}'}", r"the file none cannot be r"),
        ("rules:\n  - host: a.test\n    headers: {Host: '{env:HOME}'}", r"'Host' is not a header"),
        ("rules:\n  - host: '*.a.test'\n    headers: {A: '{env:HOME}'}", r"name it without `\*`"),
        ("rules:\n  - host: a.test\n    https: false\n    headers: {A: '{env:HOME}'}", "https"),
        ("rules:\n  - host: a.test\n    ca: none.pem", r"x.yaml:3: rules.0.ca: no file 'none.pem'"),
    ],
)
def test_what_is_wrong(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(InvalidRequest, match=told):
        read_presets(tmp_path)


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="SANDBOX_NETWORK_PRESETS"):
        read_presets(tmp_path / "none")


def test_a_secret_of_a_file_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one\n")
    made = secret("Bearer {file:token}", folder=tmp_path)
    assert made.reveal() == b"Bearer one"
    (tmp_path / "token").write_text("two")
    assert made.reveal() == b"Bearer two"
    (tmp_path / "token").write_text("two\nlines")
    with pytest.raises(SecretMissing, match="file token is not one line"):
        made.reveal()
    assert "two" not in repr(made)


def test_headers_that_cannot_be_added() -> None:
    for name in ("Host", "content-length", "Transfer-Encoding", "a b", "a\r\nb", ""):
        with pytest.raises(ValueError, match="not a header"):
            header_name(name)
    assert header_name("X-Api-Key") == "x-api-key"
