"""What a sandbox may reach and who reaches it, out of the options of e2b's SDK."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_server.api.e2b.errors import NotSupported
from sandbox_server.api.e2b.messages import Message

_EVERYTHING = "0.0.0.0/0"
_NOT_HERE = {
    "rules": "headers for hosts are declared by the operator, as presets of the network",
    "egress_proxy": "connections go out from the server",
    "dns_servers": "names are resolved by the server",
    "https_ports": "what listens in a sandbox is spoken to over plain HTTP",
}
_OUR_WORDS = {"egress_rules.allow": "allow_out", "egress_rules.deny": "deny_out",
              "egress_rules": "network"}  # fmt: skip


class Egress(Message):
    """Of a sandbox that runs."""

    allow_out: list[str] = Field(default_factory=list)
    deny_out: list[str] = Field(default_factory=list)
    allow_internet_access: bool | None = None
    rules: dict[str, Any] | None = None
    egress_proxy: dict[str, Any] | None = None
    dns_servers: list[str] | None = None


class Network(Egress):
    """Of a new one."""

    allow_public_traffic: bool | None = None
    mask_request_host: str | None = None
    https_ports: list[int] | None = None


def egress_of(network: Egress, *, internet: bool | None) -> dict[str, list[str]]:
    """The fields of our rules. Raises NotSupported for what there is not."""
    for name, why in _NOT_HERE.items():
        if getattr(network, name, None):
            raise NotSupported(f"network.{name} is not supported: {why}; leave it out")
    denied = list(network.deny_out)
    if internet is False and _EVERYTHING not in denied:
        denied.append(_EVERYTHING)
    return {"allow": list(network.allow_out), "deny": denied}


@contextlib.contextmanager
def in_its_words() -> Iterator[None]:
    """Errors name the fields as the SDK has them."""
    try:
        yield
    except InvalidRequest as exc:
        message = exc.message
        for ours, theirs in _OUR_WORDS.items():
            message = message.replace(ours, theirs)
        raise InvalidRequest(message) from None


def ports_of(network: Network, *, auto_resume: Mapping[str, Any] | None) -> dict[str, Any]:
    """How its ports are seen: all of them, without asking for each."""
    resume = auto_resume or {}
    ports: dict[str, Any] = {
        "public": network.allow_public_traffic is not False,
        # Versions before `enabled` say `policy`.
        "unpause": bool(resume.get("enabled")) or resume.get("policy") == "any",
    }
    if network.mask_request_host:
        ports["host"] = network.mask_request_host
    return ports
