"""Labels of a column: missing ones, classes that differ only in case, and residues without a label."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from seqlm.proteins.finetune.labels import MISSING_WORDS
from seqlm.training.data.table_rows import Cell
from seqlm.training.strict_yaml import shown

MOST_CLASSES = 1000
"""Number of different labels from which on a column is taken for measurements or texts."""
WARNED_SHARE = 0.2
"""Share of residues with ``-`` above which a warning says what it means."""
NO_LABEL = "-"


@dataclass
class LabelScan:
    """Labels of a column.

    Args:
        name: name of the column, for messages.
    """

    name: str
    labelled: int = 0
    """Number of cells with a label."""
    missing: int = 0
    """Number of empty cells."""
    residue_cells: int = 0
    """Number of cells with one label for each residue."""
    labels: Counter[str] = field(default_factory=Counter)
    """Number of cells, or of residues, by label."""
    is_cut: bool = False
    """Whether there were too many different labels to count all."""

    def look_at(self, cell: Cell, num_residues: int) -> None:
        """Count a cell.

        Args:
            cell: label of a protein.
            num_residues: length of the protein; 0 if it is not known.
        """
        if not cell:
            self.missing += 1
            return
        self.labelled += 1
        items = _items(cell)
        if num_residues > 1 and len(items) == num_residues:
            self.residue_cells += 1
        else:
            items = cell if isinstance(cell, tuple) else (cell,)
        for item in items:
            if item in self.labels or len(self.labels) < MOST_CLASSES:
                self.labels[item] += 1
            else:
                self.is_cut = True

    @property
    def has_residues(self) -> bool:
        """Whether most cells have one label for each residue."""
        return 2 * self.residue_cells > self.labelled

    def describe(self) -> str:
        """Describe the labels in one line."""
        what = "labels of residues" if self.has_residues else "labels"
        found = f"{self.name}: {self.labelled:,} proteins with {what}, {self.missing:,} without"
        if self.is_cut:
            return f"{found}; more than {MOST_CLASSES:,} different ones"
        common = ", ".join(f"{shown(name)} {count:,}" for name, count in self.labels.most_common(5))
        return f"{found}; {len(self.labels):,} different ones: {common}" + (
            ", ..." if len(self.labels) > 5 else ""
        )

    def warnings(self) -> Iterator[str]:
        """Yield what may be wrong with the labels."""
        total = self.labels.total()
        share = self.labels[NO_LABEL] / total if total else 0.0
        if self.has_residues and self.labels[NO_LABEL]:
            text = f"{share:.0%} of the residues of {self.name!r} have {NO_LABEL!r}, which means no label"
            if share > WARNED_SHARE:
                classes = ", ".join(sorted(set(self.labels) - {NO_LABEL}))
                text += f'. If it is a class, as in DSSP, set task.classes: [{classes}, "-"]'
            yield text
        if self.is_cut or self._are_numbers():
            return
        words = [name for name in self.labels if name.lower() in MISSING_WORDS]
        if words:
            yield (
                f"{self.name!r} has {', '.join(map(shown, words))}, which stand for a missing label; "
                "leave such cells empty"
            )
        yield from self._same_names()

    def _are_numbers(self) -> bool:
        """Return whether most labels are numbers."""
        numbers = sum(count for name, count in self.labels.items() if _is_number(name))
        return 2 * numbers > self.labels.total()

    def _same_names(self) -> Iterator[str]:
        """Yield a warning for classes that differ in case or blanks alone."""
        spellings: dict[str, list[str]] = {}
        for name in self.labels:
            spellings.setdefault(" ".join(name.split()).casefold(), []).append(name)
        for names in spellings.values():
            if len(names) > 1:
                spelt = ", ".join(map(shown, names))
                yield (
                    f"{spelt} of {self.name!r} differ only in case or blanks; they are different classes"
                )


def _items(cell: Cell) -> tuple[str, ...]:
    """Return the labels of the residues in a cell: items of a list, words, or letters."""
    if isinstance(cell, tuple):
        return cell
    words = (cell or "").split()
    return tuple(words if len(words) > 1 else cell or "")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.lower() not in MISSING_WORDS
