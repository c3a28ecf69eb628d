"""Tables of text and figures, which commands print without loading numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A table of text cells.

    Attributes:
        title: title, including units; may be empty.
        header: a name for each column.
        rows: rows as long as the header.
        words: number of text columns, from the left; the others are figures.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1

    def to_text(self) -> str:
        """Return aligned columns under the title."""
        table = [self.header, *self.rows]
        widths = [max(len(row[column]) for row in table) for column in range(len(self.header))]
        lines = [self.title] if self.title else []
        for row in table:
            cells = [cell.ljust(width) for cell, width in zip(row[: self.words], widths, strict=False)]
            cells += [cell.rjust(width) for cell, width in zip(row, widths, strict=True)][self.words :]
            lines.append(("  " if self.title else "") + "  ".join(cells).rstrip())
        return "\n".join(lines)

    def to_markdown(self) -> str:
        """Return a table for a Markdown document, under its title as a heading."""
        rule = "|" + "---|" * self.words + "---:|" * (len(self.header) - self.words)
        header, *rows = (f"| {' | '.join(row)} |" for row in [self.header, *self.rows])
        return "\n".join([*([f"## {self.title}", ""] if self.title else []), header, rule, *rows])
