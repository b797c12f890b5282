"""What a worker believes of the tenant of a call."""

import pytest
from starlette.datastructures import Headers

from sandbox_sdk.protocol.errors import Unauthorized
from sandbox_sdk.protocol.tenant_signature import tenant_signature
from sandbox_server.api.auth import ApiKeys

WORKER = ApiKeys([], fleet_key="of the fleet", of_worker=True)


def sent(tenant: str, key: str) -> Headers:
    return Headers({"x-sandbox-tenant": tenant, "authorization": f"Bearer {key}"})


def test_a_signed_tenant() -> None:
    signed = tenant_signature("of the fleet", "acme")
    assert WORKER.tenant(sent("acme", signed)) == "acme"
    assert "of the fleet" not in signed
    for tenant, key in (
        ("globex", signed),
        ("acme", tenant_signature("another", "acme")),
        ("acme", signed[:-1]),
        ("acme", ""),
        ("", signed),
    ):
        with pytest.raises(Unauthorized):
            WORKER.tenant(sent(tenant, key))
    with pytest.raises(Unauthorized):
        WORKER.tenant(Headers({"authorization": f"Bearer {signed}"}))


def test_a_coordinator_of_the_version_before() -> None:
    assert WORKER.tenant(sent("acme", "of the fleet")) == "acme"


def test_only_a_worker_believes_it() -> None:
    coordinator = ApiKeys([("acme", "key")], fleet_key="of the fleet")
    with pytest.raises(Unauthorized):
        coordinator.tenant(sent("globex", tenant_signature("of the fleet", "globex")))
