"""upload_file."""

import gc
import hashlib
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from sandbox_sdk.protocol.errors import DiskFull
from sandbox_sdk.protocol.models import UploadResult
from sandbox_server.api.limits import ApiLimits
from tests.api.serving import Served, eventually, served, whole_answer

MIB = 1 << 20


def stored(server: Served, thread_id: str = "t") -> dict[str, bytes]:
    session = server.fake.live.get(("default", thread_id))
    return session.files if session else {}


def form(*parts: tuple[str, bytes], end: bool = True) -> bytes:
    """A form as raw bytes; each part is what stands behind `form-data; `, and its content."""
    body = b"".join(
        b"--B\r\nContent-Disposition: form-data; " + head.encode() + b"\r\n\r\n" + data + b"\r\n"
        for head, data in parts
    )
    return body + (b"--B--\r\n" if end else b"")


FORM = {"Content-Type": "multipart/form-data; boundary=B"}
THREAD = ('name="thread_id"', b"t")
FILE = ('name="file"; filename="f.txt"', b"hello")
PATH = ('name="path"', b"p")


@pytest.mark.parametrize("size", [0, 1, 65536, MIB])
def test_upload(server: Served, size: int) -> None:
    content = os.urandom(size)
    answer = server.http.post(
        "/upload_file", data={"thread_id": "t", "path": "a/b"}, files={"file": ("x", content)}
    )
    assert answer.status_code == 200, answer.text
    result = UploadResult.model_validate(answer.json())
    assert (result.size, result.sha256) == (size, hashlib.sha256(content).hexdigest())
    assert stored(server) == {"a/b": content}


@pytest.mark.parametrize("metadata", ["[" * 5000, '{"a":' * 1600, "null", "{", '{"a": 1}'])
def test_metadata_that_is_none(server: Served, metadata: str) -> None:
    answer = server.http.post(
        "/upload_file",
        data={"thread_id": "t", "path": "a", "metadata": metadata},
        files={"file": ("x", b"x")},
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_request")
    assert "metadata" in answer.json()["error"]["message"]


def test_content_like_a_boundary(server: Served) -> None:
    content = b"\r\n--A\r\r\n--Bx\r\n-\n--B-\r\n\r\n--" * 10000
    body = form(THREAD, ('name="file"; filename="f"', content))
    assert server.http.post("/upload_file", content=body, headers=FORM).status_code == 200
    assert stored(server) == {"f": content}


@pytest.mark.parametrize("query", ["thread_id=t", "session_id=s-1", "thread_id=t&path=q"])
def test_target_in_the_query(server: Served, query: str) -> None:
    server.http.post("/create_session", json={"thread_id": "t"})
    answer = server.http.post(f"/upload_file?{query}", content=form(FILE), headers=FORM)
    assert answer.status_code == 200, answer.text
    assert list(stored(server)) == ["q" if "path" in query else "f.txt"]


@pytest.mark.parametrize(
    ("given", "name"),
    [("a.txt", "a.txt"), ("../../etc/x", "x"), (r"C:\\dir\\y", "y"), ("ü ñ.txt", "ü ñ.txt")],
)
def test_own_name(server: Served, given: str, name: str) -> None:
    body = form(THREAD, (f'name="file"; filename="{given}"', b"1"))
    assert server.http.post("/upload_file", content=body, headers=FORM).status_code == 200
    assert list(stored(server)) == [name]


@pytest.mark.parametrize(
    "head", ['name="file"', *(f'name="file"; filename="{n}"' for n in ("", "..", "a/.."))]
)
def test_without_a_name(server: Served, head: str) -> None:
    answer = server.http.post("/upload_file", content=form(THREAD, (head, b"1")), headers=FORM)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_path")
    assert stored(server) == {}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(form(THREAD, PATH, FILE, PATH), id="path before and after the file"),
        pytest.param(form(THREAD, PATH, FILE, FILE), id="two files, the first on its way"),
        pytest.param(form(THREAD, FILE, FILE), id="two files"),
        pytest.param(form(THREAD), id="no file"),
        pytest.param(form(FILE), id="no target"),
        pytest.param(form(THREAD, ('name="session_id"', b"s"), FILE), id="two targets"),
        pytest.param(form(THREAD, THREAD, FILE), id="a field twice"),
        pytest.param(form(THREAD, ('name="mode"', b"7"), FILE), id="unknown field"),
        pytest.param(form(THREAD, ('name="path"', b"\xff"), FILE), id="not UTF-8"),
        pytest.param(form(THREAD, ('name="path"', b"p" * 9000), FILE), id="long field"),
        pytest.param(form(THREAD, FILE, end=False), id="no end"),
        pytest.param(form(THREAD, FILE)[:-14], id="no end of the file"),
        pytest.param(form(THREAD, ("x", b"")), id="no name"),
        pytest.param(b"", id="empty"),
        pytest.param(b"what?", id="no form at all"),
        pytest.param(b"--B\r\n" + b"A: b\r\n" * 5000 + b"\r\n", id="many headers"),
        pytest.param(b"--B\r\nA" + b"a" * 60000 + b": b\r\n\r\n", id="long header"),
    ],
)
def test_bad_form_stores_nothing(server: Served, body: bytes) -> None:
    answer = server.http.post("/upload_file", content=body, headers=FORM)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_request")
    assert stored(server) == {}


@pytest.mark.parametrize("order", list(itertools.permutations((THREAD, FILE, PATH))))
def test_the_parts_may_come_in_any_order(server: Served, order: tuple[Any, ...]) -> None:
    answer = server.http.post("/upload_file", content=form(*order), headers=FORM)
    assert answer.status_code == 200, answer.text
    assert stored(server) == {"p": b"hello"}


def test_a_large_file_waits_for_its_fields(server: Served) -> None:
    data = bytes(MIB)
    body = form(('name="file"; filename="f"', data), THREAD)
    answer = server.http.post("/upload_file", content=body, headers=FORM)
    assert (answer.status_code, stored(server)) == (200, {"f": data})


@pytest.mark.parametrize(
    "kind",
    ["", "application/json", "multipart/form-data", f"multipart/form-data; boundary={'B' * 300}"],
)
def test_not_a_form(server: Served, kind: str) -> None:
    answer = server.http.post(
        "/upload_file?thread_id=t", content=b"{}", headers={"Content-Type": kind}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_request")


def test_path_given_twice(server: Served) -> None:
    answer = server.http.post("/upload_file?thread_id=t", content=form(THREAD, FILE), headers=FORM)
    assert answer.status_code == 422


@pytest.mark.parametrize("size", [MIB + 1, 30 * MIB])
def test_too_large_is_not_stored(server: Served, size: int) -> None:
    answer = server.http.post(
        "/upload_file", data={"thread_id": "t"}, files={"file": ("x", bytes(size))}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "file_too_large")
    said = answer.json()["error"]["message"]
    assert said.startswith("x is larger than an upload may be: SANDBOX_MAX_UPLOAD"), said
    assert "1 MiB" in said
    assert stored(server) == {}


def test_error_of_the_box_half_way(server: Served) -> None:
    def full(chunk: bytes) -> None:
        raise DiskFull("no room; remove something")

    server.fake.on_chunk = full
    answer = server.http.post(
        "/upload_file", data={"thread_id": "t"}, files={"file": ("x", bytes(MIB))}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "disk_full")


def upload_head(length: int) -> bytes:
    return (
        b"POST /upload_file HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: multipart/form-data; boundary=B\r\n"
        + f"Content-Length: {length}\r\n\r\n".encode()
    )


def test_cut_off_half_way_stores_nothing(server: Served) -> None:
    got: list[bytes] = []
    server.fake.on_chunk = got.append
    body = form(THREAD, PATH, ('name="file"; filename="f"', bytes(500_000)))
    with server.connect() as client:
        client.sendall(upload_head(len(body)) + body[:250_000])
        eventually(lambda: sum(map(len, got)) > 240_000)
        with capture_logs() as entries:
            client.close()
            eventually(lambda: entries)
    assert entries[0]["status"] == 499
    assert stored(server) == {}


def test_slow_upload_ends(server: Served) -> None:
    with server.connect() as client:
        client.sendall(upload_head(100_000) + form(THREAD, FILE, end=False))
        answer = whole_answer(client)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"request_timeout"' in answer
    assert stored(server) == {}


def test_large_upload_is_not_kept_anywhere() -> None:
    size, peak = 200 * MIB, 0

    def look(chunk: bytes) -> None:
        nonlocal peak
        peak = max(peak, resident())

    with served(limits=ApiLimits(upload_bytes=size)) as server:
        server.fake.keep_uploads = False
        server.fake.on_chunk = look
        gc.collect()
        before = resident()
        piece = bytes(MIB)

        def body():
            yield form(THREAD, ('name="file"; filename="f"', b""))[:-9]
            yield from (piece for _ in range(200))
            yield b"\r\n--B--\r\n"

        answer = server.http.post("/upload_file", content=body(), headers=FORM)
    assert answer.status_code == 200, answer.text
    assert answer.json()["size"] == size
    assert peak - before < 50 * MIB


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
