"""Files as a model sees and changes them."""

from __future__ import annotations

import itertools
import json
import shlex

from sandbox_sdk.integrations.presenting import Presenting, shorten
from sandbox_sdk.protocol.models import WORKSPACE, ExecuteResult, ListResult

# Runs in the box: the idempotency key of the command keeps a replay from editing twice, and the
# lock makes concurrent edits wait. `exec` replaces the shell: the thread's shell state stays as is.
_EDIT = f"""
import fcntl, json, os, shutil, sys, tempfile
call = json.load(sys.stdin)
path = os.path.realpath(os.path.join("{WORKSPACE}", call["path"]))
old, new = call["old"], call["new"]
try:
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    with open(path, encoding="utf-8", newline="") as file:
        text = file.read()
    if old not in text and "\\r\\n" in text:
        old, new = old.replace("\\n", "\\r\\n"), new.replace("\\n", "\\r\\n")
    found = text.count(old)
    if found == 1 or found and call["replace_all"]:
        with tempfile.NamedTemporaryFile("w", dir=os.path.dirname(path), encoding="utf-8",
                                         newline="", delete=False) as file:
            file.write(text.replace(old, new))
        shutil.copymode(path, file.name)
        os.replace(file.name, path)
    print(json.dumps({{"path": path, "found": found}}))
except (OSError, ValueError) as error:
    print(json.dumps({{"path": path, "error": getattr(error, "strerror", 0) or str(error)}}))
"""
EDIT_COMMAND = f"exec python3 -c {shlex.quote(_EDIT)}"


def edited(result: ExecuteResult, *, replace_all: bool) -> tuple[str, bool]:
    """What to tell of a run of EDIT_COMMAND, and whether the file was changed."""
    try:
        told = json.loads(result.stdout)
    except ValueError:
        output = result.output.strip()[-500:] or f"exit code {result.exit_code}"
        return f"Not edited: {output}", False
    path = told["path"]
    if "error" in told:
        return f"Not edited: {path}: {told['error']}", False
    found = told["found"]
    if found == 0:
        return (
            f"Not edited: the text is not in {path}. Read the file and give the text exactly as it"
            " is there, with its spaces and line breaks"
        ), False
    if found > 1 and not replace_all:
        return (
            f"Not edited: the text is {found} times in {path}. Give more of what is around the one"
            " you mean, or replace_all"
        ), False
    return f"Replaced {found} in {path}", True


def numbered(data: bytes, *, path: str, offset: int, limit: int, options: Presenting) -> str:
    """Lines of a text file with their numbers, as many as fit."""
    if b"\0" in data[:8192]:
        return f"{path} is not text: {len(data):,} bytes. Look at it with `file` and `xxd`"
    lines = data.decode("utf-8", "replace").splitlines()
    if not lines:
        return f"{path} is empty"
    if offset > len(lines):
        return f"{path} has only {len(lines):,} lines"
    chosen = lines[offset - 1 : offset - 1 + limit]
    text = "\n".join(f"{number:>6}\t{line}" for number, line in enumerate(chosen, offset))
    if cut := shorten(text, options.max_chars):
        text = f"{cut.head}\n[… too long to show whole; ask for fewer lines …]\n{cut.tail}"
    last = offset - 1 + len(chosen)
    if last < len(lines):
        text += f"\n[lines {offset:,} to {last:,} of {len(lines):,}; go on at offset {last + 1}]"
    return text


def oldest_beyond(listing: ListResult, max_bytes: int) -> list[str]:
    """The files of a folder to delete so that the newest are left, not more than max_bytes."""
    files = [entry for entry in listing.entries if entry.type == "file"]
    files.sort(key=lambda entry: entry.modified_at, reverse=True)
    sizes = itertools.accumulate(entry.size for entry in files)
    return [entry.path for entry, size in zip(files, sizes, strict=True) if size > max_bytes]


def listed(listing: ListResult, *, options: Presenting) -> str:
    """A folder, an entry a line, as many as fit."""
    if not listing.entries:
        return f"{listing.path} is empty"
    lines = [
        f"{entry.size:>12,} {entry.path}{'/' if entry.type == 'directory' else ''}"
        for entry in listing.entries
    ]
    text = "\n".join(lines)
    if cut := shorten(text, options.max_chars):
        text = cut.head.rstrip("\n")
    if cut or listing.truncated:
        text += "\n[there is more; list a folder below, or use `find`]"
    return text
