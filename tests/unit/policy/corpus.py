"""Ordinary commands of developers and agents, none of which may be rejected by default."""

from pathlib import Path

HERE = Path(__file__).parent


def ordinary() -> list[str]:
    lines = (HERE / "ordinary.txt").read_text().splitlines()
    blocks = (HERE / "ordinary-blocks.txt").read_text().split("\n----\n")
    return [*lines, *(block.strip("\n") for block in blocks)]
