"""Fakes of several tenants, so that they can be served."""

from sandbox_sdk.protocol.models import Health
from sandbox_sdk.protocol.sandboxes import Tenants
from sandbox_sdk.testing import FakeBackend
from sandbox_server.api.auth import SOLE_TENANT


class Fakes(Tenants):
    """One that was given for the sole tenant, and new ones for everybody else."""

    def __init__(self, sandboxes: FakeBackend) -> None:
        self._of = {SOLE_TENANT: sandboxes}

    def of(self, tenant: str) -> FakeBackend:
        if tenant not in self._of:
            self._of[tenant] = FakeBackend()
            self._of[tenant].on("true")
        return self._of[tenant]

    async def health(self) -> Health:
        return await self._of[SOLE_TENANT].health()
