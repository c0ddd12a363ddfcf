"""What a run on questions adds to its report: ROUGE beside the model before, and answers side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workloads.esm2.report_page import Card, details, section, table

ANSWERS_FILE = "answers.json"
TITLES = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "rougeLsum": "ROUGE-Lsum"}
ROWS = {**TITLES, "answered": "questions answered"}
SHOWN_ANSWERS = 5


def rouge_cards(results: Mapping[str, Any]) -> list[Card]:
    """Of a finished run; none of any other."""
    return [
        Card(TITLES[name], f"{results[name]:.3f}", f"before {results[f'base_{name}']:.3f}")
        for name in ("rouge1", "rougeLsum")
        if isinstance(results.get(name), float)
    ]


def answer_section(answers: Sequence[Mapping[str, Any]], results: Mapping[str, Any]) -> str:
    """Scores of both models, and the first questions with what they wrote."""
    if not answers:
        return ""
    rows = [
        [title, *(f"{results.get(prefix + name, 0.0):.3f}" for prefix in ("base_", ""))]
        for name, title in ROWS.items()
        if name in results
    ]
    scores = table(["mean over held-out questions", "before", "tuned"], rows)
    shown = "".join(
        details(
            str(answer["question"]),
            table(
                ["", "ROUGE-L", "answer"],
                [
                    ["reference", "", str(answer["reference"])],
                    ["before", _score(answer, "base"), str(answer["base"])],
                    ["tuned", _score(answer, "tuned"), str(answer["tuned"])],
                ],
            ),
        )
        for answer in answers[:SHOWN_ANSWERS]
    )
    return section(f"Answers to {len(answers)} held-out questions", scores + shown)


def _score(answer: Mapping[str, Any], model: str) -> str:
    return f"{answer[f'{model}_scores']['rougeL']:.3f}"
