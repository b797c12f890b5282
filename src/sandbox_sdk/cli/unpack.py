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
    made = []
    for link in links:
        try:
            made.append(_make_link(link, fresh))
        except (tarfile.AbsoluteLinkError, tarfile.LinkOutsideDestinationError):
            left_out.append(link.name)
    # Only when all are there can it be told where one leads by way of others.
    for place in made:
        if not _leads_inside(place, fresh):
            place.unlink()
            left_out.append(str(place.relative_to(fresh)))
    return left_out


def _make_link(link: tarfile.TarInfo, fresh: Path) -> Path:
    """Not left to tarfile, which may make something else where a link cannot be made."""
    link = tarfile.data_filter(link, str(fresh))
    place = fresh / link.name
    if place.exists() or any(each.is_symlink() for each in (place, *place.parents)):
        raise tarfile.OutsideDestinationError(link, str(place))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(link.linkname)
    return place


def _leads_inside(place: Path, fresh: Path) -> bool:
    try:
        return place.resolve(strict=True).is_relative_to(fresh.resolve())
    except FileNotFoundError:
        return place.resolve().is_relative_to(fresh.resolve())
    except (OSError, RuntimeError):  # A circle, or a path too long to be followed.
        return False
