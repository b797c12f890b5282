"""A sandbox for AI agents: the wire contract and, on top of it, what users import."""
