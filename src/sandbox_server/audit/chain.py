"""Lines that hold each other: each has the hash of the one before. Pure.

A line is JSON with sorted keys, no spaces and ASCII alone, so that a record has one form, and its
`hash` last: the SHA-256 of `prev`, a line feed and the line without `hash`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

START = "0" * 64
"""`prev` of the first line of a chain."""
TORN = "torn"
"""The kind of the record that tells of an unfinished line before it."""


@dataclass(frozen=True)
class Head:
    """The last line of a chain: what the next one has to follow."""

    chain: str
    seq: int = 0
    hash: str = START

    def next(self, record: Mapping[str, Any]) -> tuple[bytes, Head]:
        """The line of a record, without its line feed, and the head after it."""
        fields = {**record, "chain": self.chain, "seq": self.seq + 1, "prev": self.hash}
        bare = _encode(fields).encode("ascii")
        digest = hashlib.sha256(f"{self.hash}\n".encode() + bare).hexdigest()
        return _with_hash(bare, digest), Head(self.chain, self.seq + 1, digest)


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _with_hash(bare: bytes, digest: str) -> bytes:
    return bare[:-1] + b',"hash":' + json.dumps(digest).encode() + b"}"


def _bare(fields: Mapping[str, Any]) -> bytes:
    rest = {name: value for name, value in fields.items() if name != "hash"}
    return _encode(rest).encode("ascii")


def canonical(fields: Mapping[str, Any]) -> bytes:
    """The line that has these fields."""
    return _with_hash(_bare(fields), fields["hash"])


def digest_of(fields: Mapping[str, Any]) -> str:
    """The hash that a line with these fields has to have."""
    return hashlib.sha256(f"{fields['prev']}\n".encode() + _bare(fields)).hexdigest()


def parse(line: bytes) -> dict[str, Any] | None:
    """The fields of a line; None if no server has written it in this form."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or not _has_links(fields) or canonical(fields) != line:
        return None
    return fields


def _has_links(fields: Mapping[str, Any]) -> bool:
    texts = all(isinstance(fields.get(name), str) for name in ("chain", "prev", "hash"))
    return texts and type(fields.get("seq")) is int


def head_of(fields: Mapping[str, Any]) -> Head:
    return Head(fields["chain"], fields["seq"], fields["hash"])


def is_torn(line: bytes, fields: Mapping[str, Any] | None) -> bool:
    """Whether `fields`, of the next line, are the record that tells of this unfinished one."""
    if fields is None or fields.get("kind") != TORN:
        return False
    return fields.get("torn_sha256") == hashlib.sha256(line).hexdigest()


def torn_record(line: bytes, at: str) -> dict[str, Any]:
    digest = hashlib.sha256(line).hexdigest()
    return {"at": at, "kind": TORN, "torn_bytes": len(line), "torn_sha256": digest}
