"""The network of a box: its kinds, and the variables that programs in the box are told it by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Network = Literal["none", "allowlist", "open", "bridge"]
"""none, or what the rules of the server allow, or any public host, both through the proxy of the
server; bridge is the network of an engine."""
NO_BRIDGE: frozenset[Network] = frozenset({"none", "allowlist", "open"})

OFFLINE = {
    "PIP_RETRIES": "0",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "NPM_CONFIG_FETCH_RETRIES": "0",
    "NPM_CONFIG_UPDATE_NOTIFIER": "false",
}
"""Of every box without a network: pip and npm fail at once instead of trying again and again."""
PROXY_PORT = 3128
"""Of a box's loopback, where connections go out that the server judges."""
_PROXY = f"http://127.0.0.1:{PROXY_PORT}"
_NOT_PROXIED = "localhost,127.0.0.1,::1"
PROXIED = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), _PROXY),
    **dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), _PROXY),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), _NOT_PROXIED),
    "NPM_CONFIG_PROXY": _PROXY,
    "NPM_CONFIG_HTTPS_PROXY": _PROXY,
    "NPM_CONFIG_NOPROXY": _NOT_PROXIED,
    "CARGO_HTTP_PROXY": _PROXY,
    # The home is small.
    "CARGO_HOME": "/workspace/.cache/cargo",
    "CARGO_INSTALL_ROOT": "/workspace/.local",
    "NODE_USE_ENV_PROXY": "1",
    "PIP_RETRIES": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "NPM_CONFIG_FETCH_RETRIES": "1",
    "NPM_CONFIG_UPDATE_NOTIFIER": "false",
}
"""Of every box whose connections go through the proxy. git and apt use the first ones; what is
refused once is refused again, so pip and npm do not insist."""


def variables_of(network: Network, more: Mapping[str, str]) -> dict[str, str]:
    """more: those of a box behind the proxy, besides the usual ones."""
    if network == "none":
        return OFFLINE
    return {} if network == "bridge" else {**PROXIED, **more}


@dataclass(frozen=True, kw_only=True)
class BoxNetwork:
    """The network part of a spec."""

    mode: Network
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
