"""Page of the scorecard."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seqlm.training.report.page import definition_table, details, note, page, section, table

from .model_scores import ModelScores
from .picture import KNOWN, LEGEND, STYLE, Value, score_block
from .references import Reference
from .row import Row

NOTE = (
    "The bundled data are small. They show that a model works, and compare models with each other. They give "
    "no verdict."
)
NO_REFERENCES = "No value of another model is known for these data. scorecard.record adds values."
GYM = "ProteinGym"
MODEL_FOLDER = "model"
"""Folder of the model in the folder of a run."""
SHOWN_PARTS = 3
"""Number of parts of a path below the title."""


def scorecard_page(
    scored: Sequence[ModelScores], references: Sequence[Reference], facts: Mapping[str, Any]
) -> str:
    """Return the page.

    Args:
        scored: models with the same scores in the same order.
        references: other models with known values.
        facts: machine and versions.
    """
    names = short_names([one.model for one in scored])
    bundled: list[str] = []
    gym: list[str] = []
    is_known = False
    for rows in zip(*(one.rows for one in scored), strict=True):
        first = rows[0]
        block = score_block(first, list(_values(names, rows, references)))
        (gym if first.name.startswith(GYM) else bundled).append(block)
        is_known = is_known or any(one.value_of(first) is not None for one in references)
    notes = [NOTE, LEGEND, *([] if is_known else [NO_REFERENCES])]
    of_gym = [text for one in scored for text in one.notes]
    parts = [section("Scores", _notes(notes) + _grid(bundled))]
    if gym:
        parts.append(section("ProteinGym, zero-shot", _notes(of_gym) + _grid(gym)))
    parts.append(details("Data and methods", _methods(scored[0].rows)))
    parts.append(section("Run", definition_table(_run(scored, references, facts))))
    paths = ["/".join(Path(one.model).parts[-SHOWN_PARTS:]) for one in scored]
    return page("Scorecard", " \N{MIDDLE DOT} ".join(paths), "", parts, style=STYLE)


def short_names(models: Sequence[str]) -> list[str]:
    """Return the ends of the names of models, as short as they differ, without the folder ``model``."""
    parts = []
    for model in models:
        path = Path(model)
        parts.append((path.parent if path.name == MODEL_FOLDER else path).parts)
    for length in range(1, max(map(len, parts)) + 1):
        found = ["/".join(one[-length:]) for one in parts]
        if len(set(found)) == len(found):
            return found
    return list(models)


def _values(
    names: Sequence[str], rows: Sequence[Row], references: Sequence[Reference]
) -> Iterator[Value]:
    """Yield the values of a score: models, baseline, other models, published."""
    first = rows[0]
    for name, row in zip(names, rows, strict=True):
        yield Value(name, row.value, "model")
    yield Value(first.compared.baseline_of.split(":")[0], first.compared.baseline, "baseline")
    for one in references:
        value = one.value_of(first)
        if value is not None:
            yield Value(short_names([one.model])[0], value, "known")
    for name, row in zip(names, rows, strict=True):
        if row.published is not None:
            yield Value(f"{name}, published", row.published, "published")


def _notes(sentences: Sequence[str]) -> str:
    return "".join(map(note, sentences))


def _grid(blocks: Sequence[str]) -> str:
    return f'<div class="scores">{"".join(blocks)}</div>'


def _methods(rows: Sequence[Row]) -> str:
    """Return the table of data and methods."""
    cells = [
        (row.name, row.data, row.protocol, row.compared.chance_of, row.compared.baseline_of)
        for row in rows
    ]
    return table(("score", "data", "method", "chance", "baseline"), cells)


def _run(
    scored: Sequence[ModelScores], references: Sequence[Reference], facts: Mapping[str, Any]
) -> list[tuple[str, object]]:
    """Return settings, seconds, known models and machine."""
    pairs: list[tuple[str, object]] = []
    for one in scored:
        pairs.append(("model", one.model))
        pairs.append(("precision", one.settings["precision"]))
        pairs += [(f"seconds: {part}", seconds) for part, seconds in one.seconds.items()]
    for known in references:
        revision = known.revision or "a folder"
        text = f"{known.model}, {revision}, {known.precision}, {known.date}"
        pairs.append((f"{KNOWN} reference", text))
    pairs += [(name, value) for name, value in facts.items() if value is not None]
    return pairs
