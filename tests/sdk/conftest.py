"""Programs that use the SDK, with real sandboxes of their own."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox_sdk import SandboxClient
from sandbox_sdk.background import background
from tests.contract.conftest import RUNTIMES, make_runtime, state_dir

__all__ = ["state_dir"]

RUNTIME = "bubblewrap" if "bubblewrap" in RUNTIMES else "docker"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where there is no runtime at all, nothing here can be tested; the run says so at its end."""
    if not RUNTIMES:
        here = Path(__file__).parent
        items[:] = [item for item in items if not item.path.is_relative_to(here)]


class Home:
    """A state folder of a test's own, and the environment that leads programs to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {"SANDBOX_RUNTIME": RUNTIME, "SANDBOX_STATE_DIR": str(folder)}

    def boxes(self) -> list[str]:
        """The boxes of local services that run."""
        return background().run(self._boxes)

    async def _boxes(self) -> list[str]:
        found = []
        async with make_runtime(RUNTIME, self.folder) as runtime:
            for registry in self.folder.glob("local-*.sqlite"):
                found += [box.id for box in await runtime.boxes(registry.stem)]
        return found

    def clean(self) -> None:
        """End the sandboxes of threads, which nobody else does before their time."""
        if not self.folder.exists():
            return
        with SandboxClient() as all_of_them:
            for session in all_of_them.sessions().sessions:
                with SandboxClient(session_id=session.session_id) as one:
                    one.cleanup()


@pytest.fixture
def home(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    made = Home(state_dir / uuid.uuid4().hex[:8])
    for name in [name for name in os.environ if name.startswith("SANDBOX_")]:
        if not name.startswith("SANDBOX_TEST_"):
            monkeypatch.delenv(name)
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    yield made
    made.clean()
