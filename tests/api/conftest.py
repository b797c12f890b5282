"""One server for most tests, with fresh sandboxes behind it for each."""

from collections.abc import Iterator

import pytest

from sandbox_server.api.limits import ApiLimits
from tests.api.fake import FakeTenants
from tests.api.serving import Served, served

LIMITS = ApiLimits(
    json_bytes=64 * 1024, upload_bytes=1 << 20, body_timeout_s=0.3, keep_alive_s=0.05
)


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with served(limits=LIMITS) as server:
        yield server


@pytest.fixture
def server(shared: Served) -> Served:
    shared.fake.__dict__.update(FakeTenants().__dict__)
    return shared
