"""The pages that a preview shows in the place of what is in the box.

Those of a session with all of its ports open say it in the words of e2b's, by which programs with
its SDK know what is wrong.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:18vh auto;padding:0 1rem;"
    "color:#222;background:#fff}h1{font-size:1.3rem}p{color:#555}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#161616}p{color:#aaa}}"
)
_DIGEST = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; form-action 'none'"
).encode()


@dataclass(frozen=True, kw_only=True)
class Page:
    status: int
    code: str
    title: str
    text: str
    again_s: int | None = None
    """After how many seconds a browser is to load it again."""
    told: Mapping[str, object] | None = None
    """What programs are told, in place of code, title and text."""

    def body(self, *, as_html: bool) -> bytes:
        if not as_html and self.told is not None:
            return json.dumps(dict(self.told)).encode() + b"\n"
        if not as_html:
            error = {"code": self.code, "message": f"{self.title}: {self.text}"}
            return json.dumps({"error": error}).encode() + b"\n"
        title, text = html.escape(self.title), html.escape(self.text)
        again = ""
        if self.again_s is not None:
            again = f'<meta http-equiv="refresh" content="{self.again_s}">'
        return (
            f'<!doctype html><html lang="en"><meta charset="utf-8">{again}<title>{title}</title>'
            f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
            f"<h1>{title}</h1><p>{text}</p></html>\n"
        ).encode()

    def headers(self, body: bytes, *, as_html: bool) -> list[tuple[bytes, bytes]]:
        kind = b"text/html; charset=utf-8" if as_html else b"application/json"
        found = [
            (b"content-type", kind),
            (b"content-length", str(len(body)).encode()),
            (b"content-security-policy", _POLICY),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cache-control", b"no-store"),
        ]
        if self.again_s is not None:
            found.append((b"retry-after", str(self.again_s).encode()))
        return found


NO_PREVIEW = Page(
    status=404,
    code="not_found",
    title="There is no preview here",
    text="The URL of a preview begins with a port and a session, as `sandbox expose` prints it.",
)
NO_ACCESS = Page(
    status=401,
    code="unauthorized",
    title="This preview cannot be opened",
    text="It needs the link with its token, or it has ended. Ask for a new link with"
    " `sandbox expose`.",
)
MANY = Page(
    status=503,
    code="capacity",
    title="Too many connections",
    text="This preview has as many connections as it may have. Try again in a moment.",
    again_s=2,
)
MANY_OF_YOURS = Page(
    status=429,
    code="rate_limited",
    title="Too many of your connections",
    text="From your address there are as many connections to previews as one may have. Close some,"
    " or try again in a moment.",
    again_s=2,
)
UNAVAILABLE = Page(
    status=503,
    code="runtime_unavailable",
    title="The sandbox cannot be reached",
    text="Its server does not answer at the moment. This page tries again.",
    again_s=2,
)
BAD_ANSWER = Page(
    status=502,
    code="bad_gateway",
    title="The answer is not HTTP",
    text="What listens at this port of the sandbox closed the connection, or sent something that is"
    " not an HTTP response.",
)
TOO_SLOW = Page(
    status=408, code="request_timeout", title="Too slow", text="The request did not come in time."
)


def not_listening(port: int) -> Page:
    return Page(
        status=502,
        code="not_listening",
        title=f"Nothing listens at port {port} yet",
        text="As soon as something in the sandbox does, at 127.0.0.1 or on all addresses, it"
        " appears here: this page loads itself again.",
        again_s=1,
    )


def invalid(status: int, why: str) -> Page:
    """For what is not a request. why: from the parser, without what was sent."""
    return Page(status=status, code="invalid_request", title="Not a request", text=why)


# In the words of e2b's

_BROWSER = re.compile(rb"(?i)mozilla|chrome|safari|firefox|edge|opera|msie")
_TRAFFIC_TOKEN = "'e2b-traffic-access-token'"


def is_browser(user_agent: bytes) -> bool:
    """Whether a person is to read it, as e2b judges."""
    return _BROWSER.search(user_agent) is not None


def e2b_port_closed(session_id: str, port: int) -> Page:
    return _in_e2b_words(
        session_id, 502, "not_listening", "Closed Port Error",
        f"The sandbox is running, but nothing listens at its port {port}. As soon as something"
        " does, it appears here: this page loads itself again.",
        "The sandbox is running but port is not open", again_s=1, port=port,
    )  # fmt: skip


def e2b_not_found(session_id: str) -> Page:
    return _in_e2b_words(
        session_id, 502, "session_not_found", "Sandbox Not Found",
        "The sandbox has ended, or never was.", "The sandbox was not found",
    )  # fmt: skip


def e2b_paused(session_id: str) -> Page:
    return _in_e2b_words(
        session_id, 409, "conflict", "Sandbox Paused",
        "The sandbox is paused, and requests do not wake it: connect to it with the SDK.",
        "The sandbox is paused", canAutoResume=False,
    )  # fmt: skip


def e2b_no_token(session_id: str, *, given: bool) -> Page:
    why = f"Token header {_TRAFFIC_TOKEN} is missing"
    if given:
        why = f"Provided token in header {_TRAFFIC_TOKEN} is invalid"
    text = f"Sandbox is secured with traffic access token. {why}"
    return _in_e2b_words(session_id, 403, "forbidden", "Traffic Access Token", text, text)


def _in_e2b_words(
    session_id: str,
    status: int,
    code: str,
    title: str,
    text: str,
    message: str,
    *,
    again_s: int | None = None,
    **more: object,
) -> Page:
    """message, more: what programs are told. sandboxId: up to the first `-`, as e2b's tests cut the
    ids that its SDK has."""
    told = {"sandboxId": session_id.partition("-")[0], "message": message, "code": status, **more}
    return Page(status=status, code=code, title=title, text=text, again_s=again_s, told=told)
