"""Whatever is sent to the routes of the e2b door: an answer, and none of our failures."""

import json
import struct
from collections.abc import Iterator
from typing import Any

import e2b
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.e2b.servers import KEY, Served

pytestmark = pytest.mark.one_way

_STREAMS = ["process.Process/Start", "process.Process/Connect", "filesystem.Filesystem/WatchDir",
            "process.Process/StreamInput"]  # fmt: skip
_UNARY = [
    "process.Process/List", "process.Process/SendInput", "process.Process/CloseStdin",
    "process.Process/SendSignal", "process.Process/Update", "filesystem.Filesystem/Stat",
    "filesystem.Filesystem/ListDir", "filesystem.Filesystem/MakeDir", "filesystem.Filesystem/Move",
    "filesystem.Filesystem/Remove", "filesystem.Filesystem/CreateWatcher",
    "filesystem.Filesystem/GetWatcherEvents", "filesystem.Filesystem/RemoveWatcher",
    "execute", "contexts",
]  # fmt: skip
_CONTROL = ["sandboxes", "v2/sandboxes", "sandboxes/x/timeout", "sandboxes/x/connect",
            "sandboxes/x/fork", "sandboxes/x/snapshots", "sandboxes/x/pause"]  # fmt: skip

_NAMES = st.sampled_from(
    ["process", "pid", "tag", "cmd", "args", "envs", "cwd", "pty", "size", "rows", "cols", "stdin",
     "signal", "input", "path", "depth", "source", "destination", "watcherId", "start", "data",
     "timeout", "templateID", "metadata", "code", "language", "context_id", "count", "name"]
)  # fmt: skip
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(_NAMES | st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=12,
)
_BODY = st.binary(max_size=60) | _JSON.map(lambda value: json.dumps(value).encode())
_NO_START = "true"


def _framed(flags: int, body: bytes, *, wrong: int) -> bytes:
    return struct.pack(">BI", flags, max(len(body) + wrong, 0)) + body


_ENVELOPES = st.binary(max_size=20) | st.builds(
    _framed, st.sampled_from([0, 0, 0, 1, 2, 128]), _BODY, wrong=st.sampled_from([0, 0, 0, -1, 7])
)
_TIMEOUT = st.sampled_from(["2000", "1000", "", "x", "-1", "9" * 30, "²"])


@pytest.fixture(scope="module")
def http(served: Served) -> Iterator[httpx.Client]:
    box = e2b.Sandbox.create(timeout=600, **served.options())
    headers = {"E2b-Sandbox-Id": box.sandbox_id, "X-Access-Token": box._envd_access_token or "",
               "X-API-Key": KEY}  # fmt: skip
    with httpx.Client(base_url=f"{served.urls[0]}/e2b/", headers=headers, timeout=60) as made:
        yield made
    box.kill()


FUZZ = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(
    path=st.sampled_from(_STREAMS),
    pieces=st.lists(_ENVELOPES, max_size=3),
    timeout=_TIMEOUT,
)
def test_streams(http: httpx.Client, path: str, pieces: list[bytes], timeout: str) -> None:
    headers = {"Content-Type": "application/connect+json",
               "Connect-Timeout-Ms": timeout.encode() or b"1000"}  # fmt: skip
    answer = http.post(path, content=b"".join(pieces), headers=headers)  # type: ignore[arg-type]
    assert answer.status_code < 500, answer.text
    if answer.status_code == 200:
        _check_end(answer.content)


def _check_end(body: bytes) -> None:
    """The stream is whole, and its error is not ours."""
    at, flags, message = 0, 0, b""
    while at < len(body):
        flags, size = struct.unpack_from(">BI", body, at)
        message = body[at + 5 : at + 5 + size]
        assert len(message) == size
        at += 5 + size
    assert flags == 2
    assert json.loads(message).get("error", {}).get("code") not in ("internal", "unknown")


@FUZZ
@given(path=st.sampled_from(_UNARY + _CONTROL), body=_BODY, timeout=_TIMEOUT)
def test_calls(http: httpx.Client, path: str, body: bytes, timeout: str) -> None:
    headers: dict[str, Any] = {"Connect-Timeout-Ms": timeout.encode() or b"1"}
    answer = http.post(path, content=body, headers=headers)
    assert answer.status_code < 500 or answer.status_code == 501, answer.text
    if answer.status_code == 201 and "sandboxID" in answer.text:
        http.delete(f"sandboxes/{answer.json()['sandboxID']}")
    elif answer.status_code >= 400:
        assert isinstance(answer.json()["message"], str)


@FUZZ
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH"]),
    path=st.text("abcxyz/.%2F", max_size=20),
)
def test_paths(http: httpx.Client, method: str, path: str) -> None:
    answer = http.request(method, f"z{path}")
    assert answer.status_code < 500 or answer.status_code == 501, answer.text
