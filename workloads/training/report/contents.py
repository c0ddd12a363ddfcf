"""Report sections that depend on the objective of a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .page import Card, first_number, formatted


class ReportContents:
    """Report sections of pre-training on proteins; subclasses are those of other objectives."""

    unit = "residues"
    records = "proteins"
    groups = "clusters"
    """Unit that a split never divides, in the table of the data."""
    predicted: str | None = "masked residue"
    """Target of the cross-entropy loss; None for another loss."""
    parameters_note = ""
    score_titles: Mapping[str, str] = {}
    """Titles of scores by their names in the log, which have ``eval_`` before."""

    def read(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        """Read what is shown from files of the run, as far as they are there."""
        return

    def cards(self, evaluations: Sequence[Mapping[str, Any]], results: Mapping[str, Any]) -> list[Card]:
        """Headline scores."""
        known = {name: value for name, value in results.items() if value is not None}
        found = {**last_validation(evaluations), **known}
        test_perplexity = first_number(results.get("test_perplexity"))
        unigram = first_number(results.get("unigram_perplexity"))
        notes = [f"test {test_perplexity:.2f}"] if test_perplexity is not None else []
        notes += [f"unigram {unigram:.2f}"] if unigram is not None else []
        test_accuracy = first_number(results.get("test_accuracy"))
        return [
            Card(
                "Validation perplexity",
                formatted(first_number(found.get("perplexity")), "{:.2f}"),
                ", ".join(notes),
            ),
            Card(
                "Validation accuracy",
                formatted(first_number(found.get("eval_accuracy")), "{:.1%}"),
                f"test {test_accuracy:.1%}" if test_accuracy is not None else f"of {self.predicted}s",
            ),
        ]

    def section(self, results: Mapping[str, Any]) -> str:
        """HTML between the loss and the training's figures; empty for none."""
        return ""

    def subtitle(self, config: Mapping[str, Any]) -> str:
        """Return the name of the trained model, in a word or two."""
        model = config.get("model")
        if not isinstance(model, Mapping) or model.get("init_from") or "size" not in model:
            return ""
        return f"ESM-2 {model['size']}"


def last_validation(evaluations: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The last evaluation of the validation split; empty if there is none."""
    return next((line for line in reversed(evaluations) if line.get("split") == "validation"), {})
