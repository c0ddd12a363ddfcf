"""Tables that commands print."""

from collections.abc import Sequence

from seqlm.training.command_line import escaped

MAX_CELL_CHARS = 48
"""Length to which a cell is cut."""
ABSENT = "-"
"""Cell without a value."""


def text_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in columns, whose cells control no terminal."""
    lines = [[_cell(text) for text in row] for row in (titles, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cell(text: str) -> str:
    safe = escaped(text)
    return safe if len(safe) <= MAX_CELL_CHARS else f"{safe[: MAX_CELL_CHARS - 3]}..."
