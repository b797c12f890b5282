"""Whole files through e2b's SDK, and the URLs that it signs."""

import gzip
import io
from typing import Any

import httpx
import pytest
from e2b import (
    AuthenticationException,
    FileNotFoundException,
    InvalidArgumentException,
    SandboxException,
)

from tests.e2b.servers import Blocking, Served, as_iterable


def test_text(box: Any) -> None:
    info = box.files.write("notes/é ü.txt", "zwölf\n")
    assert (info.name, info.type.value) == ("é ü.txt", "file")
    assert info.path.endswith("/notes/é ü.txt")
    assert box.files.read("notes/é ü.txt") == "zwölf\n"
    assert box.files.read(info.path) == "zwölf\n"


def test_bytes(box: Any) -> None:
    data = bytes(range(256)) * 1000
    box.files.write("/tmp/data.bin", data)
    assert bytes(box.files.read("/tmp/data.bin", format="bytes")) == data
    box.files.write("/tmp/data.bin", b"")
    assert bytes(box.files.read("/tmp/data.bin", format="bytes")) == b""


def test_several_at_once(box: Any) -> None:
    found = box.files.write_files(
        [{"path": "a/1", "data": "one"}, {"path": "/tmp/2", "data": b"2"}]
    )
    assert [each.name for each in found] == ["1", "2"]
    assert box.files.read("a/1") + box.files.read("/tmp/2") == "one2"


def test_streams(box: Any) -> None:
    box.files.write("streamed", as_iterable(box, [b"a" * 1_000_000, b"b" * 1_000_000]))
    box.files.write("file-like", io.BytesIO(b"c" * 2_000_000))
    assert box.files.read("streamed") == "a" * 1_000_000 + "b" * 1_000_000
    if not isinstance(box, Blocking):
        with box.files.read("file-like", format="stream") as pieces:
            assert sum(len(piece) for piece in pieces) == 2_000_000


def test_gzip(box: Any) -> None:
    box.files.write("zipped", "z" * 3_000_000, gzip=True)
    assert box.files.read("zipped", gzip=True) == "z" * 3_000_000


def test_refused(box: Any) -> None:
    with pytest.raises(FileNotFoundException):
        box.files.read("missing")
    with pytest.raises(InvalidArgumentException, match="directory"):
        box.files.read("/tmp")
    with pytest.raises(AuthenticationException, match="root"):
        box.files.read("x", user="root")
    with pytest.raises(SandboxException, match="413"):
        box.files.write("large", b"x" * (9 << 20))


def test_metadata(box: Any) -> None:
    info = box.files.write("a.txt", "1", metadata={"Author": "ada", "purpose": 'a "test"'})
    wanted = {"author": "ada", "purpose": 'a "test"'}
    assert info.metadata == box.files.get_info("a.txt").metadata == wanted
    assert [each.metadata for each in box.files.list(".") if each.name == "a.txt"] == [wanted]
    assert box.files.rename("a.txt", "b.txt").metadata == wanted
    assert box.files.rename("b.txt", "/tmp/c.txt").metadata == wanted
    assert box.files.write("/tmp/c.txt", "2").metadata is None
    assert box.files.get_info("/tmp/c.txt").metadata is None
    several = [{"path": "1", "data": "x"}, {"path": "2", "data": "y"}]
    found = box.files.write_files(several, metadata={"tag": "t"})
    assert [each.metadata for each in found] == [{"tag": "t"}] * 2
    assert box.files.get_info("2").metadata == {"tag": "t"}
    box.commands.run("python3 -c \"import os; os.setxattr('1', 'user.e2b.by', b'hand')\"")
    assert box.files.get_info("1").metadata == {"tag": "t", "by": "hand"}
    with pytest.raises(InvalidArgumentException):
        box.files.write("3", "x", metadata={"much": "x" * 5000})
    assert not box.files.exists("3")


def test_signed_urls(box: Any) -> None:
    """They name no sandbox, and the SDK leaves our prefix out of them."""
    box.files.write("a b.txt", "signed")
    url = box.download_url("a b.txt")
    assert "/e2b/" not in url
    assert httpx.get(url).text == "signed"
    assert httpx.get(box.download_url("a b.txt", user="user")).text == "signed"
    assert httpx.get(box.download_url("a b.txt", use_signature_expiration=60)).text == "signed"
    up = box.upload_url("up.txt", use_signature_expiration=60)
    assert httpx.post(up, files={"file": ("x", b"posted")}).status_code == 200
    assert box.files.read("up.txt") == "posted"


def test_signed_urls_that_are_not_right(box: Any, served: Served) -> None:
    box.files.write("a.txt", "secret")
    url = box.download_url("a.txt")
    wrong = [
        url.replace("a.txt", "b.txt"),
        f"{url}x",
        f"{url}&signature_expiration=99999999999",
        f"{url}&username=user",
        box.download_url("a.txt", use_signature_expiration=-10),
        f"{served.urls[0]}/files?path=a.txt",
        f"{served.urls[0]}/files?path=a.txt&signature=",
    ]
    for each in wrong:
        assert httpx.get(each).status_code == 401, each
    assert httpx.post(url, files={"file": ("x", b"")}).status_code == 401


def test_an_expired_url_says_so(box: Any) -> None:
    """In the very words of e2b's: its users look for them. Codes of /files are numbers."""
    box.files.write("a.txt", "late")
    answer = httpx.get(box.download_url("a.txt", use_signature_expiration=-120))
    expected = {"code": 401, "message": "signature is already expired"}
    assert (answer.status_code, answer.json()) == (401, expected)
    missing = httpx.get(box.download_url("missing"))
    assert (missing.status_code, missing.json()["code"]) == (404, 404)


def test_a_signed_url_at_another_coordinator(box: Any, served: Served) -> None:
    box.files.write("a.txt", "found")
    url = box.download_url("a.txt").replace(served.urls[0], served.urls[-1])
    assert httpx.get(url).text == "found"


@pytest.mark.one_way
def test_bodies_that_are_not_right(box: Any) -> None:
    url = box.upload_url("x")
    bomb = gzip.compress(b"0" * (16 << 20))
    found = [
        httpx.post(url, content=b"no gzip", headers={"Content-Encoding": "gzip"}),
        httpx.post(url, content=bomb[:1000], headers={"Content-Encoding": "gzip"}),
        httpx.post(url, content=bomb, headers={"Content-Encoding": "gzip"}),
        httpx.post(url, content=b"x", headers={"Content-Encoding": "br"}),
        httpx.post(url, content=b"x", headers={"Content-Type": "multipart/form-data"}),
    ]
    assert [each.status_code for each in found] == [400, 400, 413, 400, 400]
    assert not box.files.exists("x")
