"""Messages of the Jupyter protocol over ZeroMQ sockets: signing, packing and unpacking.

Not jupyter_client's session: importing that takes longer than starting a kernel's first cell.
"""

import hmac
import json
import os
import uuid
from typing import Any, Dict, List, Optional, Tuple

DELIMITER = b"<IDS|MSG>"
PROTOCOL = "5.3"
_DATE = "1970-01-01T00:00:00Z"
"""Kernels need a date and make nothing of it; the clock of a machine may jump."""
_NOT_WANTED = b".execute_input"
"""The topic of messages that tell what was sent to run."""
_PARTS = 5
"""Signature, header, parent header, metadata and content."""


class Message:
    """A message from a kernel, as far as it matters here."""

    def __init__(self, kind: str, parent_id: str, content: Dict[str, Any]) -> None:
        self.kind = kind
        self.parent_id = parent_id
        """The id of the request that it belongs to."""
        self.content = content


class Wire:
    """Signs what is sent with the key of one kernel, and checks what comes."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._session = uuid.uuid4().hex
        self._sent = 0

    def request(self, kind: str, content: Dict[str, Any]) -> Tuple[str, List[bytes]]:
        """The id and the parts of a request."""
        self._sent += 1
        ident = "%s_%d_%d" % (self._session, os.getpid(), self._sent)
        header = {
            "msg_id": ident,
            "msg_type": kind,
            "username": "sandbox",
            "session": self._session,
            "date": _DATE,
            "version": PROTOCOL,
        }
        parts = [json.dumps(part).encode() for part in (header, {}, {}, content)]
        return ident, [DELIMITER, self._signature(parts), *parts]

    def message(self, received: List[bytes]) -> Optional[Message]:
        """The message in these parts. None if it is not one, or not of the kernel: code in the box
        may write to its kernel's sockets too."""
        try:
            if received[0].endswith(_NOT_WANTED):
                return None
            start = received.index(DELIMITER) + 1
            signature, *parts = received[start : start + _PARTS]
            if len(parts) < _PARTS - 1:
                return None
            if not hmac.compare_digest(signature, self._signature(parts)):
                return None
            header, parent, _, content = (json.loads(part) for part in parts)
            return Message(str(header["msg_type"]), str(parent.get("msg_id")), dict(content))
        except (ValueError, IndexError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def _signature(self, parts: List[bytes]) -> bytes:
        return hmac.digest(self._key, b"".join(parts), "sha256").hex().encode()
