"""Which process a request is for, guessed from its first bytes.

A wrong guess costs a step more: the process that gets the connection routes the call.
"""

from __future__ import annotations

import re

from starlette.datastructures import Headers

from sandbox_sdk.protocol.errors import SandboxError
from sandbox_sdk.protocol.models import Target
from sandbox_server.api.auth import SOLE_TENANT, ApiKeys
from sandbox_server.api.e2b.tokens import claimed_tenant
from sandbox_server.api.handover import Place
from sandbox_server.processes.routing import Processes
from sandbox_server.service import SandboxService

MCP_PROCESS = 0
"""Has all conversations over MCP: their state is in the memory of one process."""
_MCP = re.compile(rb"[A-Z]+ /mcp[ /?]")
_TARGET = re.compile(
    rb'"(thread|session)_id"\s*:\s*"([A-Za-z0-9._:@+=-]{1,128})"'
    rb"|[?&](thread|session)_id=([A-Za-z0-9._-]{1,128})[& ]"
)
_KEY = re.compile(rb"\r\n(authorization|x-api-key):[ \t]*([^\r\n]*)", re.IGNORECASE)
_E2B = re.compile(rb"\r\ne2b-sandbox-id:[ \t]*([0-9a-f-]{36})\r\n", re.IGNORECASE)
_E2B_TOKEN = re.compile(rb"\r\nx-access-token:[ \t]*([^\r\n]+)", re.IGNORECASE)
_MANY_KEYS = 1000


class WhereTo:
    """Implements api.handover.Where for one process."""

    def __init__(self, processes: Processes, service: SandboxService, keys: ApiKeys) -> None:
        self._processes = processes
        self._service = service
        self._keys = keys
        self._tenants: dict[tuple[bytes, bytes], str | None] = {}

    def __call__(self, data: bytes) -> Place | None:
        if _MCP.match(data):
            return Place(MCP_PROCESS, only=True)
        if (box := _E2B.search(data)) is not None:
            return self._place(_e2b_tenant(data), "session", box[1].decode())
        found = _TARGET.search(data)
        if found is None:
            return None
        kind, name = (part.decode() for part in found.groups() if part is not None)
        return self._place(self._tenant(data), kind, name)

    def _place(self, tenant: str | None, kind: str, name: str) -> Place | None:
        if tenant is None:
            return None
        if kind == "thread" and self._service.has(tenant, name):
            return None
        try:
            return Place(self._processes.index_of(tenant, Target(**{f"{kind}_id": name})))
        except (SandboxError, ValueError):
            return None

    def _tenant(self, data: bytes) -> str | None:
        """None for a key that is missing or unknown: the call is refused here."""
        if not self._keys.required:
            return SOLE_TENANT
        shown = _KEY.search(data)
        if shown is None:
            return None
        header = shown[1].lower(), shown[2].strip()
        if header not in self._tenants:
            if len(self._tenants) >= _MANY_KEYS:
                self._tenants.clear()
            try:
                self._tenants[header] = self._keys.tenant(Headers(raw=[header]))
            except SandboxError:
                self._tenants[header] = None
        return self._tenants[header]


def _e2b_tenant(data: bytes) -> str | None:
    """Of a call to a sandbox through the e2b door. Who gets it checks the token."""
    shown = _E2B_TOKEN.search(data)
    return None if shown is None else claimed_tenant(shown[1].decode("latin-1"))
