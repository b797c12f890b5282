"""`sandbox image`: the image that Docker boxes are made of."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sandbox_sdk.cli.caller import Caller
from sandbox_sdk.cli.escape import escaped
from sandbox_sdk.cli.options import Json
from sandbox_sdk.protocol.errors import RuntimeUnavailable

app = typer.Typer(help="The image that Docker boxes are made of.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command()
def build(
    tag: Annotated[str, typer.Option(help="Name of the image.")] = "sandbox-secure:latest",
    base: Annotated[
        str | None, typer.Option(help="The image to build on [default: the Dockerfile's].")
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print the Dockerfile and build nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Build the image with the Docker engine (DOCKER_HOST, or the default socket).

    With --json, print a line of JSON for every step and one for the image.
    """
    caller = Caller(json=as_json)
    try:
        from sandbox_server.runtime.docker import build as builder
    except ModuleNotFoundError as exc:
        lacks = f"building needs `pip install 'agent-sandbox[docker]'` ({exc})"
        caller.fail(RuntimeUnavailable(lacks))
    if show:
        print(builder.dockerfile(), end="")
        return
    caller.run(_build(caller, tag, base))


async def _build(caller: Caller, tag: str, base: str | None) -> None:
    from sandbox_server.runtime.docker.build import build_image

    async for line in build_image(tag, base=base):
        if caller.json:
            caller.tell({"step": line})
        else:
            print(escaped(line), file=sys.stderr, flush=True)
    if caller.json:
        caller.tell({"status": "built", "image": tag})
    else:
        print(tag)
