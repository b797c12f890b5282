"""The server side: boxes, the pool that warms them, sessions, and the HTTP app over all of it."""

__version__ = "0.1.0"
