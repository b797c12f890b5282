"""What a machine has of what a server needs, and how well its boxes are confined."""

from sandbox_server.doctor.findings import Finding, State
from sandbox_server.doctor.machine import examine
from sandbox_server.doctor.security import examine_security

__all__ = ["Finding", "State", "examine", "examine_security"]
