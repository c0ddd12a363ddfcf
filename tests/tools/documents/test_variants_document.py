"""The pages on variants have the tables of scores and splits, and names that are read."""

import re
from pathlib import Path

import pytest

from seqlm.proteins.finetune.variants.kinds import VARIANT_SPLITS
from seqlm.proteins.inference.variant_scores import SCORES
from seqlm.proteins.mutations.names import described

PAGE = Path("docs/variants.md").read_text()


@pytest.mark.parametrize("name", SCORES)
def test_scores_are_described(name: str) -> None:
    score = SCORES[name]
    takes = "yes" if score.takes_indels else "no"
    cells = [f"`{name}`", score.formula, score.passes, takes, score.exactness, score.use]
    assert f"| {' | '.join(cells)} |" in PAGE


@pytest.mark.parametrize("name", VARIANT_SPLITS)
def test_splits_are_described(name: str) -> None:
    kind = VARIANT_SPLITS[name]
    takes = "yes" if kind.takes_indels else "no"
    cells = [f"`{name}`", kind.test, kind.validation, takes, kind.use]
    assert f"| {' | '.join(cells)} |" in Path("docs/fine-tuning-variants.md").read_text()


def test_every_name_in_the_table_of_names_is_read() -> None:
    names = PAGE.split("| form | examples |")[1].split("\n\n")[0]
    found = [name for name in re.findall(r"`([^`]+)`", names) if len(name) > 1]
    assert len(found) > 15
    for name in found:
        described(name)
