"""ROUGE-1, -2, -L and -Lsum (Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries"), F-measures.

The numbers are those of Google's rouge-score without its stemmer, down to how ties are broken; the tests
compare them. That package is published as source alone and would bring nltk into the image, for these lines.

Words are runs of the letters a to z and of digits, in lower case: text in other scripts scores 0.

A report of a run on questions shows them beside those of the model before, and answers side by side.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

MEASURES = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "rougeLsum": "ROUGE-Lsum"}
"""Names in results, and for people."""
ANSWERS_FILE = "answers.json"

Words = list[str]


def rouge(reference: str, written: str) -> dict[str, float]:
    """Scores of one text, 0 to 1. ROUGE-Lsum takes a line for a sentence."""
    of_reference, of_written = _words(reference), _words(written)
    longest = _table(of_reference, of_written)[-1, -1]
    return {
        "rouge1": _ngram_score(of_reference, of_written, 1),
        "rouge2": _ngram_score(of_reference, of_written, 2),
        "rougeL": _f_measure(int(longest), len(of_reference), len(of_written)),
        "rougeLsum": _summary_score(_sentences(reference), _sentences(written)),
    }


def mean_scores(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([found[name] for found in scores])) for name in MEASURES}


def _words(text: str) -> Words:
    return re.findall(r"[a-z0-9]+", text.lower())


def _sentences(text: str) -> list[Words]:
    return [_words(line) for line in text.split("\n") if line]


def _f_measure(hits: int, num_reference: int, num_written: int) -> float:
    """Return the harmonic mean of recall and precision."""
    return 2 * hits / (num_reference + num_written) if hits else 0.0


def _ngram_score(reference: Words, written: Words, size: int) -> float:
    first, second = (
        Counter(tuple(words[start : start + size]) for start in range(len(words) - size + 1))
        for words in (reference, written)
    )
    return _f_measure((first & second).total(), first.total(), second.total())


def _table(first: Words, second: Words) -> npt.NDArray[np.int32]:
    """Length of the longest common subsequence of each pair of beginnings.

    Shape (len(first) + 1, len(second) + 1).
    """
    numbers = {word: number for number, word in enumerate({*first, *second})}
    columns = np.array([numbers[word] for word in second], dtype=np.int64)
    table = np.zeros((len(first) + 1, len(second) + 1), dtype=np.int32)
    for row, word in enumerate(first, start=1):
        grown = table[row - 1, :-1] + (columns == numbers[word])
        # The cell at the left is the largest of those before it.
        table[row, 1:] = np.maximum.accumulate(np.maximum(table[row - 1, 1:], grown))
    return table


def _common_places(reference: Words, written: Words) -> set[int]:
    """Places in the reference of a longest common subsequence."""
    table = _table(reference, written)
    row, column = len(reference), len(written)
    places = set()
    while row and column:
        if reference[row - 1] == written[column - 1]:
            row, column = row - 1, column - 1
            places.add(row)
        elif table[row, column - 1] > table[row - 1, column]:
            column -= 1
        else:
            row -= 1
    return places


def _summary_score(reference: list[Words], written: list[Words]) -> float:
    """A sentence's hits are the union over the written ones; a word counts as often as both texts have it."""
    left = [Counter(word for sentence in text for word in sentence) for text in (reference, written)]
    hits = 0
    for sentence in reference:
        for place in sorted({place for other in written for place in _common_places(sentence, other)}):
            word = sentence[place]
            if left[0][word] > 0 and left[1][word] > 0:
                hits += 1
                for counts in left:
                    counts[word] -= 1
    return _f_measure(hits, sum(map(len, reference)), sum(map(len, written)))
