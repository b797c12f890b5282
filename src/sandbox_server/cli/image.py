"""`sandbox image`: the image that Docker boxes are made of."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.escape import escaped
from sandbox_sdk.protocol.errors import RuntimeUnavailable
from sandbox_server.cli.local import local

app = typer.Typer(help="The image that Docker boxes are made of.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command()
@local
async def build(
    *,
    tag: Annotated[str, typer.Option(help="Name of the image.")] = "sandbox-secure:latest",
    base: Annotated[
        str | None, typer.Option(help="The image to build on [default: the Dockerfile's].")
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print the Dockerfile and build nothing.")
    ] = False,
    caller: Caller,
) -> None:
    """Build the image with the Docker engine (DOCKER_HOST, or the default socket).

    With --json, print a line of JSON for every step and one for the image.
    """
    try:
        from sandbox_server.runtime.docker.build import build_image, dockerfile
    except ModuleNotFoundError as exc:
        lacks = f"building needs `pip install 'agent-sandbox[docker]'` ({exc})"
        raise RuntimeUnavailable(lacks) from None
    if show:
        print(dockerfile(), end="")
        return
    async for line in build_image(tag, base=base):
        if caller.json:
            caller.tell({"step": line})
        else:
            print(escaped(line), file=sys.stderr, flush=True)
    caller.say({"status": "built", "image": tag}, tag)
