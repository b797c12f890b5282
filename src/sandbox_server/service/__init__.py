"""The service: what callers ask of the boxes of this machine, past the policy, into answers."""

from sandbox_server.service.answers import ServiceFacts
from sandbox_server.service.service import SandboxService

__all__ = ["SandboxService", "ServiceFacts"]
