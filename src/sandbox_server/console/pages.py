"""The files of the console, which are built from web/ and shipped with the package."""

from __future__ import annotations

import gzip
import mimetypes
from functools import cached_property
from hashlib import sha256
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

CONSOLE = "/console"
INDEX = "index.html"
ASSETS = ("app.js", "app.css", "icon.svg", "licenses.txt")
_SMALL = 1024
"""Bytes that are not worth compressing."""
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        # Pictures and PDF files of a box, which the page has read and whose type it chose.
        "img-src 'self' blob:",
        "frame-src blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)
GUARDS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_FOREVER = "public, max-age=31536000, immutable"


def page_routes() -> list[Route]:
    """/console, and the files of the page."""
    assets = {name: Asset(name, _built(name)) for name in ASSETS}
    page = Asset(INDEX, _with_versions(_built(INDEX), assets))

    async def redirect(_http: Request) -> Response:
        # Relative, so that it works behind a proxy that serves the app under a prefix.
        return RedirectResponse("console/", headers=GUARDS)

    async def index(http: Request) -> Response:
        return page.response(http)

    async def asset(http: Request) -> Response:
        found = assets.get(http.path_params["name"])
        return found.response(http) if found else Response(status_code=404, headers=GUARDS)

    return [
        Route(CONSOLE, redirect),
        Route(f"{CONSOLE}/", index),
        Route(f"{CONSOLE}/{{name}}", asset),
    ]


class Asset:
    """One file, with its name for caches."""

    def __init__(self, name: str, content: bytes) -> None:
        self.version = sha256(content).hexdigest()[:16]
        self._content = content
        self._type = mimetypes.guess_type(name)[0] or "application/octet-stream"

    @cached_property
    def _compressed(self) -> bytes:
        return gzip.compress(self._content, mtime=0)

    def response(self, http: Request) -> Response:
        """For ever where the address names this version, else to be asked for again."""
        etag = f'"{self.version}"'
        lasts = http.query_params.get("v") == self.version
        headers = {**GUARDS, "ETag": etag, "Vary": "Accept-Encoding",
                   "Cache-Control": _FOREVER if lasts else "no-cache"}  # fmt: skip
        if http.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        content = self._content
        if len(content) > _SMALL and "gzip" in http.headers.get("accept-encoding", ""):
            content = self._compressed
            headers["Content-Encoding"] = "gzip"
        return Response(content, headers=headers, media_type=self._type)


def _with_versions(page: bytes, assets: dict[str, Asset]) -> bytes:
    """The page with the version of every file that it names."""
    for name, asset in assets.items():
        page = page.replace(f'"{name}"'.encode(), f'"{name}?v={asset.version}"'.encode())
    return page


def _built(name: str) -> bytes:
    return files(__package__).joinpath("static", name).read_bytes()
