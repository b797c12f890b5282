"""For tests of programs that use sandboxes: FakeBackend, which needs no box and runs nothing."""

from sandbox_sdk.testing.answers import FakeAnswer, FakeCall
from sandbox_sdk.testing.backend import FakeBackend

__all__ = ["FakeAnswer", "FakeBackend", "FakeCall"]
