"""A two-way channel of bytes, such as a connection to a port of a box."""

from __future__ import annotations

from abc import ABC, abstractmethod


class ByteChannel(ABC):
    """Each direction has its own end and its own pace. Methods raise RuntimeUnavailable once the
    connection has broken. Whoever opened it closes it."""

    @abstractmethod
    async def read(self) -> bytes:
        """The next bytes; b"" when the other end has sent all."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Send all of data. Waits while the other end takes none."""

    @abstractmethod
    async def end(self) -> None:
        """Tell that there is nothing more to send. What the other end sends can still be read."""
