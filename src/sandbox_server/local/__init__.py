"""The local service: sandboxes of one user's programs, without a port."""
