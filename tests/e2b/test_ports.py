"""Ports of a sandbox at the host that e2b's SDK computes, without exposing them first."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from tests.contract.preview_app import APP
from tests.e2b.servers import OTHER_KEY, Served
from tests.e2b.waiting import eventually

PORT = 8080


def listening(box: Any, port: int = PORT) -> None:
    """Have an application listen in a sandbox."""
    box.files.write("app.py", APP)
    box.commands.run(f"python3 app.py {port}", background=True)
    listens = f"(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null"
    box.commands.run(f"until {listens}; do sleep 0.05; done")


@contextlib.contextmanager
def visiting(host: str, **headers: str) -> Iterator[httpx.Client]:
    """A client that finds names below localhost: not every resolver does."""
    port = host.rpartition(":")[2]
    given = {"host": host, "user-agent": "python-httpx", **headers}
    base = f"http://127.0.0.1:{port}"
    with httpx.Client(base_url=base, headers=given, trust_env=False, timeout=60) as client:
        yield client


def get(box: Any, *, port: int = PORT) -> httpx.Response:
    with visiting(box.get_host(port)) as client:
        return client.get("/x")


def with_token(box: Any, token: str) -> httpx.Response:
    with visiting(box.get_host(PORT), **{"e2b-traffic-access-token": token}) as client:
        return client.get("/x")


def created(sandbox_type: Any, options: dict[str, Any], made: list[str], **more: Any) -> Any:
    box = sandbox_type.create(timeout=300, **more, **options)
    made.append(box.sandbox_id)
    return box


def test_any_port_is_public(box: Any, served: Served) -> None:
    listening(box)
    answer = get(box)
    assert answer.status_code == 200
    seen = dict(answer.json()["headers"])
    assert seen["host"] == box.get_host(PORT)
    listening(box, 9000)
    assert get(box, port=9000).status_code == 200
    with visiting(box.get_host(PORT)) as client:
        assert client.post("/", content=b"x" * 200_000).json()["size"] == 200_000
    info = box.get_info()
    assert info.network["allow_public_traffic"] is True


def test_at_every_coordinator(box: Any, served: Served) -> None:
    listening(box)
    for url in served.urls:
        preview_port = int(url.rpartition(":")[2]) + 1
        host = f"{PORT}-{box.sandbox_id}.localhost:{preview_port}"
        with visiting(host) as client:
            assert client.get("/x").status_code == 200


def test_a_websocket(box: Any) -> None:
    listening(box)
    host = box.get_host(PORT)
    uri = f"ws://{host}/ws"
    with connect(uri, sock=_socket(host), proxy=None) as opened:
        opened.send("hello")
        assert opened.recv() == "hello"


def _socket(host: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(host.rpartition(":")[2])))


def test_a_port_nobody_listens_at(box: Any) -> None:
    """As e2b's own tests have it: ids up to the first `-`."""
    answer = get(box, port=3000)
    assert answer.status_code == 502
    told = answer.json()
    assert told["message"] == "The sandbox is running but port is not open"
    assert told["sandboxId"] == box.sandbox_id.split("-")[0]
    assert told["port"] == 3000
    with visiting(box.get_host(3000), **{"user-agent": "Mozilla/5.0 Chrome/91.0"}) as browser:
        page = browser.get("/")
    assert page.status_code == 502
    assert "<title>Closed Port Error</title>" in page.text


def test_ports_that_need_a_token(
    sandbox_type: Any, options: dict[str, Any], made: list[str], served: Served
) -> None:
    box = created(sandbox_type, options, made, network={"allow_public_traffic": False})
    other = created(sandbox_type, options, made)
    listening(box)
    foreign = sandbox_type.create(timeout=60, **served.options(key=OTHER_KEY))
    try:
        answer = get(box)
        assert answer.status_code == 403
        assert "Token header 'e2b-traffic-access-token' is missing" in answer.json()["message"]
        for token in (other.traffic_access_token, foreign.traffic_access_token, "x", "a.b.c"):
            answer = with_token(box, token)
            assert answer.status_code == 403
            assert "is invalid" in answer.json()["message"]
    finally:
        foreign.kill()
    answer = with_token(box, box.traffic_access_token)
    assert answer.status_code == 200
    assert box.traffic_access_token not in answer.text, "the box is not told"
    again = sandbox_type.connect(box.sandbox_id, **options)
    answer = with_token(box, again.traffic_access_token)
    assert answer.status_code == 200
    assert box.get_info().network["allow_public_traffic"] is False


def test_the_host_that_applications_see(
    sandbox_type: Any, options: dict[str, Any], made: list[str]
) -> None:
    mask = "app.example.com:${PORT}"
    box = created(sandbox_type, options, made, network={"mask_request_host": mask})
    listening(box)
    seen = get(box).json()["headers"]
    assert [value for name, value in seen if name == "host"] == [f"app.example.com:{PORT}"]
    assert box.get_info().network["mask_request_host"] == mask


def test_of_one_that_has_ended(box: Any) -> None:
    listening(box)
    assert get(box).status_code == 200
    box.kill()
    answer = get(box)
    assert answer.status_code == 502
    told = answer.json()
    assert told["message"] == "The sandbox was not found"
    assert told["sandboxId"] == box.sandbox_id.split("-")[0]


def test_requests_wake_what_was_made_so(
    sandbox_type: Any, options: dict[str, Any], made: list[str]
) -> None:
    lifecycle = {"on_timeout": "pause", "auto_resume": True}
    box = created(sandbox_type, options, made, lifecycle=lifecycle)
    listening(box)
    assert get(box).status_code == 200
    with visiting(box.get_host(PORT)) as client:
        assert client.get("/x").status_code == 200
        box.pause()  # With a connection that waits for its next request.
        assert client.get("/x").status_code == 200
    info = box.get_info()
    assert info.state.value == "running"
    assert info.lifecycle["auto_resume"] is True
    assert (info.end_at - info.started_at).total_seconds() < 900, "it has a time again"


def test_others_stay_paused(box: Any) -> None:
    listening(box)
    with visiting(box.get_host(PORT)) as client:
        assert client.get("/x").status_code == 200
        box.pause()
        answer = client.get("/x")
        assert (answer.status_code, answer.json()["message"]) == (409, "The sandbox is paused")
        assert client.post("/", content=b"x").status_code == 409
        box.connect()
        assert client.get("/x").status_code == 200
    assert box.get_info().lifecycle["auto_resume"] is False


def test_forks_have_theirs(sandbox_type: Any, options: dict[str, Any], made: list[str]) -> None:
    private = {"allow_public_traffic": False}
    box = created(sandbox_type, options, made, network=private)
    (fork,) = box.fork(timeout=120)
    made.append(fork.sandbox_id)
    listening(fork)
    assert get(fork).status_code == 403
    assert with_token(fork, fork.traffic_access_token).status_code == 200
    assert with_token(fork, box.traffic_access_token).status_code == 403


@pytest.mark.one_way
def test_what_is_open_ends_with_it(box: Any) -> None:
    listening(box)
    host = box.get_host(PORT)
    with connect(f"ws://{host}/ws", sock=_socket(host), proxy=None) as opened:
        opened.send("hello")
        assert opened.recv() == "hello"
        box.kill()

        def is_cut() -> bool:
            try:
                opened.recv(timeout=0.1)
            except TimeoutError:
                return False
            except Exception:
                return True
            return False

        eventually(is_cut)
