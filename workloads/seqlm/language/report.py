"""Report sections of a run on questions: ROUGE before and after, and the first answers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seqlm.training.report.page import Card, details, section, table
from seqlm.training.report.run_report import ReportContents
from seqlm.training.strict_yaml import read_mapping

from .rouge import ANSWERS_FILE, MEASURES

ROWS = {**MEASURES, "answered": "questions answered"}
"""Rows of the table of scores: names in results, and titles."""
SHOWN_ANSWERS = 5


class AnswerContents(ReportContents):
    """Contents of the report of a run on questions."""

    unit = "tokens"
    records = "conversations"
    groups = "questions"
    predicted = "response token"

    def __init__(self) -> None:
        self._answers: Sequence[Mapping[str, Any]] = ()

    def read(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        self._answers = read_mapping(run_dir / ANSWERS_FILE).get("answers", ())

    def cards(
        self, evaluations: Sequence[Mapping[str, Any]], results: Mapping[str, Any]
    ) -> list[Card]:
        """Return ROUGE, which a finished run has, and the cards of every run."""
        rouge = [
            Card(MEASURES[name], f"{results[name]:.3f}", f"before {results[f'base_{name}']:.3f}")
            for name in ("rouge1", "rougeLsum")
            if isinstance(results.get(name), float)
        ]
        return [*rouge, *super().cards(evaluations, results)]

    def section(self, results: Mapping[str, Any]) -> str:
        """Return the scores of both models, and their answers to the first questions."""
        if not self._answers:
            return ""
        rows = [
            [title, f"{results.get(f'base_{name}', 0.0):.3f}", f"{results[name]:.3f}"]
            for name, title in ROWS.items()
            if name in results
        ]
        scores = table(["mean over held-out questions", "before", "tuned"], rows)
        shown = "".join(_answer(answer) for answer in self._answers[:SHOWN_ANSWERS])
        return section(f"Answers to {len(self._answers)} held-out questions", scores + shown)

    def subtitle(self, config: Mapping[str, Any]) -> str:
        return "questions and answers"


def _answer(answer: Mapping[str, Any]) -> str:
    """Return a question with the answers of both models as HTML."""
    rows = [["reference", "", str(answer["reference"])]]
    for title, model in (("before", "base"), ("tuned", "tuned")):
        rows.append([title, f"{answer[f'{model}_scores']['rougeL']:.3f}", str(answer[model])])
    return details(str(answer["question"]), table(["", "ROUGE-L", "answer"], rows))
