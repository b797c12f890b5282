"""Checking that a webhook comes from the server: what its receiver calls first."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping

SIGNATURE = "X-Sandbox-Signature"
EVENT_ID = "X-Sandbox-Event-Id"
DELIVERY = "X-Sandbox-Delivery"


def sign(body: bytes, secret: str, at: int) -> str:
    """The value of the signature's header."""
    mac = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256)
    return f"t={at},v1={mac.hexdigest()}"


def verify(
    body: bytes,
    headers: Mapping[str, str],
    secret: str,
    *,
    tolerance_s: float = 300.0,
    now: float | None = None,
) -> bool:
    """Whether a body was signed with the secret, not longer ago than tolerance_s.

    headers: of the request, their names in any case. The same event may come more than once: its
    `X-Sandbox-Event-Id` is the same then.

        >>> body, secret = b'{"kind": "session.ended"}', "of the webhook"
        >>> headers = {"x-sandbox-signature": sign(body, secret, 1000)}
        >>> verify(body, headers, secret, now=1010)
        True
        >>> verify(body + b" ", headers, secret, now=1010), verify(body, headers, secret, now=2000)
        (False, False)
    """
    lower = {name.lower(): value for name, value in headers.items()}
    given = lower.get(SIGNATURE.lower(), "")
    parts = dict(part.partition("=")[::2] for part in given.split(","))
    moment = parts.get("t", "")
    if not (moment.isascii() and moment.isdecimal() and len(moment) < 15):
        return False
    age_s = (time.time() if now is None else now) - int(moment)
    same = hmac.compare_digest(sign(body, secret, int(moment)).encode(), given.encode())
    return same and abs(age_s) <= tolerance_s
