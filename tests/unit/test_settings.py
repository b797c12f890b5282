"""Settings: where they come from, and what a bad one ends in."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.sandboxes import Tenants
from sandbox_server import main as main_module
from sandbox_server.settings import Settings, load

SECRET = "acme:key-of-acme"


@pytest.fixture(autouse=True)
def no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("SANDBOX_") or name in ("PORT", "POOL_SIZE", "WORKER_ID"):
            monkeypatch.delenv(name)


def test_defaults_are_those_of_the_contract() -> None:
    found = load()
    assert (found.pool_size, found.min_pool_size, found.max_pool_size) == (5, 2, 20)
    assert (found.idle_timeout, found.command_timeout) == (1800, 30)
    assert (found.memory_limit, found.cpu_limit) == (512 << 20, 0.5)
    assert (found.pids_limit, found.disk_limit) == (256, 1 << 30)
    assert (found.network, found.max_upload) == ("none", 100 << 20)
    assert (found.image, found.host) == ("sandbox-secure:latest", "127.0.0.1")
    assert found.listening_port() == 8000
    assert load(role="worker", redis_url="redis://r").listening_port() == 5000
    assert load(role="coordinator", redis_host="r").redis() == "redis://r:6379/0"


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("POOL_SIZE", "7", "pool_size", 7),
        ("MIN_POOL_SIZE", "1", "min_pool_size", 1),
        ("MAX_POOL_SIZE", "30", "max_pool_size", 30),
        ("PORT", "9000", "port", 9000),
        ("WORKER_ID", "w-1", "worker_id", "w-1"),
        ("WORKERS", "http://a, http://b", "workers", ("http://a", "http://b")),
        ("MEMORY_LIMIT", "256m", "memory_limit", 256 << 20),
    ],
)
def test_plain_names_are_aliases(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, field: str, expected: object
) -> None:
    monkeypatch.setenv(name, value)
    assert getattr(load(), field) == expected


def test_the_prefixed_name_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "9000")
    monkeypatch.setenv("SANDBOX_PORT", "9001")
    assert load().port == 9001
    assert load(port=9002).port == 9002


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), ("64k", 64 << 10), ("1.5g", 3 << 29), ("512MiB", 512 << 20), ("1GB", 1 << 30)],
)
def test_sizes(monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> None:
    monkeypatch.setenv("SANDBOX_DISK_LIMIT", text)
    assert load().disk_limit == size


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("SANDBOX_PORT", "http", "SANDBOX_PORT: "),
        ("SANDBOX_PORT", "70000", "SANDBOX_PORT: "),
        ("PORT", "x", "PORT: "),
        ("SANDBOX_MEMORY_LIMIT", "much", "SANDBOX_MEMORY_LIMIT: "),
        ("SANDBOX_MEMORY_LIMIT", "m", "SANDBOX_MEMORY_LIMIT: "),
        ("SANDBOX_MEMORY_LIMIT", "0", "SANDBOX_MEMORY_LIMIT: "),
        ("SANDBOX_DISK_LIMIT", "1e400g", "SANDBOX_DISK_LIMIT: "),
        ("SANDBOX_IDLE_TIMEOUT", "-1", "SANDBOX_IDLE_TIMEOUT: "),
        ("SANDBOX_RUNTIME", "podman", "SANDBOX_RUNTIME: "),
        ("SANDBOX_NETWORK", "host", "SANDBOX_NETWORK: "),
        ("SANDBOX_ENVIRONMENTS", "python=x", "SANDBOX_ENVIRONMENTS: "),
        ("SANDBOX_WORKER_ID", "../x", "SANDBOX_WORKER_ID: "),
        ("SANDBOX_POOL_SIZE", "1", "MIN_POOL_SIZE <= POOL_SIZE <= MAX_POOL_SIZE"),
        ("SANDBOX_HOST", "0.0.0.0", "SANDBOX_API_KEYS=tenant:key"),
        ("SANDBOX_ROLE", "worker", "a worker needs SANDBOX_REDIS_URL"),
        ("SANDBOX_ROLE", "captain", "SANDBOX_ROLE: "),
    ],
)
def test_a_bad_value_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, told: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidRequest) as raised:
        load()
    line = raised.value.message
    assert told in line
    assert "\n" not in line


@pytest.mark.parametrize("keys", ["key-without-a-tenant", "a:same,b:same", "a b:key"])
def test_bad_keys_stop_the_start_and_are_not_shown(
    monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    monkeypatch.setenv("SANDBOX_API_KEYS", keys)
    with pytest.raises(InvalidRequest, match="SANDBOX_API_KEYS: API key") as raised:
        asyncio.run(main_module.serve(load(), on_listening=never))
    assert keys not in str(raised.value)
    assert "same" not in str(raised.value)


async def never(url: str, sandboxes: Tenants) -> None:
    raise AssertionError("it listens")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_no_open_door(host: str) -> None:
    with pytest.raises(InvalidRequest, match="without keys"):
        load(host=host)
    assert load(host=host, insecure=True).host == host
    assert load(host=host, api_keys=SECRET).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_keys(host: str) -> None:
    assert load(host=host).host == host


def test_what_is_in_force_hides_keys() -> None:
    found = load(api_keys=SECRET).in_force()
    assert found["pool_size"] == 5
    assert set(found) == {"version", *Settings.model_fields}
    assert "key-of-acme" not in str(found)
    assert "key-of-acme" not in repr(load(api_keys=SECRET))


def test_a_frozen_thing() -> None:
    found: Any = load()
    with pytest.raises(ValueError, match="frozen"):
        found.port = 1


def test_the_process_ends_with_the_line_and_a_code(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "sandbox_server"],
        env={"SANDBOX_POOL_SIZE": "many", "SANDBOX_STATE_DIR": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 125
    (line,) = ended.stderr.splitlines()
    assert line.startswith("sandbox: SANDBOX_POOL_SIZE: ")
