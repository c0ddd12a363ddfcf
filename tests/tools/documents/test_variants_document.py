"""The page on variants has the table of scores, and names that are read."""

import re
from pathlib import Path

import pytest

from seqlm.proteins.inference.variant_scores import SCORES
from seqlm.proteins.mutations.names import described

PAGE = Path("docs/variants.md").read_text()


@pytest.mark.parametrize("name", SCORES)
def test_scores_are_described(name: str) -> None:
    score = SCORES[name]
    takes = "yes" if score.takes_indels else "no"
    cells = [f"`{name}`", score.formula, score.passes, takes, score.exactness, score.use]
    assert f"| {' | '.join(cells)} |" in PAGE


def test_every_name_in_the_table_of_names_is_read() -> None:
    names = PAGE.split("| form | examples |")[1].split("\n\n")[0]
    found = [name for name in re.findall(r"`([^`]+)`", names) if len(name) > 1]
    assert len(found) > 15
    for name in found:
        described(name)
