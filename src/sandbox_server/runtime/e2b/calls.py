"""A command with its options, as the launcher takes it (launch.sh)."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import uuid

from sandbox_sdk.protocol.errors import InvalidRequest
from sandbox_sdk.protocol.models import WORKSPACE
from sandbox_server.runtime.agent import OUTPUT_LIMIT, RunOptions
from sandbox_server.runtime.e2b.command import Call, E2bCommand
from sandbox_warden.shell import encode_call

MOST_ARGUMENT = 96 * 1024
"""Linux takes 128 KiB; a call that is longer is uploaded."""
OWN = "+"
"""In place of a key: a command of the server, which counts for nobody."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_BACKSTOP_S = 30.0


def call_of(command: str, options: RunOptions) -> Call:
    """Raises InvalidRequest."""
    env, stdin = dict(options.get("env") or {}), options.get("stdin")
    cwd, stdin_open = options.get("cwd"), options.get("stdin_open", False)
    _check(command, *env.values(), cwd or "")
    for name in env:
        if not _NAME.fullmatch(name):
            raise InvalidRequest(f"env: {name[:64]!r} is not the name of a variable")
    what = [
        command, cwd, sorted(env.items()), hashlib.sha256(stdin or b"").hexdigest(), stdin_open,
    ]  # fmt: skip
    return Call(
        text=command,
        command_id=options.get("command_id") or uuid.uuid4().hex,
        digest=hashlib.sha256(json.dumps(what).encode()).hexdigest(),
        key=options.get("key"),
        timeout_s=options.get("timeout_s", 30.0),
        cwd=None if cwd is None else posixpath.normpath(posixpath.join(WORKSPACE, cwd)),
        env=env,
        stdin=stdin,
        stdin_open=stdin_open,
        output_limit=options.get("output_limit", OUTPUT_LIMIT),
        own=options.get("own", False),
    )


def _check(*texts: str) -> None:
    for text in texts:
        if "\0" in text:
            raise InvalidRequest("a command, its folder and its variables have no NUL character")
        try:
            text.encode()
        except UnicodeEncodeError as exc:
            raise InvalidRequest(f"the command is not valid text: {exc}") from None


def encoded(call: Call) -> bytes:
    """As the shell of the warden reads it: parts with a NUL after each."""
    return encode_call(call.text, command_id=call.command_id, cwd=call.cwd, env=call.env, last=True)


def arguments(command: E2bCommand, *, uploaded: bool) -> list[str]:
    """Of the launcher. uploaded: the call itself is in its file."""
    call = command.call
    key = OWN if call.own else "-"
    if call.key is not None:
        key = hashlib.sha256(call.key.encode()).hexdigest()
    given = [call.command_id, command.mark, call.digest, key, "pipe" if call.has_input else "null"]
    if uploaded:
        return [*given, call.cwd or ""]
    folder, lines, text, _ = encoded(call).decode().split("\0", 3)
    return [*given, folder, lines, text]


def backstop_s(call: Call) -> float | None:
    """When E2B ends a command by itself: later than we do, if we are there."""
    return None if call.timeout_s is None else call.timeout_s + _BACKSTOP_S
