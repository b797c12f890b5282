"""What the ports of a session with all of them open say in the place of what is in the box: in the
words of e2b's, by which programs with its SDK know what is wrong."""

from __future__ import annotations

import re

from sandbox_server.previews.pages import Page

_BROWSER = re.compile(rb"(?i)mozilla|chrome|safari|firefox|edge|opera|msie")
_TOKEN = "Sandbox is secured with traffic access token."


def is_browser(user_agent: bytes) -> bool:
    """Whether a person is to read it, as e2b judges."""
    return _BROWSER.search(user_agent) is not None


def port_closed(session_id: str, port: int) -> Page:
    return Page(
        status=502,
        code="not_listening",
        title="Closed Port Error",
        text=f"The sandbox is running, but nothing listens at its port {port}. As soon as something"
        " does, it appears here: this page loads itself again.",
        again_s=1,
        told=_told(session_id, "The sandbox is running but port is not open", 502, port=port),
    )


def not_found(session_id: str) -> Page:
    return Page(
        status=502,
        code="session_not_found",
        title="Sandbox Not Found",
        text="The sandbox has ended, or never was.",
        told=_told(session_id, "The sandbox was not found", 502),
    )


def paused(session_id: str) -> Page:
    return Page(
        status=409,
        code="conflict",
        title="Sandbox Paused",
        text="The sandbox is paused, and requests do not wake it: connect to it with the SDK.",
        told=_told(session_id, "The sandbox is paused", 409, canAutoResume=False),
    )


def no_token(session_id: str, *, given: bool) -> Page:
    header = "'e2b-traffic-access-token'"
    why = f"Provided token in header {header} is invalid" if given else (
        f"Token header {header} is missing"
    )  # fmt: skip
    return Page(
        status=403,
        code="forbidden",
        title="Traffic Access Token",
        text=f"{_TOKEN} {why}",
        told=_told(session_id, f"{_TOKEN} {why}", 403),
    )


def _told(session_id: str, message: str, code: int, **more: object) -> dict[str, object]:
    """sandboxId: up to the first `-`, as e2b's tests cut the ids that its SDK has."""
    return {"sandboxId": session_id.partition("-")[0], "message": message, "code": code, **more}
