"""The Python interface gives the answers of the commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from seqlm.api import Model, load
from seqlm.proteins.contacts import head as contact_head
from seqlm.proteins.contacts.command import contacts
from seqlm.proteins.contacts.head import ContactHead
from seqlm.proteins.inference.embed import embed
from seqlm.proteins.inference.predict import predict
from seqlm.proteins.inference.variants import variants
from seqlm.proteins.model.pretrained import load_model
from seqlm.runs.run_file import RunFile
from seqlm.training.processes import Processes
from tests.workloads.proteins.inference.conftest import configured, fasta, here, sequences  # noqa: F401
from tests.workloads.proteins.inference.test_predictions import save_head
from tests.workloads.proteins.inference.written import rows

BOTH_FAMILIES = True
WILD = "MKTAYIAKQRQISFVKSHFSRQ"


@pytest.fixture
def model(tiny_model: Path) -> Model:
    return load(str(tiny_model))


def test_embeddings_are_those_of_the_command(
    configured: Callable[..., RunFile],  # noqa: F811
    model: Model,
    here: Processes,  # noqa: F811
    fasta: Path,  # noqa: F811
    sequences: list[str],  # noqa: F811
    tmp_path: Path,
) -> None:
    for pooling, layer in (("mean", -1), ("std", 1), ("none", -1)):
        out = tmp_path / f"{pooling}.parquet"
        embed(configured(input=[str(fasta)], output=str(out), pooling=pooling, layers=layer), here)
        expected = [np.array(row["embedding"], dtype=np.float32) for row in rows(out)]
        found = model.embed(sequences, pooling=pooling, layer=layer)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)
    assert model.embed({"a": WILD, "b": WILD[:5]}).shape == (2, 32) and model.embed([]).shape == (
        0,
        32,
    )


def test_scores_of_variants_and_contacts_are_those_of_the_commands(
    configured: Callable[..., RunFile],  # noqa: F811
    tiny_model: Path,
    here: Processes,  # noqa: F811
    tmp_path: Path,
) -> None:
    wild = tmp_path / "wild.fasta"
    wild.write_text(f">w\n{WILD}\n")
    settings = partial(configured, input=[str(wild)])
    variants(settings(output=str(tmp_path / "variants.csv")), here)
    expected = pd.read_csv(tmp_path / "variants.csv")[["mutation", "score"]]
    model = load(str(tiny_model))
    pd.testing.assert_frame_equal(model.variants(WILD), expected, check_dtype=False, atol=1e-5)
    some = model.variants(WILD, ["M1A", "K2R:T3G"])
    assert some["score"][0] == pytest.approx(
        expected.set_index("mutation")["score"]["M1A"], abs=1e-5
    )
    assert list(some["mutation"]) == ["M1A", "K2R:T3G"] and not len(model.variants(WILD, []))

    (fitted := tmp_path / "fitted").mkdir()
    for file in tiny_model.iterdir():
        (fitted / file.name).write_bytes(file.read_bytes())
    weights = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32) * 9
    contact_head.save(load_model(str(fitted)), str(fitted), ContactHead(weights, -0.5))
    contacts(settings(model=str(fitted), output=str(tmp_path / "contacts.csv")), here)
    [written] = (tmp_path / "contacts").glob("*.npz")
    np.testing.assert_allclose(
        load(str(fitted)).contacts(WILD), np.load(written)["contacts"], atol=1e-6
    )


def test_predictions_are_those_of_the_command(
    configured: Callable[..., RunFile],  # noqa: F811
    tiny_model: Path,
    here: Processes,  # noqa: F811
    fasta: Path,  # noqa: F811
    sequences: list[str],  # noqa: F811
    tmp_path: Path,
) -> None:
    config = AutoConfig.from_pretrained(tiny_model)
    names = {0: "cytoplasm", 1: "membrane", 2: "nucleus"}
    folder = save_head(
        tmp_path / "tuned",
        config,
        AutoModelForSequenceClassification,
        id2label=names,
        problem_type="single_label_classification",
    )
    predict(
        configured(model=str(folder), input=[str(fasta)], output=str(tmp_path / "out.csv")), here
    )
    found = load(str(folder)).predict({f"P{n}": text for n, text in enumerate(sequences)})
    pd.testing.assert_frame_equal(
        found, pd.read_csv(tmp_path / "out.csv"), check_dtype=False, atol=1e-5
    )
    with pytest.raises(ValueError, match="has been fine-tuned for a task"):
        load(str(folder)).variants(WILD)


def test_perplexity_is_that_of_one_mask_at_a_time(model: Model, tiny_model: Path) -> None:
    theirs = AutoModelForMaskedLM.from_pretrained(tiny_model).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_model)

    def losses(text: str) -> Iterator[float]:
        for place, token in enumerate(tokenizer(text)["input_ids"][1:-1], start=1):
            ids = tokenizer(text, return_tensors="pt").input_ids
            ids[0, place] = tokenizer.mask_token_id
            with torch.no_grad():
                yield -float(theirs(ids).logits[0, place].log_softmax(-1)[token])

    expected = [np.exp(np.mean(list(losses(text)))) for text in (WILD, WILD[:6])]
    np.testing.assert_allclose(model.perplexity([WILD, WILD[:6]]), expected, rtol=1e-4)


def test_long_work_shows_progress(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    model.embed([WILD])
    assert not capsys.readouterr().err
    model.embed([WILD * 100])
    assert "100%" in capsys.readouterr().err


def test_wrong_input_is_refused_with_its_place(model: Model) -> None:
    for call, reason in (
        (lambda: model.embed(WILD), "proteins: got one string"),
        (lambda: model.embed([WILD, "MK-T"]), r"protein 1: .*'-' at position 3 is not a residue"),
        (lambda: model.embed({"x": ""}), "x: the sequence is empty"),
        (lambda: model.embed({"x": "ACGT" * 20}), "x: the sequence looks like DNA or RNA"),
        (lambda: model.embed([WILD], pooling="median"), "pooling: got 'median'; allowed are mean"),
        (
            lambda: model.variants(WILD, ["A1G"]),
            r"has M at position 1.*number 1 \(first_position\)",
        ),
        (lambda: model.variants(WILD, "M1A"), "mutations: got one string; give a list of names"),
        (lambda: model.variants(WILD, [None]), "mutations: got None in the list"),  # type: ignore[list-item]
        (
            lambda: model.variants(WILD, ["M1A"], first_position="x"),  # type: ignore[arg-type]
            "first_position: got 'x'; expected a whole number",
        ),
        (
            lambda: model.variants(WILD, ["M1A"], first_position=True),
            "first_position: got True; expected a whole number",
        ),
        (lambda: model.contacts(WILD * 200), "has 4400 residues; allowed are"),
        (lambda: model.predict([WILD]), "without a task"),
        (lambda: load("no/such/folder"), "model: there is no folder"),
    ):
        with pytest.raises(ValueError, match=reason):
            call()
