"""What a worker believes of the tenant of a call."""

import pytest
from starlette.datastructures import Headers

from sandbox_sdk.protocol.calling_key import to_header
from sandbox_sdk.protocol.errors import Unauthorized
from sandbox_sdk.protocol.tenant_signature import key_signature, tenant_signature
from sandbox_server.api.auth import ApiKeys

FLEET = "of the fleet"
WORKER = ApiKeys([], fleet_key=FLEET, of_worker=True)


def sent(tenant: str, signature: str | None, key: str = FLEET) -> Headers:
    signed = {} if signature is None else {"x-sandbox-tenant-signature": signature}
    return Headers({"x-sandbox-tenant": tenant, "authorization": f"Bearer {key}", **signed})


def test_a_signed_tenant() -> None:
    signed = tenant_signature(FLEET, "acme")
    assert WORKER.tenant(sent("acme", signed)) == "acme"
    assert FLEET not in signed
    for tenant, signature in (
        ("globex", signed),
        ("acme", tenant_signature("another", "acme")),
        ("acme", signed[:-1]),
        ("acme", ""),
        ("acme", "é"),
        ("", signed),
    ):
        with pytest.raises(Unauthorized):
            WORKER.tenant(sent(tenant, signature))
    with pytest.raises(Unauthorized):
        WORKER.tenant(sent("acme", signed, key="another"))


def test_a_signed_key() -> None:
    """A subject of an identity provider may be any text."""
    signed = tenant_signature(FLEET, "acme")
    for key_id in ("0123456789ab", "Zoë/\n ", "a" * 128):
        shown = to_header(key_id)
        right = key_signature(FLEET, "acme", shown)
        headers = sent("acme", signed)
        found = {"x-sandbox-key": shown, "x-sandbox-key-signature": right}
        asked = Headers({**headers, **found})
        assert WORKER.caller(asked, "use").key_id == key_id
        for wrong in (signed, key_signature(FLEET, "other", shown), ""):
            with pytest.raises(Unauthorized, match="the key of this call"):
                WORKER.caller(Headers({**asked, "x-sandbox-key-signature": wrong}), "use")
    assert WORKER.caller(sent("acme", signed), "use").key_id == ""


def test_a_coordinator_of_the_version_before() -> None:
    assert WORKER.tenant(sent("acme", None)) == "acme"


def test_only_a_worker_believes_it() -> None:
    coordinator = ApiKeys([("acme", "key")], fleet_key=FLEET)
    with pytest.raises(Unauthorized):
        coordinator.tenant(sent("globex", tenant_signature(FLEET, "globex")))
