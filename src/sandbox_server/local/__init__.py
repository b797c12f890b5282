"""The local service: sandboxes for the programs of one user, without a server."""
