"""The server: boxes, the pool, sessions, and the HTTP app."""

__version__ = "0.1.0"
