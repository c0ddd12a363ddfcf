"""The scorecard's page and figures, with a tiny model and small samples."""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import seqlm
from seqlm.commands import inference
from seqlm.proteins.contacts.head import chains
from seqlm.proteins.scorecard import command, localization, sequence_parts, structure_parts
from seqlm.runs.run_file import RunFile, load_config
from seqlm.training.processes import Processes, processes
from tests.workloads.proteins.scorecard.test_proteingym import write_release

BOTH_FAMILIES = {"test_a_scorecard_has_every_part"}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the samples small."""
    monkeypatch.setattr(localization, "LOCALIZATION_PROTEINS", 60)
    monkeypatch.setattr(sequence_parts, "PSEUDO_PERPLEXITY_RESIDUES", 20)
    monkeypatch.setattr(structure_parts, "chains", lambda use: chains(use)[:18])


@pytest.fixture
def here() -> Iterator[Processes]:
    with processes() as found:
        yield found


def configured(run_file: Path, model: Path, *overrides: str) -> RunFile:
    return load_config(run_file, [f"inference.model={model}", "train.precision=fp32", *overrides])


@pytest.mark.usefixtures("small")
def test_a_scorecard_has_every_part(
    run_file: Path,
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inference, "processes_and_threads", lambda: (1, 1))
    model = tmp_path / "run" / "model"
    shutil.copytree(tiny_model, model)
    gym = write_release(tmp_path / "gym")
    inference.run_inference(
        "scorecard", configured(run_file, model, f"scorecard.proteingym=[{gym}]")
    )
    document = json.loads((tmp_path / "run" / "scorecard.json").read_text())
    found = {row["name"]: row for row in document["scores"]}
    assert 1 < found["perplexity"]["value"] < 200 and 1 < found["pseudo-perplexity"]["value"] < 200
    assert "4 proteins drawn with a fixed seed" in found["pseudo-perplexity"]["data"]
    assert "SYNTHETIC" in next(name for name in found if name.startswith("variant effects"))
    for kind in ("short", "medium", "long"):
        for name in ("P@L", "P@L/5"):
            row = found[f"contacts, {kind} range: {name}"]
            assert 0 <= row["value"] <= 1 and 0 < row["chance"] < 0.2
            # Hydrophobic residues are in contact more often than others.
            assert row["baseline"] > row["chance"]
    assert 0.2 < found["secondary structure: accuracy (Q3)"]["value"] < 1
    assert 0 <= found["localization: jaccard"]["value"] <= 1
    types = [found[f"ProteinGym, {kind}: Spearman"]["value"] for kind in ("Binding", "Stability")]
    assert found["ProteinGym, all: Spearman"]["value"] == pytest.approx(sum(types) / 2)
    for row in found.values():
        assert row["published"] is None and row["known"] == {} and math.isfinite(row["baseline"])
    assert (
        found["perplexity"]["better"] == "lower" and found["localization: auroc"]["chance"] == 0.5
    )
    assert 10 < found["perplexity"]["chance"] < 20 and 10 < found["perplexity"]["baseline"] < 20
    with (tmp_path / "run" / "scorecard.csv").open(newline="") as file:
        table = {row["name"]: row for row in csv.DictReader(file)}
    assert list(table) == list(found) and table["perplexity"]["model"] == str(model)
    assert float(table["perplexity"]["value"]) == found["perplexity"]["value"]
    page = (tmp_path / "run" / "scorecard.html").read_text()
    assert all(name in page for name in ("pseudo-perplexity", "A_B_2020", "They give no verdict"))
    assert "No published value of ProteinGym is shown" in page and "not comparable" not in page
    assert page.count('class="score"') == len(found)
    assert "<script" not in page and "http" not in page.replace("http-equiv", "")
    printed = capsys.readouterr().out
    assert f"wrote {tmp_path / 'run' / 'scorecard.html'}: scorecard" in printed
    assert "chains: read 18, used 18, left out 0" in printed
    assert "proteins: read 5,347, used 60, left out 5,287 (5,287 not drawn)" in printed
    assert list(document["seconds"]) == [
        "perplexity",
        "variant effects",
        "contacts",
        "secondary structure",
        "localization",
        "ProteinGym",
    ]


def test_a_scorecard_of_another_model_is_not_replaced(
    run_file: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Computing(Exception):
        pass

    def compute(*arguments: object) -> None:
        raise Computing

    monkeypatch.setattr(sequence_parts, "score_model", compute)
    output = f"inference.output={tmp_path}/scorecard.html"
    config = configured(run_file, tiny_model, output)
    overwriting = configured(run_file, tiny_model, output, "inference.overwrite=true")
    written = tmp_path / "scorecard.json"
    with processes() as here:
        written.write_text(json.dumps({"model": "theirs"}))
        with pytest.raises(ValueError, match="is the scorecard of theirs; name another"):
            command.scorecard(config, here)
        with pytest.raises(Computing):
            command.scorecard(overwriting, here)
        written.write_text(json.dumps({"model": str(tiny_model)}))
        with pytest.raises(Computing):
            command.scorecard(config, here)


def test_several_models_stand_side_by_side_and_become_references(
    run_file: Path,
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    here: Processes,
) -> None:
    monkeypatch.setattr(command, "PARTS", (sequence_parts.SyntheticAssay,))
    models = []
    for name in ("a", "b", "c"):
        models.append(str(tmp_path / name / "model"))
        shutil.copytree(tiny_model, models[-1])
    references = f"scorecard.references={tmp_path}/references.json"

    def score(chosen: list[str], *overrides: str) -> None:
        given = [
            "train.precision=fp32",
            f"inference.models=[{','.join(chosen)}]",
            f"inference.output={tmp_path}/scorecard.html",
            references,
            *overrides,
        ]
        command.scorecard(load_config(run_file, given), here)

    score(models[:2], "scorecard.references=null")
    document = json.loads((tmp_path / "scorecard.json").read_text())
    assert [one["model"] for one in document["models"]] == models[:2]
    first, second = (one["scores"][0]["value"] for one in document["models"])
    assert first == second
    page = (tmp_path / "scorecard.html").read_text()
    assert page.count('class="line model"') == 2 and page.count('<span class="who">a</span>') == 1
    assert "No value of another model is known for these data" in page
    with pytest.raises(ValueError, match=rf"is the scorecard of {models[0]}, {models[1]}; name"):
        score(models[2:], "scorecard.references=null")
    score(models[2:], "inference.overwrite=true", "scorecard.record=true")
    assert f"wrote {tmp_path}/references.json: 1 models" in capsys.readouterr().out
    score(models[:1], "inference.overwrite=true")
    [row] = json.loads((tmp_path / "scorecard.json").read_text())["scores"]
    assert row["known"] == {models[2]: pytest.approx(first)}
    assert 'class="line known"' in (tmp_path / "scorecard.html").read_text()


@pytest.mark.long
def test_python_scores_as_the_command_does(
    run_file: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "PARTS", (sequence_parts.SyntheticAssay,))
    models = [str(tmp_path / name / "model") for name in ("a", "b")]
    for model in models:
        shutil.copytree(tiny_model, model)
    page = tmp_path / "compared.html"
    fields = (f"data.path={load_config(run_file).data.path}", "train.precision=fp32")
    table = seqlm.scorecard(models, page, *fields)
    assert table["model"].tolist() == models
    document = json.loads((tmp_path / "compared.json").read_text())
    values = [one["scores"][0]["value"] for one in document["models"]]
    assert table["value"].tolist() == pytest.approx(values)
    assert page.read_text().count('class="line model"') == 2
    with pytest.raises(ValueError, match=r"is the scorecard of .*; name another inference\.output"):
        seqlm.scorecard(models[0], page, *fields)
    with pytest.raises(ValueError, match="models: got none"):
        seqlm.scorecard([])
    with pytest.raises(ValueError, match="there is no folder"):
        seqlm.scorecard("no/such/folder", page, *fields)


def test_wrong_lists_of_models_are_refused(
    run_file: Path, tiny_model: Path, tmp_path: Path
) -> None:
    models = f"inference.models=[{tiny_model},{tmp_path}]"
    with pytest.raises(ValueError, match=r"inference\.models: embed reads one model; .* scorecard"):
        inference.run_inference("embed", load_config(run_file, [models]))
    missing = load_config(run_file, [f"inference.models=[{tmp_path}/none]"])
    with pytest.raises(ValueError, match=r"inference\.models: there is no folder .*/none"):
        inference.run_inference("scorecard", missing)
    with pytest.raises(ValueError, match=r"inference\.model: got .* with inference\.models"):
        configured(run_file, tiny_model, models)
    with pytest.raises(ValueError, match=r"inference\.models: got .* several times"):
        load_config(run_file, [f"inference.models=[{tmp_path},{tmp_path}]"])
    with pytest.raises(ValueError, match=r"scorecard\.references: got null with scorecard\.record"):
        configured(run_file, tiny_model, "scorecard.record=true")
