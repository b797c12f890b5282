"""Web pages are kept out of a server without keys; programs are not, whatever they call JSON."""

import json
import socket
from collections.abc import Iterator

import pytest

from sandbox_server.api.auth import ApiKeys
from sandbox_server.api.origin import AllowedHosts
from tests.api.serving import Served, served

ROUTES = [
    ("POST", "/create_session"),
    ("POST", "/execute"),
    ("POST", "/upload_file"),
    ("GET", "/download_file?thread_id=t&path=x"),
    ("GET", "/list_files?thread_id=t"),
    ("GET", "/session?thread_id=t"),
    ("POST", "/cleanup"),
    ("GET", "/health"),
    ("GET", "/command?thread_id=t&command_id=x"),
    ("GET", "/commands?thread_id=t"),
    ("POST", "/command/signal"),
    ("POST", "/command/stdin"),
    ("GET", "/sessions"),
    ("POST", "/mcp"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("GET", "/static-docs/swagger-ui.css"),
    ("GET", "/nowhere"),
    ("OPTIONS", "/execute"),
    ("HEAD", "/health"),
]
SESSION = "0a1b2c3d-0000-4000-8000-00000000abcd"
RUN = {"thread_id": "t", "command": "true"}


@pytest.fixture(scope="module")
def open_server() -> Iterator[Served]:
    with served() as server:
        yield server


def foreign(port: int) -> list[dict[str, str]]:
    own = f"127.0.0.1:{port}"
    return [
        {"Host": "evil.example"},
        {"Host": f"evil.example:{port}"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "localhost.evil.example"},
        {"Host": "evil.example@127.0.0.1"},
        {"Host": "169.254.169.254"},
        {"Host": "0.0.0.0"},
        {"Host": f"8080-{SESSION}.localhost:{port}"},
        {"Origin": f"http://8080-{SESSION}.localhost:{port + 1}"},
        {"Origin": f"http://8080-{SESSION}.localhost:{port}", "Host": f"localhost:{port}"},
        {"Host": ""},
        {"Host": "localhost/evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": f"http://127.0.0.1:{port + 1}"},
        {"Origin": f"http://localhost:{port}"},
        {"Origin": f"ftp://{own}"},
        {"Origin": f"http://{own}.evil.example"},
        {"Origin": f"http://{own}", "Host": f"evil.example:{port}"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
        {"Origin": f"http://{own}", "Sec-Fetch-Site": "cross-site"},
    ]


def test_pages_of_other_sites_reach_nothing(open_server: Served) -> None:
    for headers in foreign(open_server.port):
        answer = open_server.http.post("/execute", json=RUN, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden"), headers
        assert answer.json()["error"]["request_id"] == answer.headers["x-request-id"]
        assert "SANDBOX_ALLOWED_HOSTS" in answer.json()["error"]["message"]
    for method, path in ROUTES:
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            assert open_server.http.request(method, path, headers=headers).status_code == 403, path
    form = {"file": ("x", b"1")}
    evil = {"Origin": "http://evil.example", "Accept": "text/event-stream"}
    sent = open_server.http.post("/upload_file?thread_id=t", files=form, headers=evil)
    assert sent.status_code == 403
    assert open_server.http.get("/sessions").json()["sessions"] == []


def test_two_names_are_none(open_server: Served) -> None:
    with open_server.connect() as client:
        client.sendall(
            b"GET /sessions HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n"
            b"Connection: close\r\n\r\n"
        )
        assert b"400" in client.recv(100)


def test_our_own_page_and_programs_are_served(open_server: Served) -> None:
    own = f"127.0.0.1:{open_server.port}"
    for headers in (
        {},
        {"Host": "localhost"},
        {"Host": "LOCALHOST.:99"},
        {"Host": "127.8.9.1"},
        {"Host": "[::1]:80"},
        {"Host": socket.gethostname()},
        {"Origin": f"http://{own}", "Sec-Fetch-Site": "same-origin"},
        {"Origin": "http://localhost", "Host": "localhost:80"},
        {"Sec-Fetch-Site": "none"},
    ):
        assert open_server.http.post("/execute", json=RUN, headers=headers).status_code == 200


def test_a_server_with_keys_answers_to_any_name() -> None:
    with served(keys=ApiKeys([("acme", "key")])) as server:
        for headers in foreign(server.port):
            key = {**headers, "X-API-Key": "key"}
            assert server.http.post("/execute", json=RUN, headers=key).status_code == 200, headers
            assert server.http.post("/execute", json=RUN, headers=headers).status_code == 401


@pytest.mark.parametrize(
    ("hosts", "known", "unknown"),
    [
        (AllowedHosts("192.168.1.5"), ["192.168.1.5:8000", "127.0.0.1"], ["10.0.0.1", "box.lan"]),
        (AllowedHosts("0.0.0.0"), ["10.0.0.1", "[fd00::1]:5"], ["0.0.0.0", "box.lan", "[::]"]),
        (AllowedHosts("::1", ["Box.lan", "a.b"]), ["box.lan:80", "A.B.", "[::1]"], ["c.box.lan"]),
        (AllowedHosts(more=["*"]), ["anything.example"], []),
    ],
)
def test_names(hosts: AllowedHosts, known: list[str], unknown: list[str]) -> None:
    assert [name in hosts for name in known] == [True] * len(known)
    assert [name in hosts for name in unknown] == [False] * len(unknown)


@pytest.mark.parametrize(
    "kind", [None, "", "application/x-www-form-urlencoded", "text/plain", "multipart/form-data"]
)
def test_json_is_read_whatever_it_is_called(open_server: Served, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    for path, body, status in (
        ("/create_session", {"thread_id": "t2"}, 201),
        ("/execute", RUN, 200),
        ("/execute?unused=1", RUN, 200),
        ("/command/signal", {"thread_id": "t2", "command_id": "x"}, 200),
        ("/command/stdin", {"thread_id": "t2", "command_id": "x", "data": "y"}, 200),
        ("/cleanup", {"thread_id": "t2"}, 200),
    ):
        content = json.dumps(body).encode()
        answer = open_server.http.post(path, content=content, headers=headers)
        assert answer.status_code in (status, 404), (path, answer.text)
        assert answer.status_code == status or path.startswith("/command/"), answer.text


def test_remembered_hosts_change_no_verdict() -> None:
    """Callers choose the names: any number of them, asked twice, are judged as the first time."""
    hosts = AllowedHosts()
    names = [f"{number}.example" for number in range(200)] + ["x" * 1000]
    for _ in range(2):
        assert not any(name in hosts for name in names)
        assert "localhost:8000" in hosts
    assert len(hosts._judged) < len(names)
