"""A listing that is read in slices is the one that was sent."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_sdk.backends.remote.bodies import read_listing
from sandbox_sdk.protocol.models import FileEntry, ListResult
from sandbox_server.api.operations import listing

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.just('"entries":[],{}')
entries = st.builds(
    FileEntry, name=names, path=names, type=st.sampled_from(["file", "other"]), size=st.integers(),
    mode=st.just("0644"), modified_at=st.just(datetime(2025, 1, 1, tzinfo=UTC)),
)  # fmt: skip
listings = st.builds(
    ListResult, path=names, entries=st.lists(entries, max_size=5), truncated=st.booleans()
)


@given(listings)
async def test_what_is_sent_is_what_is_read(sent: ListResult) -> None:
    body = "".join([piece async for piece in listing(sent)]).encode()
    assert ListResult.model_validate_json(body) == sent
    assert await read_listing(body) == sent
    assert await read_listing(sent.model_dump_json(indent=2).encode()) == sent


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b'{"entries":[', b'{"entries":[1]}', b'{"entries":[{}]}', b"\xff",
        b'{"path":"x","truncated":false,"entries":[}', b'{"entries":[]', b'{"entries":[]}',
    ],
)  # fmt: skip
async def test_what_is_no_listing(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        await read_listing(body)
