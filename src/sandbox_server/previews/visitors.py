"""Who visits previews, by address, and what each has open: one may not take the room of others."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address, ip_network
from typing import TypeVar

import h11

from sandbox_server.previews.limits import PreviewLimits

_Key = TypeVar("_Key")


class Visitors:
    def __init__(self, limits: PreviewLimits, *, behind_proxy: bool) -> None:
        """behind_proxy: connections are those of a proxy, which says of each request who made
        it."""
        self._limits = limits
        self._behind_proxy = behind_proxy
        self._connections: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()
        self._to_session: Counter[str] = Counter()
        self._of_both: Counter[tuple[str, str]] = Counter()

    @contextlib.contextmanager
    def connected(self, peer: str) -> Iterator[bool]:
        """Count a connection. Whether it may be served."""
        visitor = "" if self._behind_proxy else _named(peer)
        with _counted(self._connections, visitor) as count:
            yield self._behind_proxy or count <= self._limits.per_visitor

    def visitor(self, request: h11.Request, peer: str) -> str:
        """Who makes a request; empty if a proxy does not say. What visitors say themselves does not
        count."""
        if not self._behind_proxy:
            return _named(peer)
        named = [value for name, value in request.headers if name == b"x-forwarded-for"]
        # The proxy adds the address that it sees at the end.
        last = bytes(named[-1]).decode("latin-1").rpartition(",")[2] if named else ""
        return _named(last.strip())

    def session_is_full(self, session_id: str) -> bool:
        return self._to_session[session_id] >= self._limits.per_session

    def has_many(self, visitor: str, session_id: str) -> bool:
        """Whether one visitor has as many requests open as it may."""
        if not visitor:
            return False
        here = self._of_both[session_id, visitor]
        everywhere = self._requests[visitor]
        return here >= self._limits.per_visitor_session or everywhere >= self._limits.per_visitor

    @contextlib.contextmanager
    def carrying(self, visitor: str, session_id: str) -> Iterator[None]:
        with (
            _counted(self._requests, visitor),
            _counted(self._to_session, session_id),
            _counted(self._of_both, (session_id, visitor)),
        ):
            yield


@contextlib.contextmanager
def _counted(counter: Counter[_Key], key: _Key) -> Iterator[int]:
    counter[key] += 1
    try:
        yield counter[key]
    finally:
        counter[key] -= 1
        if not counter[key]:
            del counter[key]


def _named(address: str) -> str:
    """One that has IPv6 has a whole /64 of it."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ip_network((found, 64), strict=False))
    return str(found)
