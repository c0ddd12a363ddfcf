"""Page that compares runs: curves of their losses, different fields and scores."""

from collections.abc import Mapping, Sequence

from .figures import compared_loss_figure
from .page import figure_block, note, page, section, table
from .run_record import RunRecord
from .run_report import history_of

Rows = Sequence[Sequence[str]]
"""Name of a value, and its text for each run."""


def comparison_page(
    records: Mapping[str, RunRecord],
    *,
    units: Mapping[str, str],
    fields: Rows,
    scores: Rows,
    notes: Sequence[str],
) -> str:
    """Return the page.

    Args:
        records: records by the name of the run.
        units: word for the tokens of each run.
        fields: fields of the run files that differ.
        scores: scores.
        notes: sentences below the scores.
    """
    histories = {name: history_of(record, units[name]) for name, record in records.items()}
    names = list(records)
    figure = compared_loss_figure(histories)
    scores_and_notes = table(["score", *names], scores) + "".join(map(note, notes))
    body = [
        figure_block(f"Training losses of {', '.join(names)}", figure, wide=True),
        section("Fields that differ", table(["field", *names], fields)),
        section("Scores", scores_and_notes),
    ]
    return page(" and ".join(names), "comparison of runs", "", body)
