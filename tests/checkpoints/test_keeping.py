"""Checkpoints in a store: kept once, as a whole, within a quota, and checked when read."""

import contextlib
import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from sandbox_sdk.protocol.errors import CheckpointDamaged, CheckpointNotFound, DiskFull
from sandbox_server.checkpoints.checkpoints import AUTOMATIC, Checkpoints, Source, Subject
from sandbox_server.checkpoints.manifest import Manifest, folder_of
from sandbox_server.runtime.agent import TreeAbout
from sandbox_server.storage.objects import ObjectStore

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]

QUOTA = 100_000


class Tree:
    running: Sequence[str] = ()

    def __init__(self, segments: Sequence[bytes], fails: Exception | None) -> None:
        self._segments = segments
        self._fails = fails
        self.about: TreeAbout | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for segment in self._segments:
            yield segment
        if self._fails is not None:
            raise self._fails
        size = sum(map(len, self._segments))
        self.about = TreeAbout(
            files=len(self._segments), folders=0, size=size, left_out=[], left_out_more=0,
            paused_ms=0.0,
        )  # fmt: skip


class Agent:
    """Of a box with these segments."""

    def __init__(self, *segments: bytes, fails: Exception | None = None) -> None:
        self._tree = Tree(segments, fails)

    def require(self, *_: object) -> None: ...

    @contextlib.asynccontextmanager
    async def pack(self, *_: object, **__: object) -> AsyncIterator[Tree]:
        yield self._tree


class Disk:
    disk_owner = None


def box(*segments: bytes, fails: Exception | None = None) -> Source:
    agent: Any = Agent(*segments, fails=fails)
    has: Any = Disk()
    return Source(box=has, agent=agent, provider="fake", disk_bytes=0)


def noise(name: str, size: int = 10_000) -> bytes:
    """Bytes that do not compress."""
    return b"".join(hashlib.sha256(f"{name}{n}".encode()).digest() for n in range(size // 32 + 1))[
        :size
    ]


def subject(thread: str = "t", tenant: str = "acme") -> Subject:
    return Subject(
        tenant=tenant, thread_id=thread, session_id="s", generation=1, environment=None, asked={},
        parent=None, cwd="/workspace",
    )  # fmt: skip


@pytest.fixture
def checkpoints(store: ObjectStore) -> Checkpoints:
    return Checkpoints(store, quota=QUOTA, retention_s=3600)


async def read(checkpoints: Checkpoints, manifest: Manifest) -> list[bytes]:
    return [segment async for segment in checkpoints.read(manifest)]


async def names(store: ObjectStore, prefix: str = "") -> list[str]:
    return sorted([each.name async for each in store.list(prefix)])


async def test_what_is_there_is_not_stored_again(
    checkpoints: Checkpoints, store: ObjectStore
) -> None:
    one, two, three = noise("1"), noise("2"), noise("3")
    first = await checkpoints.take(box(one, two), subject())
    assert first.added >= 20_000
    second = await checkpoints.take(box(one, three, one), subject("u"))
    assert 10_000 <= second.added < 11_000
    segments = [name for name in await names(store) if "/segments/" in name]
    assert len(segments) == 3
    assert await read(checkpoints, first) == [one, two]
    assert await read(checkpoints, second) == [one, three, one]
    same = await checkpoints.take(box(one, two), subject())
    assert same.added == 0
    assert [m.checkpoint_id for m in await checkpoints.of("acme")] == [
        same.checkpoint_id, second.checkpoint_id, first.checkpoint_id,
    ]  # fmt: skip


async def test_tenants_share_nothing(checkpoints: Checkpoints, store: ObjectStore) -> None:
    made = await checkpoints.take(box(noise("1")), subject(tenant="acme"))
    other = await checkpoints.take(box(noise("1")), subject(tenant="globex"))
    assert other.added == made.added > 0
    with pytest.raises(CheckpointNotFound):
        await checkpoints.get("globex", made.checkpoint_id)
    with pytest.raises(CheckpointNotFound):
        await checkpoints.delete("globex", made.checkpoint_id)
    assert {name.split("/")[0] for name in await names(store)} == {
        folder_of("acme"),
        folder_of("globex"),
    }


async def test_a_copy_that_fails_is_not_listed(
    checkpoints: Checkpoints, store: ObjectStore
) -> None:
    with pytest.raises(RuntimeError, match="broke"):
        await checkpoints.take(box(noise("1"), fails=RuntimeError("broke")), subject())
    assert await checkpoints.of("acme") == []
    assert not [name for name in await names(store) if "/checkpoints/" in name]


async def damage(store: ObjectStore, manifest: Manifest, data: bytes | None) -> None:
    digest = manifest.segments[0].digest
    name = f"{folder_of(manifest.tenant)}/segments/{digest[:2]}/{digest}"
    if data is None:
        await store.delete(name)
    else:
        await store.put(name, data)


async def test_damage_is_told(checkpoints: Checkpoints, store: ObjectStore) -> None:
    made = await checkpoints.take(box(noise("1"), noise("2")), subject())
    other = await checkpoints.take(box(noise("3")), subject())
    packed = await store.get(
        f"{folder_of('acme')}/segments/{other.segments[0].digest[:2]}/{other.segments[0].digest}"
    )
    for data in (b"", b"x", packed[:-1], packed, None):
        await damage(store, made, data)
        with pytest.raises(CheckpointDamaged, match=made.checkpoint_id):
            await read(checkpoints, made)
    assert await read(checkpoints, other) == [noise("3")]


async def test_a_manifest_that_cannot_be_read(checkpoints: Checkpoints, store: ObjectStore) -> None:
    made = await checkpoints.take(box(noise("1")), subject())
    name = f"{folder_of('acme')}/checkpoints/{made.checkpoint_id}.json"
    later = made.model_copy(update={"format": 99}).model_dump_json().encode()
    for data in (b"", b"{}", b"[1", later):
        await store.put(name, data)
        fresh = Checkpoints(store, quota=QUOTA, retention_s=3600)
        with pytest.raises(CheckpointDamaged, match=made.checkpoint_id):
            await fresh.get("acme", made.checkpoint_id)
        assert await fresh.of("acme") == []
        await fresh.tidy()
    assert len([each for each in await names(store) if "/segments/" in each]) == 1


async def test_automatic_ones_make_room_and_named_ones_do_not(checkpoints: Checkpoints) -> None:
    async def take(thread: str, text: str, **options: Any) -> Manifest:
        return await checkpoints.take(box(noise(text, 30_000)), subject(thread), **options)

    old = await take("a", "1", automatic=True)
    only = await take("b", "2", automatic=True)
    named = await take("c", "3", name="kept")
    new = await take("a", "4", automatic=True)  # `a` has a newer one now.
    ids = {each.checkpoint_id for each in await checkpoints.of("acme")}
    assert ids == {each.checkpoint_id for each in (only, named, new)}
    assert old.checkpoint_id not in ids
    last = await take("d", "5")
    ids = {each.checkpoint_id for each in await checkpoints.of("acme")}
    assert ids == {each.checkpoint_id for each in (named, new, last)}
    await take("e", "6")
    with pytest.raises(DiskFull, match="SANDBOX_CHECKPOINT_QUOTA"):
        await take("f", "7")
    left = [each.checkpoint_id for each in await checkpoints.of("acme")]
    assert named.checkpoint_id in left
    await checkpoints.delete("acme", named.checkpoint_id)
    await take("f", "7")


async def test_of_one_thread_only_so_many_automatic_ones(checkpoints: Checkpoints) -> None:
    for number in range(AUTOMATIC + 3):
        await checkpoints.take(box(b"%d" % number), subject(), automatic=True)
    assert len(await checkpoints.of("acme")) == AUTOMATIC


async def test_more_than_all_may_take(checkpoints: Checkpoints) -> None:
    with pytest.raises(DiskFull):
        await checkpoints.take(box(*(noise(str(n), 30_000) for n in range(20))), subject())
    assert await checkpoints.of("acme") == []


async def test_tidying(
    checkpoints: Checkpoints, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = await checkpoints.take(box(noise("1"), noise("2")), subject(), name="kept")
    gone = await checkpoints.take(box(noise("2"), noise("3")), subject())
    await checkpoints.delete("acme", gone.checkpoint_id)
    await checkpoints.tidy()
    assert len(await names(store)) == 4  # It is too fresh: somebody may be about to need it.
    monkeypatch.setattr(type(store), "refresh_s", -1.0)
    await checkpoints.tidy()
    assert len(await names(store)) == 3
    assert await read(checkpoints, kept) == [noise("1"), noise("2")]
    short = Checkpoints(store, quota=QUOTA, retention_s=-1.0)
    await short.take(box(noise("4")), subject(), automatic=True)
    await short.tidy()
    assert [each.checkpoint_id for each in await short.of("acme")] == [kept.checkpoint_id]
    assert len(await names(store)) == 3
