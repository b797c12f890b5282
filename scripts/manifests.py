"""Writes deploy/kubernetes/manifests from the chart, for who has no Helm. Run it after a change."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "deploy/kubernetes/manifests"
NAME = "agent-sandbox"
"""Of the release, and of its namespace."""
_HEAD = "# Written by scripts/manifests.py from ../chart: change that.\n"
_NAMESPACE = f"""apiVersion: v1
kind: Namespace
metadata:
  name: {NAME}
  labels:
    pod-security.kubernetes.io/enforce: restricted
"""


def manifests() -> dict[str, str]:
    """File names, and what they contain."""
    shown = subprocess.run(
        [ROOT / "scripts/chart.sh", "template", NAME, NAME],
        stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    parts: dict[str, str] = {"namespace.yaml": _NAMESPACE}
    for document in shown.split("---\n# Source: ")[1:]:
        source, _, text = document.partition("\n")
        name = source.rpartition("/")[2]
        text = "".join(f"{line}\n" for line in text.splitlines() if line.strip())
        text = text.replace("managed-by: Helm", "managed-by: kubectl")
        parts[name] = f"{parts[name]}---\n{text}" if name in parts else text
    listed = "".join(f"  - {name}\n" for name in parts)
    files = {name: _HEAD + text for name, text in parts.items()}
    files["kustomization.yaml"] = (
        f"{_HEAD}apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
        f"resources:\n{listed}"
    )
    return files


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in manifests().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
