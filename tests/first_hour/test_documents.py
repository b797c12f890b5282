"""What the documents tell people to do works, with nothing but the wheel."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox_sdk import SandboxClient
from sandbox_server.runtime import disk_pool
from tests.first_hour.newcomer import ROOT, Newcomer
from tests.first_hour.reader import blocks

pytestmark = pytest.mark.timeout(900)  # The first one installs.


@pytest.fixture
def local(newcomer: Newcomer, machine: dict[str, str]) -> Iterator[Newcomer]:
    """With sandboxes of its own process, which end after the test."""
    state = newcomer.folder / "state"
    own = replace(newcomer, env={**newcomer.env, **machine, "SANDBOX_STATE_DIR": str(state)})
    yield own
    assert own("sandbox", "rm", "--all").returncode == 0


def test_readme(remote: Newcomer) -> None:
    assert remote.reads(ROOT / "README.md") >= 3


@pytest.mark.parametrize("language", ["bash", "python"])
def test_api_reference(language: str, remote: Newcomer, url: str) -> None:
    """Its examples speak of two files and a Makefile that a reader would have."""
    (remote.folder / "local.py").write_text("print(1)\n")
    with SandboxClient("conv-42", server_url=url) as sandbox:
        sandbox.write_text("out.csv", "a,b\n")
        sandbox.write_text("Makefile", "all:\n\techo made\n")
    assert remote.reads(ROOT / "API_REFERENCE.md", language) >= 8


def test_integration_guide(remote: Newcomer) -> None:
    assert remote.reads(ROOT / "INTEGRATION_GUIDE.md") >= 12


def test_the_sdk(local: Newcomer) -> None:
    assert local.reads(ROOT / "docs" / "sdk.md") >= 4
    assert local.reads(ROOT / "docs" / "registry.md") == 1
    assert local.reads(ROOT / "docs" / "mounts.md") == 1
    assert local.reads(ROOT / "docs" / "volumes.md") == 1
    assert local.reads(ROOT / "docs" / "network.md") == 4
    assert local.reads(ROOT / "docs" / "access.md") == 1
    assert local.reads(ROOT / "docs" / "usage.md") == 1
    assert local.reads(ROOT / "docs" / "events.md") == 2
    assert local.reads(ROOT / "docs" / "operations.md") == 1


def test_the_audit_log(local: Newcomer) -> None:
    assert local.reads(ROOT / "docs" / "audit.md") == 3


def test_durable_threads(local: Newcomer) -> None:
    if why := disk_pool.outlook(local.folder, wanted=True):
        pytest.skip(f"undo: {why}")
    assert local.reads(ROOT / "docs" / "durability.md") == 2


def test_boxes(remote: Newcomer) -> None:
    assert remote.reads(ROOT / "docs" / "boxes" / "README.md") == 3


@pytest.mark.rest
@pytest.mark.parametrize(
    "text",
    [
        "```python\n1 / 0\n```\n",
        "```bash\nfalse\n```\n",
        "```console\n$ echo one\ntwo\n```\n",
        "```console\n$ echo one\n```\n",
    ],
)
def test_examples_that_do_not_do_what_they_say(text: str, newcomer: Newcomer) -> None:
    document = newcomer.folder / "document.md"
    document.write_text(f"Text.\n\n{text}")
    with pytest.raises(AssertionError, match=r"document\.md:4"):
        newcomer.reads(document)


def test_examples_build_on_each_other(newcomer: Newcomer) -> None:
    document = newcomer.folder / "document.md"
    document.write_text(
        "```bash\nexport A=1; cd /; echo 5 > $OLDPWD/five\n```\n"
        "```python\nimport os\nfrom pathlib import Path\nfive = Path('five').read_text()\n```\n"
        "<!-- not run: would take too long -->\n```bash\nfalse\n```\n"
        "```json\n{\n```\n"
        "```console\n$ echo $A \\\n> two\n1 two\n$ echo http://localhost:8000/x\nhere/x\n```\n"
        "```python\nassert (five, os.environ['A']) == ('5\\n', '1')\n```\n"
    )
    assert newcomer.reads(document, env={"READER_URL": "here"}) == 4
    assert [block.line for block in blocks(Path(document))] == [2, 5, 17, 24]
