"""Archives out of a sandbox that were made to do harm, unpacked into folders that are in use."""

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox_sdk.cli.unpack import unpack
from sandbox_sdk.protocol.errors import InvalidPath

LINK, HARD, PIPE, FOLDER = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE


def member(name: str, **fields: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def packed(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for each in members:
            tar.addfile(each, io.BytesIO(b"x" * each.size) if each.isreg() else None)
    return path


def copied(folder: Path, *members: tarfile.TarInfo) -> list[str]:
    return unpack(packed(folder.parents[2] / "a.tar", *members), folder)


def contents(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    """Where the copies go, with a file outside of it that must stay as it is."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x").write_text("mine")
    (tmp_path / "x").write_text("mine")
    yield tmp_path / "1" / "2" / "here"
    assert (tmp_path / "outside" / "x").read_text() == "mine"
    assert (tmp_path / "x").read_text() == "mine"
    assert contents(tmp_path / "outside") == {"x"}


@pytest.mark.parametrize(
    "members",
    [
        [member("../out", size=1)],
        [member("a/../../out", size=1)],
        [member("/out", size=1)],
        [member("a//../out", size=1)],
        [member("ab", size=1, pax_headers={"path": "a\0b"})],
        [member("ab", size=1, pax_headers={"path": "../out"})],
        [member("x" * 5000, size=1)],
        [member("l", type=LINK, linkname="d"), member("l/out", type=LINK, linkname="x")],
        [member("l", type=LINK, linkname="d"), member("l/out", size=1)],
        [member("l/out", size=1), member("l", type=LINK, linkname="d")],
        [member("out", size=1), member("out", type=FOLDER)],
        [member("d", type=FOLDER), member("d", type=LINK, linkname="e"), member("d/out", size=1)],
        [member("", size=1)],
    ],
)
def test_an_archive_that_tries_to_get_out(here: Path, members: list[tarfile.TarInfo]) -> None:
    with pytest.raises(InvalidPath):
        copied(here, member("good", size=1), *members)
    assert not here.exists()
    here.mkdir(parents=True)
    with pytest.raises(InvalidPath):
        copied(here, member("good", size=1), *members)
    assert list(here.iterdir()) == []


def test_three_copies_into_one_folder(here: Path) -> None:
    """What is harmless by itself is not, on top of what came before."""
    copied(here, member("l", type=LINK, linkname="d/d/d/../../../x"))
    copied(here, member("d", type=LINK, linkname="."))
    copied(here, member("l", size=3))
    assert (here / "l").read_text() == "xxx"
    assert not (here / "l").is_symlink()


def test_a_link_of_before_is_replaced(here: Path, tmp_path: Path) -> None:
    """Also one that the user has made: to a file, to a folder, to nothing, and above the place."""
    here.mkdir(parents=True)
    for name, target in (("f", "x"), ("d", "outside"), ("n", "nothing"), ("l", "outside/x")):
        (here / name).symlink_to(tmp_path / target)
    copied(
        here,
        member("f", size=2),
        member("d/x", size=2),
        member("n", type=FOLDER),
        member("l", type=LINK, linkname="f"),
    )
    assert (here / "d" / "x").read_text() == (here / "f").read_text() == "xx"
    assert [(here / name).is_symlink() for name in "fdnl"] == [False, False, False, True]
    assert os.readlink(here / "l") == "f"
    assert not (tmp_path / "nothing").exists()


def test_a_link_in_place_of_the_folder_itself(here: Path, tmp_path: Path) -> None:
    here.parent.mkdir(parents=True)
    here.symlink_to(tmp_path / "outside")
    copied(here, member("x", size=2))
    assert not here.is_symlink()
    assert (here / "x").read_text() == "xx"


def test_a_link_by_way_of_one_the_user_had(here: Path, tmp_path: Path) -> None:
    here.mkdir(parents=True)
    (here / "mine").symlink_to(tmp_path / "outside")
    assert copied(here, member("l", type=LINK, linkname="mine/x")) == ["l"]
    assert contents(here) == {"mine"}


@pytest.mark.parametrize(
    ("there", "comes"),
    [("folder", member("a", size=1)), ("folder", member("a", type=LINK, linkname="b")),
     ("file", member("a", type=FOLDER)), ("file", member("a/b", size=1))],
)  # fmt: skip
def test_a_file_and_a_folder_do_not_replace_each_other(
    here: Path, there: str, comes: tarfile.TarInfo
) -> None:
    here.mkdir(parents=True)
    (here / "a").mkdir() if there == "folder" else (here / "a").write_text("mine")
    with pytest.raises(InvalidPath, match="a"):
        copied(here, comes)
    assert contents(here) == {"a"}


def test_what_is_left_out(here: Path) -> None:
    left_out = copied(
        here,
        member("up", type=LINK, linkname="../.."),
        member("root", type=LINK, linkname="/etc"),
        member("empty", type=LINK, linkname=""),
        member("hard", type=HARD, linkname="file"),
        member("pipe", type=PIPE),
        member("device", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
        member("disk", type=tarfile.BLKTYPE, devmajor=7),
        member("file", size=3, mode=0o755),
        member("inside", type=LINK, linkname="file"),
        member("d/inside", type=LINK, linkname="../file"),
    )
    wanted = ["device", "disk", "empty", "hard", "pipe", "root", "up"]
    assert sorted(left_out) == wanted
    assert contents(here) == {"file", "inside", "d", "d/inside"}


def test_links_that_lead_out_by_way_of_others(here: Path) -> None:
    chain = [member(f"c{n}", type=LINK, linkname=f"c{n + 1}") for n in range(300)]
    left_out = copied(
        here,
        member("out", type=LINK, linkname="a/b/c/../../../x"),
        member("a/b/c", type=LINK, linkname="../../s"),
        member("round", type=LINK, linkname="round"),
        member("nowhere", type=LINK, linkname="nothing/here"),
        member("s", type=FOLDER, mode=0o755),
        *chain,
    )
    assert {"out", "round", "c0"} <= set(left_out)
    assert {"a", "nowhere", "s", "a/b/c"} <= contents(here)


def test_modes(here: Path) -> None:
    """No bit that lends rights, and nothing that its owner could not read or remove."""
    copied(
        here,
        member("set", size=1, mode=0o7755),
        member("none", size=1, mode=0),
        member("wide", size=1, mode=0o777),
        member("d", type=FOLDER, mode=0),
        member("d/x", size=1, mode=0o644),
        member("s", type=FOLDER, mode=0o7777),
    )
    modes = {name: (here / name).stat().st_mode & 0o7777 for name in ("set", "none", "wide", "s")}
    assert modes == {"set": 0o755, "none": 0o600, "wide": 0o755, "s": 0o755}
    assert (here / "d" / "x").read_text() == "x"


def test_a_folder_that_is_there_is_filled(here: Path) -> None:
    here.mkdir(parents=True)
    (here / "old").write_text("old")
    copied(here, member("new", size=1), member("twice", size=1), member("twice", size=2))
    assert contents(here) == {"old", "new", "twice"}
    assert (here / "twice").read_text() == "xx"


def nested_names() -> bytes:
    """A long name whose name is a long name whose name is…"""
    long = tarfile.TarInfo("././@LongLink")
    long.type, long.size = tarfile.GNUTYPE_LONGNAME, 2
    return (long.tobuf(tarfile.GNU_FORMAT) + b"x\0".ljust(512, b"\0")) * 5000


def negative_size() -> bytes:
    """Read over and over by a reader that believes it."""
    head = bytearray(member("x", size=1).tobuf(tarfile.GNU_FORMAT))
    head[124:136] = (-1024).to_bytes(12, "big", signed=True)
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return member("y").tobuf() + bytes(head)


def sparse() -> bytes:
    """Half a header that claims a terabyte."""
    big = member("x", size=0)
    big.pax_headers = {"GNU.sparse.size": str(1 << 40), "GNU.sparse.numblocks": "0"}
    return big.tobuf(tarfile.PAX_FORMAT) + bytes(1024)


def cut_short() -> bytes:
    return member("x", size=5000).tobuf() + b"half"


@pytest.mark.timeout(30)
@pytest.mark.parametrize("broken", [nested_names, negative_size, cut_short, lambda: b"no archive"])
def test_an_archive_that_is_none(here: Path, tmp_path: Path, broken: object) -> None:
    (tmp_path / "a.tar").write_bytes(broken())  # type: ignore[operator]
    with pytest.raises(InvalidPath):
        unpack(tmp_path / "a.tar", here)
    assert not here.exists()


def test_a_file_of_holes_is_left_out(here: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(sparse())
    assert unpack(tmp_path / "a.tar", here) == ["x"]
    assert contents(here) == set()
