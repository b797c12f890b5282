"""An upload that can be sent again, as long as it is short."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator

REPLAY_BYTES = 1 << 20


class Replay:
    """The chunks of an upload, kept while they are few: a worker that stops refuses a request
    before it has read much of it."""

    def __init__(self, chunks: AsyncIterable[bytes], *, limit: int = REPLAY_BYTES) -> None:
        self._rest = aiter(chunks)
        self._limit = limit
        self._kept: list[bytes] = []
        self._size = 0

    @property
    def whole(self) -> bool:
        """Whether everything read so far is still there to be sent again."""
        return self._size <= self._limit

    async def chunks(self) -> AsyncIterator[bytes]:
        """From the beginning on, whoever has read how much before."""
        for chunk in list(self._kept):
            yield chunk
        async for chunk in self._rest:
            self._size += len(chunk)
            if self.whole:
                self._kept.append(chunk)
            else:
                self._kept.clear()
            yield chunk
