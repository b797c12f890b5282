"""Unpacks an archive that came out of a sandbox, which may have been made to do harm."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from pathlib import Path

from sandbox_sdk.protocol.errors import InvalidPath


def unpack(archive: Path, folder: Path) -> list[str]:
    """Put what is in the archive into folder, which is made, or filled where there is one.

    Only files, folders, and links that stay inside: the names of whatever else there was are
    returned. Links are made last, so that nothing is ever written through one. Raises InvalidPath
    where the archive tries to get out; then nothing has been copied.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        with tarfile.open(archive, "r:") as tar:
            left_out = _extract(tar, fresh)
        if folder.exists():
            shutil.copytree(fresh, folder, symlinks=True, dirs_exist_ok=True)
        else:
            fresh.chmod(0o755)
            fresh.rename(folder)
    except tarfile.TarError as exc:
        raise InvalidPath(f"the folder was not copied: {exc}") from exc
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return left_out


def _extract(tar: tarfile.TarFile, fresh: Path) -> list[str]:
    links, left_out = [], []
    for member in tar:
        if member.issym():
            links.append(member)
        elif member.isreg() or member.isdir():
            tar.extract(member, fresh, filter="data")
        else:
            left_out.append(member.name)
    for link in links:
        behind_link = any(place.is_symlink() for place in (fresh / link.name).parents)
        try:
            if behind_link:
                raise tarfile.OutsideDestinationError(link, str(fresh))
            tar.extract(link, fresh, filter="data")
        except (tarfile.AbsoluteLinkError, tarfile.LinkOutsideDestinationError):
            left_out.append(link.name)
    return left_out
