"""Object stores: what both kinds promise."""

import asyncio
from pathlib import Path

import pytest

from sandbox_sdk.protocol.errors import InvalidRequest, NotFound, RuntimeUnavailable
from sandbox_server.checkpoints.opening import open_store
from sandbox_server.storage.objects import FolderObjects, ObjectStore

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]


async def test_put_get_list_delete(store: ObjectStore) -> None:
    assert await store.look("a/one") is None
    with pytest.raises(NotFound):
        await store.get("a/one")
    await store.put("a/one", b"1")
    await store.put("a/two/three", b"22")
    await store.put("b/four", b"")
    assert await store.get("a/one") == b"1"
    found = await store.look("a/one")
    assert found is not None
    assert (found.name, found.size, 0 <= found.age_s < 60) == ("a/one", 1, True)
    listed = sorted([(each.name, each.size) async for each in store.list("a/")])
    assert listed == [("a/one", 1), ("a/two/three", 2)]
    assert len([each async for each in store.list("")]) == 3
    await store.put("a/one", b"another")
    assert await store.get("a/one") == b"another"
    await store.delete("a/one")
    await store.delete("a/one")
    assert await store.look("a/one") is None


async def test_large_objects_at_once(store: ObjectStore) -> None:
    data = {f"large/{n}": bytes([n]) * (4 << 20) for n in range(8)}
    await asyncio.gather(*(store.put(name, each) for name, each in data.items()))
    got = await asyncio.gather(*(store.get(name) for name in data))
    assert got == list(data.values())


async def test_names_that_lead_elsewhere(tmp_path: Path) -> None:
    store = FolderObjects(tmp_path / "store")
    for name in ("../out", "/etc/passwd", "a/../../b", "", "a//b", "A", "a/."):
        with pytest.raises(NotFound):
            await store.put(name, b"x")
    assert not (tmp_path / "out").exists()


async def test_what_was_being_written_is_not_there(tmp_path: Path) -> None:
    store = FolderObjects(tmp_path / "store")
    (tmp_path / "store" / "new" / "half").write_bytes(b"x")
    assert [each.name async for each in store.list("a/")] == []
    await store.put("a/one", b"1")
    assert not [*(tmp_path / "store" / "new").glob("[!h]*")]


async def test_where_there_is_no_store(tmp_path: Path) -> None:
    assert open_store("off", tmp_path) is None
    for where in ("s3://", "s3://b?x=1", "gs://bucket", ""):
        with pytest.raises(InvalidRequest, match=r"s3://BUCKET|SANDBOX_CHECKPOINTS"):
            open_store(where, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeUnavailable, match="cannot be used"):
        open_store("folder", tmp_path / "file")


async def test_a_service_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    store = open_store("s3://bucket/prefix?endpoint=http://127.0.0.1:9", tmp_path)
    assert store is not None
    with pytest.raises(RuntimeUnavailable, match="s3://bucket/prefix") as caught:
        await store.put("a", b"1")
    assert "very-secret" not in str(caught.value)
