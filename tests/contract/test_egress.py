"""What a box reaches through the server, on every runtime."""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandbox_sdk import Sandboxes
from sandbox_sdk.protocol.errors import InvalidRequest, SessionLost
from sandbox_sdk.protocol.models import (
    CreateSessionRequest,
    ExecuteRequest,
    ExecuteResult,
    Target,
)
from sandbox_server.api.auth import SOLE_TENANT
from sandbox_server.network.egress import facts_of
from sandbox_server.network.indexes import ToolConfig, indexes_of
from sandbox_server.network.modes import NetworkModes
from sandbox_server.network.networks import Networks
from sandbox_server.network.outbound import EgressLimits, Note
from sandbox_server.network.presets import read_presets
from sandbox_server.pool.plan import PoolSettings
from sandbox_server.runtime.agent import put_files
from sandbox_server.runtime.base import BoxSpec, Runtime
from sandbox_server.runtime.box_network import Network
from sandbox_server.runtime.warden.client import WardenClient
from sandbox_server.sessions.lease import LoneLease
from sandbox_server.sessions.sqlite import SqliteRegistry
from sandbox_server.worker import Worker
from tests.egress import SUBJECT, Serve, box, closed, internet, notes, run, serve
from tests.internet import HERE, PACKAGE, PIECE, Internet
from tests.run import run_owner

from .conftest import MakeBox
from .stand import Stand, lone_standing, open_stand

__all__ = ["box", "internet", "notes", "serve"]


@pytest.mark.kernel
async def test_http_and_https(
    warden: WardenClient, serve: Serve, internet: Internet, notes: list[Note]
) -> None:
    egress = await serve(*internet.here("web.test"))
    assert await run(warden, f"curl -sS http://web.test:{internet.http}/hello") == "hello\n"
    pem = internet.ca.read_text()
    await run(warden, f"cat > /tmp/ca.pem <<'END'\n{pem}END")
    secure = f"curl -sS --cacert /tmp/ca.pem https://web.test:{internet.https}/hello"
    assert await run(warden, secure) == "hello\n"
    assert await run(warden, f"curl -sSk https://{HERE}:{internet.https}/hello --noproxy ''")
    assert await run(warden, f"curl -sSI http://web.test:{internet.http}/hello | head -1")
    await closed(egress)
    assert [note.verdict for note in notes] == ["allowed"] * 4
    assert [(note.host, note.method) for note in notes[:2]] == [
        ("web.test", "GET"),
        ("web.test", "CONNECT"),
    ]
    assert all(note.bytes_in > 100 and note.bytes_out > 50 for note in notes)
    seen = internet.seen[0]
    assert (seen.method, seen.path) == ("GET", "/hello")
    assert seen.header("host") == [f"web.test:{internet.http}"]
    assert not [name for name, _ in seen.headers if name.lower().startswith("proxy")]


async def test_requests_on_one_connection(
    warden: WardenClient, serve: Serve, internet: Internet, notes: list[Note]
) -> None:
    egress = await serve(*internet.here("web.test"))
    url = f"http://web.test:{internet.http}"
    told = await run(warden, f"curl -sS -v {url}/hello {url}/slow {url}/hello 2>&1")
    assert told.count("tick") == 5
    assert told.count("hello\n") >= 2
    assert told.count("Re-using") + told.count("Reusing") == 2, told
    await closed(egress)
    assert [note.verdict for note in notes] == ["allowed"] * 3


async def test_bodies_of_any_kind(warden: WardenClient, serve: Serve, internet: Internet) -> None:
    await serve(*internet.here("web.test"))
    url = f"http://web.test:{internet.http}/digest"
    await run(warden, "head -c 3000000 /dev/urandom > /tmp/body")
    expected = (await run(warden, "sha256sum < /tmp/body")).split()[0]
    for options in ("", "-H 'Expect: 100-continue'", "-H 'Transfer-Encoding: chunked'"):
        sent = f"curl -sS {options} --data-binary @/tmp/body {url}"
        assert await run(warden, sent) == expected


@pytest.mark.kernel
async def test_what_is_refused_says_what_is_allowed(
    warden: WardenClient, serve: Serve, internet: Internet, notes: list[Note]
) -> None:
    egress = await serve(*internet.here("web.test"))
    told = await run(warden, "curl -sS -w ' %{http_code}' http://other.test/")
    assert "this sandbox may not GET http://other.test:80/" in told
    assert f"web.test:{internet.http}" in told
    assert told.endswith(" 403")
    refused = await warden.run("curl -sS https://other.test/")
    assert refused.exit_code != 0
    assert "403" in refused.output
    code = "import urllib.request as u; u.urlopen('https://other.test/')"
    python = await warden.run(f'python3 -c "{code}"')
    assert "this sandbox may not connect to other.test:443" in python.output
    await closed(egress)
    assert [note.verdict for note in notes] == ["refused"] * 3
    assert (egress.connections, egress.refused) == (3, 3)
    assert internet.seen == []
    assert internet.resolver.asked == []


async def test_what_cannot_be_reached_is_told(
    warden: WardenClient, serve: Serve, internet: Internet
) -> None:
    internet.resolver.table["closed.test"] = [HERE]
    await serve("nowhere.test", "closed.test:9", f"{HERE}:9")
    told = await run(warden, "curl -sS -w ' %{http_code}' http://nowhere.test/")
    assert told.startswith("nowhere.test cannot be resolved")
    assert told.endswith(" 502")
    told = await run(warden, "curl -sS -w ' %{http_code}' http://closed.test:9/")
    assert told.startswith("closed.test:9 cannot be reached: ")
    assert told.endswith(" 502")


async def test_pip_installs_from_an_index(
    warden: WardenClient, serve: Serve, internet: Internet
) -> None:
    internet.add_package()
    await serve(*internet.here("web.test"))
    url = f"http://web.test:{internet.http}/simple/"
    pip = f"pip install -q --index-url {url} --trusted-host web.test"
    await run(warden, f"python3 -m venv /workspace/v && /workspace/v/bin/{pip} {PACKAGE}")
    name = PACKAGE.replace("-", "_")
    said = await run(warden, f"/workspace/v/bin/python -c 'import {name}; print({name}.answer)'")
    assert said == "42\n"


async def test_pip_needs_no_option_and_no_password(make_box: MakeBox, internet: Internet) -> None:
    """With the indexes that the server itself uses."""
    internet.add_package()
    url = f"http://me:s3cret@web.test:{internet.http}/simple/"
    found = indexes_of(ToolConfig(pip=(url,), authorities={"PIP_CERT": str(internet.ca)}), {})
    internet.here("web.test")
    networks = Networks(
        allow=["indexes", f"{HERE}:{internet.http}"],
        resolver=internet.resolver,
        indexes=lambda: found,
    )
    terms = networks.terms("allowlist", None)
    box = await make_box(network="allowlist", network_env=terms.env)
    async with WardenClient(box) as warden:
        await put_files(warden, terms.files)
        egress = networks.serve(warden, terms, SUBJECT, meet=warden.connect)
        await egress.listening()
        await run(warden, f"python3 -m venv v && v/bin/pip install -q {PACKAGE}")
        name = PACKAGE.replace("-", "_")
        said = await run(warden, f"v/bin/python -c 'import {name}; print({name}.answer)'")
        assert said == "42\n"
        assert "s3cret" not in (await warden.run("env; cat /proc/*/environ")).output
        await egress.close()
    networks.close()
    assert internet.seen
    assert {tuple(seen.header("authorization")) for seen in internet.seen} == {
        ("Basic bWU6czNjcmV0",)
    }


async def test_npm_installs_from_a_registry(
    warden: WardenClient, serve: Serve, internet: Internet
) -> None:
    internet.add_npm_package()
    await serve(*internet.here("web.test"))
    registry = f"NPM_CONFIG_REGISTRY=http://web.test:{internet.http}/npm/"
    install = f"{registry} npm install --silent --no-audit --no-fund {PACKAGE}"
    await run(warden, f"mkdir -p /workspace/n && cd /workspace/n && {install}", timeout_s=90)
    assert await run(warden, f"cd /workspace/n && node -p 'require(\"{PACKAGE}\")'") == "42\n"


async def test_git_clones(warden: WardenClient, serve: Serve, internet: Internet) -> None:
    internet.add_repository()
    await serve(*internet.here("web.test"))
    url = f"http://web.test:{internet.http}/code.git"
    assert "the first one" in await run(warden, f"git clone -q {url} c && git -C c log -1")


SOCKS = """
import socket, sys
host, port, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
s = socket.create_connection(("127.0.0.1", 3128))
s.sendall(b"\\x05\\x02\\x00\\x02")
assert s.recv(2) == b"\\x05\\x00"
where = {"name": b"\\x03" + bytes([len(host)]) + host.encode(),
         "ipv4": b"\\x01" + (socket.inet_aton(host) if kind == "ipv4" else b""),
         "ipv6": b"\\x04" + (socket.inet_pton(10, host) if kind == "ipv6" else b"")}[kind]
s.sendall(b"\\x05\\x01\\x00" + where + port.to_bytes(2, "big"))
reply = s.recv(10)
if reply[1] == 0:
    s.sendall(b"GET /hello HTTP/1.0\\r\\n\\r\\n")
    data = b""
    while piece := s.recv(65536):
        data += piece
    print(data.decode().split("\\n")[-2])
else:
    print("reply", reply[1])
"""


async def test_a_socks_client(warden: WardenClient, serve: Serve, internet: Internet) -> None:
    await serve(*internet.here("web.test"), "nowhere.test")
    await run(warden, f"cat > /tmp/socks.py <<'END'\n{SOCKS}END")
    port = internet.http
    for where, expected in {
        f"web.test {port} name": "hello",
        f"{HERE} {port} ipv4": "hello",
        f"::ffff:{HERE} {port} ipv6": "hello",
        f"other.test {port} name": "reply 2",
        "169.254.169.254 80 ipv4": "reply 2",
        "nowhere.test 443 name": "reply 4",
    }.items():
        assert await run(warden, f"python3 /tmp/socks.py {where}") == f"{expected}\n", where
    socks = f"curl -sS --proxy socks5h://127.0.0.1:3128 http://web.test:{port}/hello"
    assert await run(warden, socks) == "hello\n"


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_hundred_megabytes_pass_whole(
    warden: WardenClient, serve: Serve, internet: Internet, notes: list[Note], scheme: str
) -> None:
    egress = await serve(*internet.here("web.test"))
    port, pieces = getattr(internet, scheme), 1600
    url = f"{scheme}://web.test:{port}/large?pieces={pieces}"
    expected = hashlib.sha256(PIECE * pieces).hexdigest()
    assert (await run(warden, f"curl -sSk '{url}' | sha256sum")).split()[0] == expected
    await closed(egress)
    assert notes[0].bytes_in >= pieces * len(PIECE) > 100_000_000


async def test_bytes_of_a_day(
    warden: WardenClient, serve: Serve, internet: Internet, notes: list[Note]
) -> None:
    egress = await serve(*internet.here("web.test"), limits=EgressLimits(bytes_a_day=1_000_000))
    cut = await warden.run(f"curl -sSk 'https://web.test:{internet.https}/large?pieces=100'")
    assert cut.exit_code != 0
    assert egress.meter.bytes_in < 1_200_000
    told = await run(warden, f"curl -sS http://web.test:{internet.http}/hello")
    assert "has used the" in told
    await closed(egress)
    assert notes[-1].verdict == "refused"


async def test_bytes_a_second(warden: WardenClient, serve: Serve, internet: Internet) -> None:
    await serve(*internet.here("web.test"), limits=EgressLimits(bytes_a_second=2_000_000))
    url = f"http://web.test:{internet.http}/large?pieces=60"
    took = await run(warden, f"curl -sS -o /dev/null -w '%{{time_total}}' '{url}'")
    assert 1.5 < float(took) < 4


async def test_connections_at_a_time(
    warden: WardenClient, serve: Serve, internet: Internet
) -> None:
    await serve(*internet.here("web.test"), limits=EgressLimits(connections=2))
    holding = (
        "import socket, time; s = [socket.create_connection(('127.0.0.1', 3128)) for _ in 'ab'];"
        f" [x.sendall(b'CONNECT web.test:{internet.http} HTTP/1.1\\r\\nHost: web.test\\r\\n\\r\\n')"
        " for x in s]; [x.recv(99) for x in s]; print('held', flush=True); time.sleep(30)"
    )
    held = "until grep -q held /tmp/held; do sleep .1; done"
    await run(warden, f'python3 -c "{holding}" > /tmp/held & {held}')
    told = await run(warden, f"curl -sS -w ' %{{http_code}}' http://web.test:{internet.http}/hello")
    assert "2 connections open" in told
    assert told.endswith(" 503")
    await warden.run("kill %1; pkill -f 'print..held' ; sleep 0.3")
    again = f"curl -sS --retry 5 --retry-delay 1 http://web.test:{internet.http}/hello"
    assert await run(warden, again) == "hello\n"


async def test_a_secret_is_added_outside_of_the_box(
    warden: WardenClient,
    serve: Serve,
    internet: Internet,
    notes: list[Note],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TEST_TOKEN", "s3cret-value")
    presets = tmp_path / "presets"
    presets.mkdir()
    (presets / "api.yaml").write_text(
        f"""
rules:
  - host: web.test
    ports: [{internet.https}]
    methods: [GET]
    paths: [/hello, /to]
    headers:
      Authorization: "Bearer {{env:TEST_TOKEN}}"
    ca: {internet.ca}
"""
    )
    internet.here("web.test")
    address = f"{HERE}:{internet.https}"
    egress = await serve("api", address, presets=read_presets(presets))
    url = f"http://web.test:{internet.https}"
    assert await run(warden, f"curl -sS -H 'Authorization: mine' {url}/hello") == "hello\n"
    assert internet.seen[0].header("authorization") == ["Bearer s3cret-value"]
    for refused in (
        f"{url}/other",
        f"-X POST {url}/hello",
        f"{url}/hello/../other --path-as-is",
        f"{url}/hello%2f..%2fother",
        f"-k https://web.test:{internet.https}/hello",
    ):
        told = await warden.run(f"curl -sS {refused}")
        assert len(internet.seen) == 1, refused
        assert "s3cret" not in told.output
    away = f"{url}/to?url=http://{address}/echo"
    assert "s3cret" not in (await warden.run(f"curl -sSL {away}")).output
    assert [seen.path for seen in internet.seen if seen.header("authorization")] == [
        "/hello",
        f"/to?url=http://{address}/echo",
    ]
    everything = (await warden.run("env; cat /proc/*/environ | tr '\\0' '\\n'")).output
    assert "s3cret" not in everything
    assert "s3cret" not in repr((notes, egress, vars(egress), presets))


# Sessions


def modes(default: Network = "none", **options: Any) -> NetworkModes:
    return NetworkModes(default=default, **options)


@contextlib.asynccontextmanager
async def standing(
    runtime: Runtime, internet: Internet, of: NetworkModes, *allow: str
) -> AsyncIterator[Stand]:
    networks = Networks(of, allow=allow, resolver=internet.resolver)
    try:
        async with (
            lone_standing() as alone,
            open_stand(runtime, alone, networks=networks) as stand,
        ):
            yield stand
    finally:
        networks.close()


@contextlib.asynccontextmanager
async def sessions(
    runtime: Runtime, internet: Internet, of: NetworkModes, *allow: str
) -> AsyncIterator[Any]:
    async with standing(runtime, internet, of, *allow) as stand:
        yield stand.sandboxes


async def execute(sandboxes: Any, command: str, thread_id: str = "t") -> ExecuteResult:
    request = ExecuteRequest(thread_id=thread_id, command=command)
    result: ExecuteResult = await sandboxes.execute(request)
    return result


async def test_a_session_has_the_network_of_the_server(
    runtime: Runtime, internet: Internet
) -> None:
    async with sessions(runtime, internet, modes("allowlist"), *internet.here("web.test")) as box:
        url = f"http://web.test:{internet.http}"
        assert (await execute(box, f"curl -sS {url}/hello")).output == "hello\n"
        refused = await execute(box, "curl -sS https://other.test")
        assert refused.hint is not None
        assert f"It can reach: web.test:{internet.http}" in refused.hint
        info = await box.session(Target(thread_id="t"))
        assert (info.limits.network, len(info.limits.network_allow)) == ("allowlist", 4)
        assert info.egress is not None
        assert (info.egress.connections, info.egress.refused) == (2, 1)
        assert info.egress.bytes_in > 0 < info.egress.bytes_out


async def test_a_session_asks_for_a_network(runtime: Runtime, internet: Internet) -> None:
    of = modes(most="allowlist")
    async with standing(runtime, internet, of, *internet.here("web.test")) as stand:
        box = stand.sandboxes
        url = f"http://web.test:{internet.http}/hello"
        assert (await execute(box, f"curl -sS {url}", "plain")).exit_code != 0
        with pytest.raises(InvalidRequest, match="SANDBOX_MAX_NETWORK"):
            await box.create_session(CreateSessionRequest(thread_id="t", network="open"))
        made = await box.create_session(CreateSessionRequest(thread_id="t", network="allowlist"))
        assert made.limits.network == "allowlist"
        assert (await execute(box, f"curl -sS {url}")).output == "hello\n"
        await stand.lose_box("t")
        with contextlib.suppress(SessionLost):  # Where that is noticed in the middle of a call.
            await execute(box, "true")
        assert (await execute(box, f"curl -sS {url}")).output == "hello\n"
        again = await box.create_session(CreateSessionRequest(thread_id="t", network="none"))
        assert again.not_applied == ["network"]
        ended = await box.cleanup(Target(thread_id="t"))
        assert ended.network == "allowlist"


@pytest.mark.kernel
async def test_open_is_every_public_host_and_no_other(runtime: Runtime, internet: Internet) -> None:
    internet.here("web.test")
    async with sessions(runtime, internet, modes("open")) as box:
        told = await execute(box, f"curl -sS http://web.test:{internet.http}/hello")
        assert "is at 127.0.0.1, which is not a public address" in told.output
        assert internet.seen == []


@pytest.mark.seam
async def test_every_way_tells_what_network_there_is(sandboxes: Sandboxes) -> None:
    made = await sandboxes.create_session(CreateSessionRequest(thread_id="t", network="none"))
    assert (made.limits.network, made.limits.network_allow) == ("none", [])
    assert (await sandboxes.session(Target(thread_id="t"))).egress is None
    for network in ("allowlist", "open"):
        with pytest.raises(InvalidRequest, match="SANDBOX_MAX_NETWORK"):
            await sandboxes.create_session(CreateSessionRequest(thread_id="u", network=network))


CREATOR = """
import asyncio, sys
from pathlib import Path
from sandbox_server.runtime.base import BoxSpec
from sandbox_sdk.protocol.models import CreateSessionRequest, ExecuteRequest
from sandbox_server.network.networks import Networks
from sandbox_server.network.modes import NetworkModes
from sandbox_server.pool.plan import PoolSettings
from sandbox_server.sessions.lease import LoneLease
from sandbox_server.sessions.making import SessionOptions
from sandbox_server.sessions.sqlite import SqliteRegistry
from sandbox_server.worker import Worker
from tests.contract.conftest import make_runtime

async def main():
    kind, folder, owner, *allow = sys.argv[1:]
    registry = SqliteRegistry(Path(folder) / f"{owner}.sqlite", worker=owner)
    lease = LoneLease(owner, registry.next_epoch())
    async with make_runtime(kind, Path(folder)) as runtime:
        worker = Worker(
            runtime, BoxSpec(owner=owner, deadman_s=300), registry, lease,
            pool=PoolSettings(size=0, min_size=0, max_size=0), idle_timeout_s=600, capacity=5,
            networks=Networks(NetworkModes(default="allowlist"), allow=allow),
        )
        async with worker:
            session, _ = await worker.table.open("default", "t", SessionOptions())
            print("made", flush=True)
            await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_session_goes_on_after_the_server_was_killed(
    runtime: Runtime, runtime_name: str, state_dir: Path, internet: Internet
) -> None:
    owner = run_owner(f"egress-{os.getpid()}")
    allow = internet.here("web.test")
    creator = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CREATOR, runtime_name, str(state_dir), owner, *allow,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    assert creator.stdout is not None
    async with asyncio.timeout(60):
        while (await creator.stdout.readline()).strip() != b"made":
            assert creator.returncode is None
    creator.send_signal(signal.SIGKILL)
    await creator.wait()
    registry = SqliteRegistry(state_dir / f"{owner}.sqlite", worker=owner)
    networks = Networks(modes("allowlist"), allow=allow, resolver=internet.resolver)
    worker = Worker(
        runtime,
        BoxSpec(owner=owner, deadman_s=300),
        registry,
        LoneLease(owner, registry.next_epoch()),
        pool=PoolSettings(size=0, min_size=0, max_size=0),
        idle_timeout_s=600,
        capacity=5,
        destroy_on_exit=True,
        networks=networks,
    )
    async with worker:
        (session,) = worker.table.sessions()
        assert session.record.tenant in (SOLE_TENANT, "default")
        url = f"http://web.test:{internet.http}/hello"
        done = await session.agent.run(f"curl -sS --retry 3 --retry-connrefused {url}")
        assert done.output.endswith("hello\n")
        assert session.egress is not None
    await registry.close()
    networks.close()
    assert await runtime.boxes(owner) == []


@pytest.mark.kernel
async def test_nothing_is_left_of_a_session(runtime: Runtime, internet: Internet) -> None:
    async with sessions(runtime, internet, modes("allowlist"), *internet.here("web.test")) as box:
        before = asyncio.all_tasks()
        url = f"http://web.test:{internet.http}/slow"
        await execute(box, f"(curl -sS {url} &) ; sleep 0.2")
        await box.cleanup(Target(thread_id="t"))
        await asyncio.sleep(0.2)
        left = {task for task in asyncio.all_tasks() - before if not task.done()}
        assert not [task for task in left if "egress" in repr(task)], left


def test_notes_are_json() -> None:
    line = json.dumps(facts_of(SUBJECT, Note("a.test", 443, "CONNECT")))
    assert json.loads(line)["verdict"] == "allowed"
