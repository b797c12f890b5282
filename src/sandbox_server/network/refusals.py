"""What a box is told of a connection that it does not get."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    ALLOWED = "allowed"
    REFUSED = "refused"
    """By the rules, or because a limit of the session is reached."""
    FAILED = "failed"
    """Allowed, but the other end cannot be reached."""


class Refused(Exception):
    """A connection that is not made, or is cut. The text is for the agent in the box, and never
    holds a secret."""

    def __init__(self, text: str, *, status: int = 403, verdict: Verdict = Verdict.REFUSED) -> None:
        super().__init__(text)
        self.text = text
        self.status = status
        self.verdict = verdict


def bad_request(text: str) -> Refused:
    return Refused(text, status=400)


def unreachable(text: str) -> Refused:
    return Refused(text, status=502, verdict=Verdict.FAILED)


def timed_out(text: str) -> Refused:
    return Refused(text, status=504, verdict=Verdict.FAILED)
