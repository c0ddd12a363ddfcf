"""ROUGE-1, -2, -L and -Lsum (Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries"), F-measures.

The numbers are equal to those of Google's rouge-score without its stemmer, also for ties, as tests verify.
That package exists only as source code, and would add nltk to the image.

A word is a sequence of the letters a to z and of digits, in lower case. Text in other scripts scores 0.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

MEASURES = {
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "rougeLsum": "ROUGE-Lsum",
}
"""Names in results, and titles."""
ANSWERS_FILE = "answers.json"
"""File in the run's folder with the answers and their scores."""

Words = list[str]


def rouge(reference: str, written: str) -> dict[str, float]:
    """Return the scores of a text, 0 to 1. For ROUGE-Lsum, each line is a sentence."""
    reference_words = _words(reference)
    written_words = _words(written)
    longest = _table(reference_words, written_words)[-1, -1]
    return {
        "rouge1": _ngram_score(reference_words, written_words, 1),
        "rouge2": _ngram_score(reference_words, written_words, 2),
        "rougeL": _f_measure(int(longest), len(reference_words), len(written_words)),
        "rougeLsum": _summary_score(_sentences(reference), _sentences(written)),
    }


def mean_scores(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each score."""
    return {name: float(np.mean([found[name] for found in scores])) for name in MEASURES}


def _words(text: str) -> Words:
    return re.findall(r"[a-z0-9]+", text.lower())


def _sentences(text: str) -> list[Words]:
    return [_words(line) for line in text.split("\n") if line]


def _f_measure(hits: int, num_reference: int, num_written: int) -> float:
    """Return the harmonic mean of recall and precision."""
    return 2 * hits / (num_reference + num_written) if hits else 0.0


def _ngram_score(reference: Words, written: Words, size: int) -> float:
    """Return the F-measure of the sequences of ``size`` words that both texts have."""
    in_reference = _ngram_counts(reference, size)
    in_written = _ngram_counts(written, size)
    return _f_measure((in_reference & in_written).total(), in_reference.total(), in_written.total())


def _ngram_counts(words: Words, size: int) -> Counter[tuple[str, ...]]:
    """Count the sequences of ``size`` words."""
    return Counter(tuple(words[start : start + size]) for start in range(len(words) - size + 1))


def _table(first: Words, second: Words) -> npt.NDArray[np.int32]:
    """Return the lengths of the longest common subsequences of all beginnings of two texts.

    Returns:
        Shape (len(first) + 1, len(second) + 1), by the numbers of words of both beginnings.
    """
    numbers = {word: number for number, word in enumerate({*first, *second})}
    columns = np.array([numbers[word] for word in second], dtype=np.int64)
    table = np.zeros((len(first) + 1, len(second) + 1), dtype=np.int32)
    for row, word in enumerate(first, start=1):
        grown = table[row - 1, :-1] + (columns == numbers[word])
        # A cell is at least as large as the one to its left.
        table[row, 1:] = np.maximum.accumulate(np.maximum(table[row - 1, 1:], grown))
    return table


def _common_places(reference: Words, written: Words) -> set[int]:
    """Return the places in the reference of a longest common subsequence."""
    table = _table(reference, written)
    row = len(reference)
    column = len(written)
    places = set()
    while row and column:
        if reference[row - 1] == written[column - 1]:
            row -= 1
            column -= 1
            places.add(row)
        elif table[row, column - 1] > table[row - 1, column]:
            column -= 1
        else:
            row -= 1
    return places


def _summary_score(reference: list[Words], written: list[Words]) -> float:
    """Return ROUGE-Lsum of two texts, as lists of sentences.

    The hits of a sentence of the reference are the union of its hits with each written sentence. A word
    counts at most as often as it occurs in each text.
    """
    left_in_reference = Counter(word for sentence in reference for word in sentence)
    left_in_written = Counter(word for sentence in written for word in sentence)
    hits = 0
    for sentence in reference:
        places: set[int] = set()
        for other in written:
            places |= _common_places(sentence, other)
        for place in sorted(places):
            word = sentence[place]
            if left_in_reference[word] > 0 and left_in_written[word] > 0:
                hits += 1
                left_in_reference[word] -= 1
                left_in_written[word] -= 1
    return _f_measure(hits, sum(map(len, reference)), sum(map(len, written)))
