"""The audit log: who did what, in lines that hold each other by their hashes."""

from sandbox_server.audit.log import AuditLog, AuditSettings

__all__ = ["AuditLog", "AuditSettings"]
