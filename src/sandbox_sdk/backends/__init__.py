"""Backends: the ways to reach a Sandboxes."""
