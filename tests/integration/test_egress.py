"""The network of a whole server: its settings, its environments, its audit log."""

import json
from pathlib import Path

import pytest

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.models import CreateSessionRequest, ExecuteRequest, Target
from sandbox_server.api.auth import SOLE_TENANT
from sandbox_server.checks import check_settings
from sandbox_server.main import open_service
from sandbox_server.settings import load
from tests.contract.conftest import RUNTIMES, state_dir
from tests.egress import internet
from tests.internet import HERE, Internet
from tests.run import run_owner

__all__ = ["internet", "state_dir"]

pytestmark = pytest.mark.skipif("bubblewrap" not in RUNTIMES, reason="no bubblewrap here")


async def test_from_settings_to_the_audit_log(
    state_dir: Path, tmp_path: Path, internet: Internet
) -> None:
    registry, audit = tmp_path / "registry", tmp_path / "audit.log"
    (registry / "environments").mkdir(parents=True)
    (registry / "environments" / "closed.yaml").write_text("name: closed\nnetwork: none\n")
    (registry / "environments" / "other.yaml").write_text(
        f"name: other\nnetwork: allowlist\nallow: ['{HERE}:{internet.https}']\nwarm: 1\n"
    )
    settings = load(
        runtime="bubblewrap",
        pool_size=1,
        min_pool_size=1,
        worker_id=run_owner("egress-settings"),
        state_dir=state_dir,
        destroy_on_exit=True,
        registry=registry,
        audit_log=audit,
        network="allowlist",
        network_allow=f"{HERE}:{internet.http}",
    )
    get = f"curl -sS --noproxy '' http://{HERE}:{internet.http}/hello"
    async with open_service(settings) as service:
        sandboxes = service.of(SOLE_TENANT)

        async def output(thread_id: str) -> str:
            request = ExecuteRequest(thread_id=thread_id, command=get)
            return (await sandboxes.execute(request)).output

        assert await output("usual") == "hello\n"
        for environment, network in (("closed", "none"), ("other", "allowlist")):
            made = await sandboxes.create_session(
                CreateSessionRequest(thread_id=environment, environment=environment)
            )
            assert made.limits.network == network
        assert "Failed to connect" in await output("closed")
        assert f"Allowed are: {HERE}:{internet.https}." in await output("other")
        with pytest.raises(InvalidRequest, match="SANDBOX_MAX_NETWORK"):
            await sandboxes.create_session(CreateSessionRequest(network="open"))
        info = await sandboxes.session(Target(thread_id="usual"))
        assert info.egress is not None
        assert info.egress.connections == 1
        assert info.limits.network_allow == [f"{HERE}:{internet.http}"]
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    found = [line for line in lines if line.get("kind") == "connection"]
    fields = ("tenant", "thread", "host", "port", "method", "verdict")
    assert [tuple(line[name] for name in fields) for line in found] == [
        (SOLE_TENANT, "usual", HERE, internet.http, "GET", "allowed"),
        (SOLE_TENANT, "other", HERE, internet.http, "GET", "refused"),
    ]
    assert found[0]["session"] == info.session_id
    assert min(found[0]["bytes_in"], found[0]["bytes_out"]) > 50
    assert "may not GET" in found[1]["why"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"network_allow": "index"}, "no preset 'index'; did you mean indexes"),
        ({"network_allow": "http://a.test/"}, "SANDBOX_NETWORK_ALLOW: 'http://a.test/'"),
        ({"network_presets": "/nowhere"}, "/nowhere cannot be read"),
    ],
)
async def test_rules_that_mean_nothing(state_dir: Path, given: dict[str, str], told: str) -> None:
    settings = load(runtime="bubblewrap", state_dir=state_dir, network="allowlist", **given)
    with pytest.raises(InvalidRequest, match=told):
        await check_settings(settings)


def test_more_than_is_allowed() -> None:
    with pytest.raises(InvalidRequest, match="SANDBOX_NETWORK=open is more than"):
        load(network="open", max_network="allowlist")
