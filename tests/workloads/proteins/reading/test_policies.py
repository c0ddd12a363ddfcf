"""Every command does what the policy table says: each cell of the table is a test with the real command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoConfig, AutoModelForSequenceClassification

from seqlm.api import load
from seqlm.proteins.contacts import files as contact_files
from seqlm.proteins.contacts import head as contact_head
from seqlm.proteins.contacts.command import contacts
from seqlm.proteins.contacts.head import ContactHead
from seqlm.proteins.inference import variants as variants_module
from seqlm.proteins.inference.embed import embed
from seqlm.proteins.inference.predict import predict
from seqlm.proteins.inference.variants import variants
from seqlm.proteins.model.pretrained import load_model
from seqlm.proteins.reading.policies import POLICIES, Decision, Kind, Reader, decision
from seqlm.proteins.serving.settings import ServeSettings
from seqlm.training.processes import Processes, processes
from tests.workloads.proteins.inference.test_predictions import save_head
from tests.workloads.proteins.reading.observed import (
    Inference,
    Observed,
    observe_data,
    observe_explore,
    observe_finetune,
    observe_python,
    observe_server,
)
from tests.workloads.proteins.reading.odd_inputs import (
    MAX_RESIDUES,
    OF_STRUCTURES,
    ONLY_TABLES,
    REFERENCES,
)
from tests.workloads.proteins.serving.served import CountingModel, Served, serving

OF_MUTATIONS = (Kind.BAD_MUTATION, Kind.OTHER_PROTEIN, Kind.NO_PROTEIN)
Capture = pytest.CaptureFixture[str]


def kinds_of(reader: Reader) -> list[Kind]:
    """Return the oddities that a reader can meet, without those inside structures."""
    return [
        kind
        for kind, policy in POLICIES.items()
        if reader in policy.decisions and kind not in OF_STRUCTURES
    ]


def of_proteins(reader: Reader) -> list[Kind]:
    """Return the oddities of proteins that a reader can meet."""
    return [kind for kind in kinds_of(reader) if kind not in OF_MUTATIONS]


def check(observed: Observed, kind: Kind, reader: Reader) -> None:
    """Compare with the table. What is left out is counted by its kind."""
    assert observed.decision is decision(kind, reader), observed.said
    if observed.decision is Decision.REJECT:
        assert f"left out 1 ({POLICIES[kind].counted(1)})" in observed.said


@pytest.fixture(scope="module")
def here() -> Iterator[Processes]:
    with processes() as found:
        yield found


@pytest.fixture(scope="module")
def commands(
    tiny_model: Path, here: Processes, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Inference]:
    """Commands of inference with their models."""
    folder = tmp_path_factory.mktemp("models")
    tuned = save_head(
        folder / "tuned",
        AutoConfig.from_pretrained(tiny_model),
        AutoModelForSequenceClassification,
        id2label={0: "a", 1: "b"},
        problem_type="single_label_classification",
    )
    (fitted := folder / "fitted").mkdir()
    for file in tiny_model.iterdir():
        (fitted / file.name).write_bytes(file.read_bytes())
    weights = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32) * 9
    contact_head.save(load_model(str(fitted)), str(fitted), ContactHead(weights, -0.5))

    def numbers(column: str) -> Any:
        return lambda rows: np.array([row[column] for row in rows], dtype=np.float32)

    return {
        "embed": Inference(embed, tiny_model, here, numbers("embedding"), ".parquet"),
        "predict": Inference(predict, tuned, here, numbers("probability_a")),
        "variants": Inference(variants, tiny_model, here, numbers("score")),
        "contacts": Inference(contacts, fitted, here, numbers("probability")),
    }


class Undrawn:
    """Figure whose file is empty."""

    def savefig(self, file: Path, **_: object) -> None:
        file.touch()


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture takes a second, and shows nothing of what is left out."""
    monkeypatch.setattr(contact_files, "prediction_figure", lambda *_: Undrawn())
    monkeypatch.setattr(variants_module, "draw_heat_maps", lambda table, model, first: [])
    monkeypatch.setattr(
        variants_module, "write_positions", lambda table, model, first, has_chains: []
    )


def inference_cases() -> Iterator[tuple[str, Kind, str]]:
    """Yield command, oddity and format; ``embed`` reads both formats."""
    for kind in of_proteins(Reader.INFERENCE):
        form = "csv" if kind in ONLY_TABLES else "fasta"
        for command in ("embed", "predict", "variants"):
            yield command, kind, form
        if kind not in ONLY_TABLES:
            yield "embed", kind, "csv"


@pytest.mark.long
@pytest.mark.parametrize(("command", "kind", "form"), list(inference_cases()))
def test_inference(
    command: str,
    kind: Kind,
    form: str,
    commands: dict[str, Inference],
    tmp_path: Path,
    capsys: Capture,
) -> None:
    observed = commands[command].observe(kind, form, tmp_path, capsys)
    check(observed, kind, Reader.INFERENCE)


@pytest.mark.parametrize("kind", OF_MUTATIONS)
def test_mutations(
    kind: Kind, commands: dict[str, Inference], tmp_path: Path, capsys: Capture
) -> None:
    observed = commands["variants"].observe_mutation(kind, tmp_path, capsys)
    check(observed, kind, Reader.INFERENCE)


@pytest.mark.long
@pytest.mark.parametrize("kind", kinds_of(Reader.CONTACTS))
def test_contacts(
    kind: Kind, commands: dict[str, Inference], tmp_path: Path, capsys: Capture
) -> None:
    form = "csv" if kind in ONLY_TABLES else "fasta"
    check(commands["contacts"].observe(kind, form, tmp_path, capsys), kind, Reader.CONTACTS)


@pytest.mark.parametrize("kind", kinds_of(Reader.DATA))
def test_data(kind: Kind, tmp_path: Path, capsys: Capture) -> None:
    check(observe_data(kind, tmp_path, capsys), kind, Reader.DATA)


@pytest.mark.parametrize("kind", kinds_of(Reader.FINETUNE))
def test_finetune(kind: Kind, tmp_path: Path, capsys: Capture) -> None:
    check(observe_finetune(kind, tmp_path, capsys), kind, Reader.FINETUNE)


@pytest.mark.parametrize("kind", kinds_of(Reader.EXPLORE))
def test_explore(kind: Kind, tmp_path: Path, capsys: Capture) -> None:
    check(observe_explore(kind, tmp_path, capsys), kind, Reader.EXPLORE)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(CountingModel(), ServeSettings(max_residues=MAX_RESIDUES)) as found:
        yield found


@pytest.mark.parametrize("kind", kinds_of(Reader.SERVER))
def test_server(kind: Kind, served: Served) -> None:
    check(observe_server(kind, served), kind, Reader.SERVER)


@pytest.mark.parametrize("kind", kinds_of(Reader.PYTHON))
def test_python(kind: Kind, tiny_model: Path) -> None:
    model = load(str(tiny_model))
    references = dict(zip(REFERENCES, model.embed(list(REFERENCES)), strict=True))
    check(observe_python(kind, model, references), kind, Reader.PYTHON)


def test_a_pair_that_cannot_occur_has_no_decision() -> None:
    with pytest.raises(KeyError):
        decision(Kind.NO_LABEL, Reader.SERVER)


def test_every_oddity_has_a_policy() -> None:
    assert list(POLICIES) and set(POLICIES) == set(Kind)
