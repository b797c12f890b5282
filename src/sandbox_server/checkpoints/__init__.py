"""Checkpoints: copies of sessions that outlive them, and everything that is built on those."""
