"""What the documents tell people to do works."""

from pathlib import Path

import pytest

from sandbox_sdk import SandboxClient
from tests.docs.blocks import blocks, run_blocks

pytestmark = pytest.mark.timeout(600)  # Many processes, each with its own start.

ROOT = Path(__file__).parents[2]


def test_readme(url: str, tmp_path: Path, reader_env: dict[str, str]) -> None:
    assert run_blocks(ROOT / "README.md", url=url, folder=tmp_path, env=reader_env) >= 3


@pytest.mark.parametrize("language", ["bash", "python"])
def test_api_reference(language: str, url: str, tmp_path: Path, reader_env: dict[str, str]) -> None:
    """Its examples speak of two files and a Makefile that a reader would have."""
    (tmp_path / "local.py").write_text("print(1)\n")
    with SandboxClient("conv-42", server_url=url) as sandbox:
        sandbox.write_text("out.csv", "a,b\n")
        sandbox.write_text("Makefile", "all:\n\techo made\n")
    path = ROOT / "API_REFERENCE.md"
    ran = run_blocks(path, url=url, folder=tmp_path, env=reader_env, languages=(language,))
    assert ran >= 8


def test_integration_guide(url: str, tmp_path: Path, reader_env: dict[str, str]) -> None:
    path = ROOT / "INTEGRATION_GUIDE.md"
    assert run_blocks(path, url=url, folder=tmp_path, env=reader_env) >= 12


def test_examples_that_do_not_do_what_they_say(tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    for text in (
        "```python\n1 / 0\n```\n",
        "```bash\nfalse\n```\n",
        "```console\n$ echo one\ntwo\n```\n",
        "```console\n$ echo one\n```\n",
    ):
        document.write_text(f"Text.\n\n{text}")
        with pytest.raises(AssertionError, match=r"document\.md:4"):
            run_blocks(document, url="", folder=tmp_path, env={"PATH": "/usr/bin:/bin"})


def test_examples_build_on_each_other(tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    document.write_text(
        "```bash\nexport A=1; cd /; echo 5 > $OLDPWD/five\n```\n"
        "```python\nfrom pathlib import Path\nfive = Path('five').read_text()\n```\n"
        "<!-- not run: would take too long -->\n```bash\nfalse\n```\n"
        "```json\n{\n```\n"
        "```console\n$ echo $A \\\n> two\n1 two\n$ echo http://localhost:8000/x\nhere/x\n```\n"
        "```python\nassert five == '5\\n'\n```\n"
    )
    env = {"PATH": "/usr/bin:/bin"}
    assert run_blocks(document, url="here", folder=tmp_path, env=env) == 4
    assert [block.line for block in blocks(document)] == [2, 5, 16, 23]
