"""Rows of cells as text. The first row has the titles."""

from __future__ import annotations


def aligned(rows: list[list[str]]) -> str:
    """For a terminal."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        first, *rest = zip(row, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * (sum(widths) + 2 * (len(widths) - 1)))
    return "\n".join(lines)


def piped(rows: list[list[str]]) -> str:
    """For Markdown."""
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    rule = "| --- |" + " ---: |" * (len(rows[0]) - 1)
    return "\n".join([head, rule, *body])
