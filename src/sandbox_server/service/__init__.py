"""The service: carries out operations on the boxes of this machine, subject to the policy."""

from sandbox_server.service.answers import ServiceFacts
from sandbox_server.service.service import SandboxService

__all__ = ["SandboxService", "ServiceFacts"]
