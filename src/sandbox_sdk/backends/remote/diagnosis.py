"""What a failed connection says about the server, in words that help to find it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

import h11
import httpx

_CORRECT = "or correct SANDBOX_URL (server_url=)"


class NotHttp(httpx.RemoteProtocolError):
    """What answered does not speak HTTP."""


@dataclass(frozen=True)
class Diagnosis:
    """seen: in a few words. message: the whole of it, with what to do. final: another attempt would
    see the same. final_at_first: it would, unless the server has answered before."""

    seen: str
    message: str
    final: bool = False
    final_at_first: bool = False

    def may_change(self, *, known: bool) -> bool:
        """known: whether the server has ever answered."""
        return not self.final and (known or not self.final_at_first)


def unreached(exc: BaseException, url: str, *, connect_s: float) -> Diagnosis:
    """For an attempt in which no connection was made."""
    causes = list(_causes(exc))
    for cause in causes:
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
            return _tls(cause, url)
        if isinstance(cause, socket.gaierror):
            why = f"the name is not known ({cause.strerror or cause})"
            message = f"no server at {url}: {why}; correct SANDBOX_URL (server_url=)"
            return Diagnosis(why, message, final_at_first=True)
    if any(isinstance(cause, ConnectionRefusedError | FileNotFoundError) for cause in causes):
        message = f"nothing listens at {url}: start a server with `sandbox serve`, {_CORRECT}"
        return Diagnosis("connection refused", message)
    if isinstance(exc, httpx.ConnectTimeout):
        why = f"no connection within {connect_s:.3g} s"
        ask = "is its machine on, and does a firewall let you through?"
        return Diagnosis(why, f"{why} to the server at {url}: {ask} Start it, {_CORRECT}")
    if isinstance(exc, httpx.ProxyError):
        why = f"the HTTP proxy of this machine refused it: {exc}"
        ask = "correct HTTP_PROXY, HTTPS_PROXY or NO_PROXY"
        return Diagnosis(why, f"no connection to {url}: {why}; {ask}")
    why = str(exc) or type(exc).__name__
    return Diagnosis(why, f"no connection to {url} ({why}): start a server there, {_CORRECT}")


def unanswered(exc: BaseException, url: str, *, known: bool, then: str) -> Diagnosis:
    """For a connection that ended too soon. known: whether the server has ever answered. then: what
    to do about the call."""
    if isinstance(exc, NotHttp):
        message = f"{url} answers with something that is not HTTP: is it https://, or another port?"
        return Diagnosis("an answer that is not HTTP", message, final_at_first=True)
    why = f"{type(exc).__name__}: {exc}".rstrip(": ")
    if known:
        return Diagnosis(why, f"the connection to {url} broke off ({why}); {then}")
    message = (
        f"the server at {url} closes connections without an answer ({why}): is it the right port,"
        f" and http:// or https://? If so, {then}"
    )
    return Diagnosis("it closes connections without an answer", message)


def is_not_http(exc: httpx.RemoteProtocolError) -> bool:
    """Of an error before the first line of an answer: whether that line was none of HTTP."""
    return any(isinstance(cause, h11.RemoteProtocolError) for cause in _causes(exc))


def _tls(error: ssl.SSLError, url: str) -> Diagnosis:
    if isinstance(error, ssl.SSLCertVerificationError):
        why = f"its certificate is not trusted ({error.verify_message})"
        message = f"the server at {url}: {why}; pass verify= with an SSLContext that trusts it"
        return Diagnosis(why, message, final=True)
    reason = getattr(error, "reason", None) or error
    why = f"it does not speak TLS as we do ({reason})"
    return Diagnosis(why, f"the server at {url}: {why}; is it http://, not https://?", final=True)


def _causes(exc: BaseException | None) -> Iterator[BaseException]:
    """An error and all that led to it; a name with several addresses fails with a group."""
    while exc is not None:
        yield exc
        if isinstance(exc, BaseExceptionGroup):
            for each in exc.exceptions:
                yield from _causes(each)
        exc = exc.__cause__ or exc.__context__
