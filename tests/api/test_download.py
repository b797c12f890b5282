"""download_file."""

import hashlib
from collections.abc import AsyncIterator
from urllib.parse import unquote

import pytest

from sandbox_sdk.protocol.errors import FileTooLarge
from tests.api.serving import Served, eventually, whole_answer


def put(server: Served, path: str, content: bytes) -> None:
    data = {"thread_id": "t", "path": path}
    server.http.post("/upload_file", data=data, files={"file": ("x", content)})


def test_download(server: Served) -> None:
    put(server, "dir/a.txt", b"0123456789")
    answer = server.http.get("/download_file", params={"thread_id": "t", "path": "dir/a.txt"})
    assert (answer.status_code, answer.content) == (200, b"0123456789")
    digest = hashlib.sha256(b"0123456789").hexdigest()
    assert answer.headers["etag"] == f'"{digest}"'
    assert answer.headers["content-length"] == "10"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-sandbox-path"] == "dir/a.txt"
    assert answer.headers["x-sandbox-modified-at"] == "2025-01-01T12:00:00+00:00"
    assert answer.headers["content-disposition"].startswith('attachment; filename="a.txt"')
    eventually(lambda: server.fake.closed == ["download"])


@pytest.mark.parametrize("name", ["ü.txt", 'a"b;\r\nSet-Cookie: x', "日本", "a\tb", "-"])
def test_name_in_the_header(server: Served, name: str) -> None:
    put(server, name, b"1")
    answer = server.http.get("/download_file", params={"thread_id": "t", "path": name})
    assert answer.status_code == 200
    assert "set-cookie" not in answer.headers
    extended = answer.headers["content-disposition"].split("filename*=UTF-8''")[1]
    assert unquote(extended) == name


def test_folder_is_a_tar(server: Served) -> None:
    server.http.post("/create_session", json={"thread_id": "t"})
    answer = server.http.get("/download_file", params={"thread_id": "t", "path": "dir/"})
    assert (answer.status_code, answer.content) == (200, b"tar")
    assert answer.headers["content-type"] == "application/x-tar"
    assert 'filename="dir.tar"' in answer.headers["content-disposition"]
    assert "etag" not in answer.headers
    assert "content-length" not in answer.headers


@pytest.mark.parametrize("tags", ["{}", "W/{}", '"x", {}', "*"])
def test_known_already(server: Served, tags: str) -> None:
    put(server, "a", b"1")
    params = {"thread_id": "t", "path": "a"}
    etag = server.http.get("/download_file", params=params).headers["etag"]
    known = {"If-None-Match": tags.format(etag)}
    answer = server.http.get("/download_file", params=params, headers=known)
    assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)
    other = {"If-None-Match": '"x"'}
    assert server.http.get("/download_file", params=params, headers=other).status_code == 200
    eventually(lambda: server.fake.closed == ["download"] * 3)


def test_empty_file(server: Served) -> None:
    put(server, "a", b"")
    answer = server.http.get("/download_file", params={"thread_id": "t", "path": "a"})
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-length"] == "0"


def test_missing_file(server: Served) -> None:
    server.http.post("/create_session", json={"thread_id": "t"})
    answer = server.http.get("/download_file", params={"thread_id": "t", "path": "missing"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "file_not_found")


def test_error_before_the_first_byte(server: Served) -> None:
    put(server, "a", b"0123456789")
    server.fake.download_fails_at = 0
    answer = server.http.get("/download_file", params={"thread_id": "t", "path": "a"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
    eventually(lambda: server.fake.closed == ["download"])


@pytest.mark.parametrize("path", ["a", "dir/"])
def test_error_later_never_looks_whole(server: Served, path: str) -> None:
    put(server, "a", b"0123456789")
    server.fake.download_fails_at = 4 if path == "a" else 2
    if path == "dir/":
        server.fake.pieces = broken  # type: ignore[method-assign]
    with server.connect() as client:
        request = f"GET /download_file?thread_id=t&path={path} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        client.sendall(request.encode())
        answer = whole_answer(client)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert not answer.endswith(b"0\r\n\r\n")
    eventually(lambda: server.fake.closed == ["download"])


async def broken(content: bytes) -> AsyncIterator[bytes]:
    yield b"half"
    raise FileTooLarge("of a tar")
