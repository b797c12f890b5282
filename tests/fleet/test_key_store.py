"""Keys in SQLite and in Redis: one suite, real parts."""

import asyncio
import os
import stat
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from sandbox_sdk.protocol.errors import InvalidRequest, NotFound
from sandbox_server.access.key_store import KeyStore, RedisKeys, SqliteKeys
from sandbox_server.access.known_keys import KnownKeys, create, revoke, rotate
from sandbox_server.fleet.store import Store
from tests.fleet.redis_server import RedisServer

DAY = 86400.0
Open = Callable[[], KeyStore]


@pytest.fixture(params=["sqlite", "redis"])
async def again(
    request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer
) -> AsyncIterator[Open]:
    """Opens the same store once more, as another process does."""
    namespace = uuid.uuid4().hex
    opened: list[KeyStore] = []

    def one() -> KeyStore:
        if request.param == "sqlite":
            opened.append(SqliteKeys(tmp_path))
        else:
            opened.append(
                RedisKeys(Store.open(redis_server.url, namespace=namespace), "the fleet key")
            )
        return opened[-1]

    yield one
    for store in opened:
        await store.close()


@pytest.fixture
def store(again: Open) -> KeyStore:
    return again()


async def made(store: KeyStore, **more: float) -> tuple[str, str]:
    new = await create(store, tenant="acme", name="ci", scopes=("use",), now=1000.0, **more)
    return new.key.key_id, new.text


async def test_a_key_is_known_by_its_text(store: KeyStore, again: Open) -> None:
    key_id, text = await made(store)
    known = KnownKeys(again(), clock=lambda: 2000.0)
    await known.look()
    found = known.find(text)
    assert found is not None
    assert (found.key_id, found.tenant, found.name, found.scopes) == (
        key_id,
        "acme",
        "ci",
        ("use",),
    )
    for wrong in ("", "key", text[:-1], f"{text}x", text.replace(key_id, "0" * 12), "é" * 60):
        assert known.find(wrong) is None
    assert text.encode() not in found.digest
    assert text.split("_", 2)[2] not in repr(await store.all())


async def test_changes_are_taken_up_within_a_second(store: KeyStore, again: Open) -> None:
    async with KnownKeys(again()) as known:
        key_id, text = await made(store)
        async with asyncio.timeout(1):
            while known.find(text) is None:
                await asyncio.sleep(0.02)
        await revoke(store, key_id, now=3000.0)
        async with asyncio.timeout(1):
            while known.find(text) is not None:
                await asyncio.sleep(0.02)


async def test_a_key_expires(store: KeyStore) -> None:
    now = 1000.0
    _, text = await made(store, expires_s=90 * DAY)
    known = KnownKeys(store, clock=lambda: now)
    await known.look()
    now += 90 * DAY - 1
    assert known.find(text)
    now += 1
    assert known.find(text) is None


async def test_rotation_overlaps(store: KeyStore) -> None:
    now = 1000.0
    old_id, old = await made(store, expires_s=90 * DAY)
    now += 80 * DAY
    new = await rotate(store, old_id, overlap_s=DAY, now=now)
    known = KnownKeys(store, clock=lambda: now)
    await known.look()
    assert known.find(old)
    assert known.find(new.text)
    assert new.key.tenant == "acme"
    assert new.key.expires_at == now + 90 * DAY
    with pytest.raises(InvalidRequest, match="replaced by"):
        await rotate(store, old_id, overlap_s=DAY, now=now)
    now += DAY
    assert known.find(old) is None
    assert known.find(new.text)
    with pytest.raises(InvalidRequest, match="not valid"):
        await rotate(store, old_id, overlap_s=DAY, now=now)
    with pytest.raises(NotFound):
        await revoke(store, "0" * 12, now=now)


async def test_many_at_once(store: KeyStore, again: Open) -> None:
    others = [again() for _ in range(4)]
    texts = await asyncio.gather(*(made(others[n % 4]) for n in range(200)))
    known = KnownKeys(store, clock=lambda: 2000.0)
    await known.look()
    assert all(known.find(text) for _, text in texts)


def test_the_secret_is_private(tmp_path: Path) -> None:
    one, other = SqliteKeys(tmp_path), SqliteKeys(tmp_path)
    assert one.secret == other.secret
    assert len(one.secret) == 32
    assert os.stat(tmp_path / "keys.secret").st_mode & 0o777 == 0o600
    assert sorted(each.name for each in tmp_path.iterdir() if "new" in each.name) == []


async def test_the_first_key_may_come_before_the_first_start(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "sandbox"
    store = SqliteKeys(folder)
    try:
        assert store.secret == SqliteKeys(folder).secret
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        await store.close()
