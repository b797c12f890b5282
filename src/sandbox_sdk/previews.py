"""The methods of clients about previews."""

from __future__ import annotations

from sandbox_sdk.connection import Connection
from sandbox_sdk.protocol.models import Preview

METHODS = ("expose", "previews", "unexpose")


class PreviewMethods:
    """Of AsyncSandboxClient."""

    _connection: Connection

    async def expose(self, port: int, *, public: bool = False) -> Preview:
        """Make a port of the sandbox a preview: its `url` is for a browser. What listens there, at
        127.0.0.1 or everywhere, may be started before or after; until then a page says so.

        The URL has a token, which becomes a cookie of the preview's own origin; the preview ends
        with the session, or with unexpose(). The same port again gives the same preview.

        public: without a token, for anybody who knows the URL.
        """
        sandboxes, target = await self._connection.ready()
        return await sandboxes.expose(target, port, public=public)

    async def previews(self) -> list[Preview]:
        """The ports that are exposed. Their tokens are not told again: expose() does that."""
        sandboxes, target = await self._connection.ready(makes=False)
        return (await sandboxes.previews(target)).previews

    async def unexpose(self, port: int) -> None:
        """End a preview, and what is open through it. Raises NotFound."""
        sandboxes, target = await self._connection.ready(makes=False)
        await sandboxes.unexpose(target, port)
