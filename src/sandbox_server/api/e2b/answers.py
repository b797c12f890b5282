"""Our sessions as e2b's control API tells of them."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_sdk.protocol.models import Session, SessionInfo, SessionSummary
from sandbox_server.api.e2b.routes import Door
from sandbox_server.api.e2b.tokens import Holder
from sandbox_server.api.route import Asked

ENVD_VERSION = "0.6.7"
"""The version of e2b's agent in a sandbox whose routes these are."""
_MIB = 1 << 20
_NO_PREVIEWS = "no-previews.invalid"
"""In place of a domain: a name that is never found (RFC 2606), and says why."""
_USUAL = "default"
"""What the server's default environment is called, of sessions that were made some other way."""


class Answers:
    def __init__(self, door: Door) -> None:
        self._door = door

    async def made(
        self, asked: Asked, session: Session, *, template: str | None = None
    ) -> dict[str, Any]:
        """What the SDK needs to call the sandbox."""
        holder = Holder(asked.caller.tenant, asked.caller.key_id)
        tokens, session_id = self._door.tokens, session.session_id
        self._door.signed.remember(holder, session_id)
        return {
            "sandboxID": session_id,
            "templateID": template or session.environment or _USUAL,
            "clientID": "",
            "envdVersion": ENVD_VERSION,
            "envdAccessToken": tokens.make(holder, session_id),
            "trafficAccessToken": tokens.make(holder, session_id, "traffic"),
            "domain": await self._domain(),
        }

    async def detail(self, session: SessionInfo) -> dict[str, Any]:
        limits = session.limits
        mounts = [{"name": each.name, "path": each.path} for each in session.volumes if each.name]
        return {
            **_common(session),
            "domain": await self._domain(),
            "cpuCount": math.ceil(limits.cpus),
            "memoryMB": limits.memory_bytes // _MIB,
            "diskSizeMB": limits.disk_bytes // _MIB,
            "allowInternetAccess": limits.network != "none",
            "lifecycle": {
                "onTimeout": "pause" if session.pause_at_end else "kill",
                "autoResume": session.ports is None or session.ports.unpause,
            },
            "network": _network(session),
            "volumeMounts": mounts,
        }

    def listed(self, session: SessionSummary) -> dict[str, Any]:
        """Sizes are not known without asking the box: 0."""
        return {**_common(session), "cpuCount": 0, "memoryMB": 0, "diskSizeMB": 0}

    def metric(self, session: SessionInfo) -> dict[str, Any]:
        """The processor's share is the average since the start."""
        now, limits, usage = datetime.now(UTC), session.limits, session.usage
        age_s = max((now - session.created_at).total_seconds(), 1.0)
        return {
            "timestamp": now.isoformat(),
            "timestampUnix": int(now.timestamp()),
            "cpuCount": math.ceil(limits.cpus),
            "cpuUsedPct": round(100 * usage.cpu_s / age_s / limits.cpus, 2),
            "memUsed": usage.memory_bytes or 0,
            "memTotal": limits.memory_bytes,
            "memCache": 0,
            "diskUsed": usage.disk_bytes or 0,
            "diskTotal": limits.disk_bytes,
        }

    async def _domain(self) -> str:
        """Where ports are seen, for get_host(): without one it would be a host of e2b's."""
        if self._door.previews_at is None:
            return _NO_PREVIEWS
        try:
            return (await self._door.previews_at()).netloc
        except RuntimeUnavailable:
            return _NO_PREVIEWS


def _network(session: SessionInfo) -> dict[str, Any]:
    ports, rules = session.ports, session.egress_rules
    told: dict[str, Any] = {}
    if rules is not None:
        told |= {"allowOut": rules.allow, "denyOut": rules.deny}
    if ports is not None:
        told["allowPublicTraffic"] = ports.public
    if ports is not None and ports.host is not None:
        told["maskRequestHost"] = ports.host
    return told


def _common(session: SessionInfo | SessionSummary) -> dict[str, Any]:
    environment = session.environment or _USUAL
    return {
        "sandboxID": session.session_id,
        "templateID": environment,
        "alias": environment,
        "clientID": "",
        "envdVersion": ENVD_VERSION,
        "startedAt": session.created_at.isoformat(),
        "endAt": (session.end_at or session.expires_at).isoformat(),
        "state": "paused" if session.state == "paused" else "running",
        "metadata": session.metadata,
    }
