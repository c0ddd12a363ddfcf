"""Damage that spreadsheets do to names: they become dates or numbers, or are cut."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from seqlm.training.strict_yaml import shown

CELL_CHARACTERS = 32_767
"""Largest number of characters of a cell in Excel and LibreOffice; longer texts are cut."""
SHOWN_EXAMPLES = 3
LONGEST_DAMAGED = 40
"""Number of characters above which a cell is no date and no number."""
MOSTLY = 0.5
"""Share of cells with letters from which on a column holds names."""
FIRST_SERIAL = 25_569
"""Number of 1 January 1970 in spreadsheets, which count the days since 1899-12-30."""
LAST_SERIAL = 62_000
"""Number of a day in 2069."""
_MONTH = (
    r"(jan|feb|mar|apr|may|jun|jul|aug|sep|sept|oct|nov|dec|mrz|m\u00e4r|m\u00e4rz|mai|okt|dez|januar|februar|"
    r"april|juni|juli|august|september|oktober|november|dezember|january|february|march|june|july|october|"
    r"december)"
)
_DATES = re.compile(
    r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2})?.*)?"  # 2021-03-01, with a time from a workbook
    r"|\d{1,2}[./]\d{1,2}[./]\d{2,4}"  # 01.03.2021, 3/1/2021
    rf"|\d{{1,2}}[-. ]{{1,2}}{_MONTH}\.?([-. ]\d{{2,4}})?"  # 1-Mar, 01. Mrz 21
    rf"|{_MONTH}\.?[- ]\d{{2,4}}",  # Mar-01
    re.IGNORECASE,
)
_SCIENTIFIC = re.compile(r"\d(\.\d+)?[eE]\+\d{1,3}|\d,\d+[eE]\+\d{1,3}")
_SERIAL = re.compile(r"\d{5}")


class Damage(Enum):
    """Kind of damage. The value describes cells that have it."""

    DATE = "look like dates"
    SERIAL = "look like the numbers of dates"
    SCIENTIFIC = "are in scientific notation"
    CUT = f"have {CELL_CHARACTERS:,} characters, the largest number in a spreadsheet's cell"


ADVICE: Mapping[Damage, str] = {
    Damage.DATE: "a spreadsheet may have changed names such as MARCH1 or SEPT2; take them from the source",
    Damage.SERIAL: "a spreadsheet may have changed names such as MARCH1 or SEPT2; take them from the source",
    Damage.SCIENTIFIC: "a spreadsheet may have changed names such as 2310009E13; take them from the source",
    Damage.CUT: "a spreadsheet may have cut them; take them from the source",
}


@dataclass
class ColumnScan:
    """Cells of a column, as far as damage is concerned.

    Args:
        name: name of the column, for messages.
        holds_names: whether the column holds ids or mutations. Other columns may hold dates and numbers, and
            their cells count only if most of the others have letters.
    """

    name: str
    holds_names: bool
    cells: int = 0
    """Number of cells that are not empty."""
    with_letters: int = 0
    """Number of cells with letters that are no dates and no numbers."""
    counts: Counter[Damage] = field(default_factory=Counter)
    examples: dict[Damage, list[str]] = field(default_factory=dict)

    def look_at(self, where: str, cell: str) -> None:
        """Look at a cell.

        Args:
            where: place of the cell.
            cell: text of the cell, which is not empty.
        """
        self.cells += 1
        found = damage_of(cell)
        if found is None:
            self.with_letters += any(character.isalpha() for character in cell[:LONGEST_DAMAGED])
            return
        self.counts[found] += 1
        examples = self.examples.setdefault(found, [])
        if len(examples) < SHOWN_EXAMPLES:
            examples.append(f"{where} {shown(cell)}")

    def warnings(self) -> list[str]:
        """Describe the damage, in one line for each kind."""
        return [
            f"{count:,} of {self.cells:,} cells of {self.name!r} {found.value}, first {self._first(found)}; "
            f"{ADVICE[found]}"
            for found, count in self.counts.items()
            if self._is_damage(found)
        ]

    def _first(self, found: Damage) -> str:
        return ", ".join(self.examples[found])

    def _is_damage(self, found: Damage) -> bool:
        """Return whether cells of a kind are damaged, and not what the column holds."""
        if found is Damage.CUT:
            return True
        holds_other_names = self.with_letters >= MOSTLY * self.cells
        if found is Damage.SERIAL:
            return holds_other_names  # ids may be numbers
        return self.holds_names or holds_other_names


def damage_of(cell: str) -> Damage | None:
    """Return the damage that a text may have; None if it looks like none."""
    if len(cell) == CELL_CHARACTERS:
        return Damage.CUT
    if len(cell) > LONGEST_DAMAGED:
        return None
    if _DATES.fullmatch(cell):
        return Damage.DATE
    if _SCIENTIFIC.fullmatch(cell):
        return Damage.SCIENTIFIC
    if _SERIAL.fullmatch(cell) and FIRST_SERIAL <= int(cell) <= LAST_SERIAL:
        return Damage.SERIAL
    return None
