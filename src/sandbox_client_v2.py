"""The client of the second version, under its old name: `from sandbox_client_v2 import …`.

Its server, a coordinator, listened on port 8000 of this machine unless told otherwise. Use
sandbox_sdk in new code. `python -m sandbox_client_v2 --test` tries the server.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import sandbox_client
from sandbox_sdk import BatchSandboxClient as _BatchSandboxClient

DEFAULT_URL = "http://localhost:8000"

__all__ = ["BatchSandboxClient", "SandboxClient"]


class SandboxClient(sandbox_client.SandboxClient):
    """A sandbox of its own on a server, which ends with the client."""

    def __init__(self, server_url: str | None = None, **options: Any) -> None:
        url = server_url or os.environ.get("SANDBOX_URL") or DEFAULT_URL
        super().__init__(server_url=url, **options)


class BatchSandboxClient(_BatchSandboxClient):
    """Runs commands in order, in one session."""

    def __init__(self, server_url: str | None = None, **options: Any) -> None:
        url = server_url or os.environ.get("SANDBOX_URL") or DEFAULT_URL
        super().__init__(server_url=url, **options)


def main() -> None:
    """Try the server: who runs commands there, and whether Python does."""
    if sys.argv[1:2] != ["--test"]:
        sys.exit("usage: python -m sandbox_client_v2 --test [URL]")
    with SandboxClient(*sys.argv[2:3]) as sandbox:
        print("worker:", sandbox.create_session()["worker"])
        for command in ("whoami", "python3 -c 'print(2+2)'", "pwd"):
            print(f"{command}: {sandbox.execute(command, check=True)['output'].strip()}")


if __name__ == "__main__":
    main()
