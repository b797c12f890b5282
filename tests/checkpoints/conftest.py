"""Stores of checkpoints: a folder, and a real S3 service."""

from pathlib import Path

import pytest

from sandbox_server.checkpoints.opening import open_store
from sandbox_server.storage.objects import ObjectStore
from tests.s3_server import S3Server


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    where = "folder"
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3")
        request.getfixturevalue("s3_credentials")
        where = server.url_of(tmp_path.name)
    made = open_store(where, tmp_path / "store")
    assert made is not None
    return made
