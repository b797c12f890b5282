"""Where the server is, who calls it, and what is told when nobody is there."""

import asyncio
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox_sdk import RemoteBackend
from sandbox_sdk.backends.remote.direct_client import DirectClient
from sandbox_sdk.protocol import errors
from sandbox_sdk.protocol.models import CreateSessionRequest, ExecuteRequest, Target
from sandbox_server.api.auth import ApiKeys
from tests.api.serving import served
from tests.remote.conftest import Connect

KEY = "key-of-acme-\u043a\u043b\u044e\u0447"


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which connections are refused for as long as the test lasts."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{holder.getsockname()[1]}"


@pytest.mark.parametrize("retry_for_s", [0, 0.5])
async def test_nobody_there(nobody: str, retry_for_s: float, connect: Connect) -> None:
    async with connect(nobody, retry_for_s=retry_for_s) as remote:
        with pytest.raises(errors.RuntimeUnavailable) as caught:
            await remote.health()
        assert nobody in caught.value.message
        assert "SANDBOX_URL" in caught.value.message
        with pytest.raises(errors.RuntimeUnavailable, match=r"nothing listens at .*sandbox serve"):
            await remote.execute(ExecuteRequest(thread_id="t", command="true"))
        with pytest.raises(errors.RuntimeUnavailable, match=r"nothing listens at .*sandbox serve"):
            [e async for e in remote.stream(ExecuteRequest(thread_id="t", command="true"))]


async def test_a_person_with_a_wrong_address_is_told_by_default(
    nobody: str, connect: Connect
) -> None:
    async with connect(nobody) as remote:
        with pytest.raises(errors.RuntimeUnavailable):
            await remote.create_session(CreateSessionRequest())


async def test_a_name_that_does_not_exist_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, connect: Connect
) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("sandbox_sdk.backends.remote.server.asyncio.sleep", pause)
    async with connect("http://sandbox.invalid:8000") as remote:
        with pytest.raises(errors.RuntimeUnavailable, match=r"sandbox\.invalid"):
            await remote.health()
    assert pauses == []


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://host", "http://", "nonsense", "http://a b:x"]
)
def test_not_an_address(url: str) -> None:
    with pytest.raises(errors.InvalidRequest, match="is not the address of a server") as caught:
        RemoteBackend(url)
    assert repr(url) in caught.value.message
    with pytest.raises(errors.InvalidRequest) as caught:
        RemoteBackend("user:s3cret@localhost:8000")
    assert "s3cret" not in caught.value.message


async def test_from_the_environment(monkeypatch: pytest.MonkeyPatch, connect: Connect) -> None:
    with served(keys=ApiKeys([("acme", KEY)])) as server:
        monkeypatch.setenv("SANDBOX_URL", f"http://127.0.0.1:{server.port}/")
        monkeypatch.setenv("SANDBOX_API_KEY", KEY)
        async with connect() as remote:
            await remote.create_session(CreateSessionRequest(thread_id="t"))
        assert list(server.fake.live) == [("acme", "t")]
        monkeypatch.setenv("SANDBOX_API_KEY", "another")
        async with connect() as remote:
            with pytest.raises(errors.Unauthorized):
                await remote.sessions()


def everything_told(error: BaseException | None) -> str:
    told = ""
    while error is not None:
        told += f"{error!r} {error} {vars(error)}"
        error = error.__cause__ or error.__context__
    return told


async def test_the_key_is_never_shown(nobody: str, connect: Connect) -> None:
    secret = "s3cret-key"
    url = nobody.replace("http://", "http://user:s3cret-key@")
    async with connect(url, api_key=secret, retry_for_s=0) as remote:
        assert secret not in repr(remote)
        with pytest.raises(errors.RuntimeUnavailable) as caught:
            await remote.execute(ExecuteRequest(thread_id="t", command="true"))
        assert secret not in everything_told(caught.value)
    with pytest.raises(errors.InvalidRequest) as refused:
        connect(nobody, api_key=f"{secret}\r\nx: y")
    assert secret not in everything_told(refused.value)


async def test_what_no_header_can_carry(nobody: str, connect: Connect) -> None:
    with served() as server:
        async with connect(f"http://127.0.0.1:{server.port}") as remote:
            for command_id in ("a\nb", "\u0430"):
                with pytest.raises(errors.InvalidRequest):
                    [e async for e in remote.follow(Target(thread_id="t"), command_id)]


async def test_somebody_elses_server(connect: Connect) -> None:
    with served() as server:
        url = f"http://127.0.0.1:{server.port}/elsewhere"
        async with connect(url) as remote:
            with pytest.raises(errors.NotFound):
                await remote.sessions()


class Speaker:
    """Something that listens, says a few words to whoever comes, and closes the connection."""

    def __init__(self, words: bytes) -> None:
        self._words = words
        self.visitors = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.visitors += 1
        if self._words:
            await reader.read(1)
            writer.write(self._words)
            await writer.drain()
        writer.close()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (b"", "closes connections without an answer.*right port"),
        (b"-ERR unknown command\r\n\r\n", "not HTTP.*https://"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "not HTTP.*https://"),
    ],
)
async def test_something_else_listens_there(words: bytes, told: str, connect: Connect) -> None:
    """Told within 5 s, by calls that may be repeated and by those that may not."""
    speaker = Speaker(words)
    listener = await asyncio.start_server(speaker, "127.0.0.1", 0)
    async with listener:
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        async with connect(url) as remote, asyncio.timeout(5):
            with pytest.raises(errors.RuntimeUnavailable, match=told) as caught:
                await remote.execute(ExecuteRequest(thread_id="t", command="true"))
            assert url in caught.value.message
            visitors = speaker.visitors
            with pytest.raises(errors.RuntimeUnavailable, match=told):
                await remote.create_session(CreateSessionRequest())
            assert speaker.visitors == visitors + 1
        assert (visitors > 1) == (words == b"")


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-keyout", key, "-out", cert, "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return key, cert


async def test_tls_to_a_server_that_speaks_none(connect: Connect) -> None:
    with served() as server:
        async with connect(f"https://127.0.0.1:{server.port}") as remote, asyncio.timeout(5):
            with pytest.raises(errors.RuntimeUnavailable, match=r"is it http://"):
                await remote.sessions()


async def test_certificates(certificate: tuple[Path, Path], connect: Connect) -> None:
    with served(certificate=certificate) as server:
        url = f"https://127.0.0.1:{server.port}"
        async with connect(url) as careful:
            with pytest.raises(errors.RuntimeUnavailable, match=r"(?i)certificate"):
                await careful.health()
        async with connect(url.replace("https", "http")) as plain, asyncio.timeout(5):
            with pytest.raises(errors.RuntimeUnavailable, match=r"https://"):
                await plain.execute(ExecuteRequest(thread_id="t", command="true"))
        async with connect(url, verify=False) as careless:
            assert (await careless.health()).status == "healthy"
        context = ssl.create_default_context(cafile=str(certificate[1]))
        async with connect(url, verify=context) as told:
            assert (await told.health()).status == "healthy"


@pytest.mark.parametrize(
    ("url", "environment", "nearby", "direct"),
    [
        ("http://127.0.0.1:1", {}, False, True),
        ("unix:///tmp/sock", {"HTTP_PROXY": "http://p:1"}, False, True),
        ("http://127.0.0.1:1", {"HTTP_PROXY": "http://p:1"}, False, False),
        ("http://127.0.0.1:1", {"all_proxy": "http://p:1"}, False, False),
        ("http://127.0.0.1:1", {"HTTP_PROXY": "http://p:1"}, True, True),
        ("http://user:password@127.0.0.1:1", {}, False, False),
        ("https://127.0.0.1:1", {}, False, False),
        ("https://127.0.0.1:1", {}, True, True),
    ],
)
async def test_which_servers_are_called_without_httpx(
    url: str,
    environment: dict[str, str],
    nearby: bool,
    direct: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    async with RemoteBackend(url, nearby=nearby) as backend:
        assert isinstance(backend._server._client, DirectClient) is direct
