"""What a sandbox may reach, by the network options of e2b's SDK, on a server that has a network."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal
from e2b import ALL_TRAFFIC, SandboxException, SandboxNotFoundException

from tests.e2b.servers import Served, Way, serving

ONE, OTHER = "127.0.0.1", "127.0.0.2"
"""Addresses of this machine, which the operator has named."""


class _Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"hello\n")

    def log_message(self, *_args: Any) -> None:
        pass


@dataclass(frozen=True)
class Site:
    """A server, and what it is that sandboxes of it can reach."""

    served: Served
    port: int

    def create(self, sandbox_type: Any, made: list[str], **options: Any) -> Any:
        box = sandbox_type.create(timeout=300, **options, **self.served.options())
        made.append(box.sandbox_id)
        return box

    def reached(self, box: Any) -> set[str]:
        """Out of the two addresses."""
        found = set()
        for address in (ONE, OTHER):
            url = f"http://{address}:{self.port}/"
            # A tunnel, so that a refusal is a failure of curl.
            told = box.commands.run(f"curl -sS -p -m 30 --noproxy '' {url} 2>&1 || true").stdout
            if told == "hello\n":
                found.add(address)
            else:
                assert "403" in told
        return found


@pytest.fixture(scope="session")
def site(way: Way, portal: BlockingPortal, state_dir: Path) -> Iterator[Site]:
    folder = state_dir / f"network-{way}"
    folder.mkdir(mode=0o711, exist_ok=True)
    with ThreadingHTTPServer(("0.0.0.0", 0), _Hello) as web:
        threading.Thread(target=web.serve_forever, args=[0.05], daemon=True).start()
        port = web.server_address[1]
        allow = f"{ONE}:{port},{OTHER}:{port},docs.example.com"
        settings = {"SANDBOX_NETWORK": "allowlist", "SANDBOX_NETWORK_ALLOW": allow}
        with portal.wrap_async_context_manager(serving(way, folder, **settings)) as served:
            yield Site(served, port)
        web.shutdown()


@pytest.fixture
def options(site: Site) -> dict[str, Any]:
    return site.served.options()


def test_rules_of_a_new_sandbox(sandbox_type: Any, site: Site, made: list[str]) -> None:
    box = site.create(sandbox_type, made)
    assert site.reached(box) == {ONE, OTHER}
    assert box.get_info().allow_internet_access is True
    only = {"deny_out": lambda ctx: [ctx.all_traffic], "allow_out": [OTHER, "docs.example.com"]}
    box = site.create(sandbox_type, made, network=only)
    assert site.reached(box) == {OTHER}
    info = box.get_info()
    assert info.network["allow_out"] == [OTHER, "docs.example.com"]
    assert info.network["deny_out"] == [ALL_TRAFFIC]
    box = site.create(sandbox_type, made, network={"deny_out": ["127.0.0.0/31"]})
    assert site.reached(box) == {OTHER}


def test_no_internet(sandbox_type: Any, site: Site, made: list[str]) -> None:
    for given in ({"allow_internet_access": False}, {"network": {"deny_out": [ALL_TRAFFIC]}}):
        box = site.create(sandbox_type, made, **given)
        assert site.reached(box) == set()
        assert box.get_info().allow_internet_access is False


def test_rules_of_a_sandbox_that_runs(sandbox_type: Any, site: Site, made: list[str]) -> None:
    box = site.create(sandbox_type, made)
    box.update_network({"deny_out": [ONE]})
    assert site.reached(box) == {OTHER}
    box.update_network({"deny_out": [ALL_TRAFFIC], "allow_out": [ONE]})
    assert site.reached(box) == {ONE}
    box.update_network({"allow_internet_access": False})
    assert site.reached(box) == set()
    box.update_network({})
    assert site.reached(box) == {ONE, OTHER}
    box.kill()
    with pytest.raises(SandboxNotFoundException):
        box.update_network({})


def test_what_cannot_be_had_is_refused(sandbox_type: Any, site: Site, made: list[str]) -> None:
    box = site.create(sandbox_type, made)
    for rules, told in (
        ({"allow_out": ["docs.example.com"]}, "deny 0.0.0.0/0"),
        ({"allow_out": ["other.example.com"], "deny_out": [ALL_TRAFFIC]}, "the operator allows"),
        ({"allow_out": ["10.0.0.1"], "deny_out": [ALL_TRAFFIC]}, "allow_out.*public"),
        ({"deny_out": ["docs.example.com"]}, "deny_out: .*names cannot be denied"),
        ({"egress_proxy": {"address": "proxy.example.com:1080"}}, "egress_proxy"),
    ):
        with pytest.raises(SandboxException, match=told):
            box.update_network(rules)
        with pytest.raises(SandboxException, match=told):
            site.create(sandbox_type, made, network=rules)
    assert site.reached(box) == {ONE, OTHER}, "as before"


def test_a_fork_has_the_rules(sandbox_type: Any, site: Site, made: list[str]) -> None:
    box = site.create(sandbox_type, made)
    box.update_network({"deny_out": [ONE]})
    (fork,) = box.fork(timeout=120)
    made.append(fork.sandbox_id)
    assert site.reached(fork) == {OTHER}
