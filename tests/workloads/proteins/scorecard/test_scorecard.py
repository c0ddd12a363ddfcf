"""The scorecard's page and figures, with a tiny model and small samples."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from seqlm.commands import inference
from seqlm.proteins.contacts.head import chains
from seqlm.proteins.scorecard import command
from seqlm.runs.run_file import RunFile, load_config
from seqlm.training.processes import processes
from tests.workloads.proteins.scorecard.test_proteingym import write_release

BOTH_FAMILIES = {"test_a_scorecard_has_every_part"}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the samples small."""
    monkeypatch.setattr(command, "LOCALIZATION_PROTEINS", 60)
    monkeypatch.setattr(command, "PSEUDO_PERPLEXITY_RESIDUES", 20)
    monkeypatch.setattr(command, "chains", lambda use: chains(use)[:18])


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
        assert 0 <= found[f"contacts, {kind} range: precision at L"]["value"] <= 1
    assert 0.2 < found["secondary structure: accuracy (Q3)"]["value"] < 1
    assert 0 <= found["localization: jaccard"]["value"] <= 1
    types = [found[f"ProteinGym, {kind}: Spearman"]["value"] for kind in ("Binding", "Stability")]
    assert found["ProteinGym, all: Spearman"]["value"] == pytest.approx(sum(types) / 2)
    assert found["ProteinGym, all: Spearman"]["published"].startswith("not comparable")
    page = (tmp_path / "run" / "scorecard.html").read_text()
    assert all(name in page for name in ("pseudo-perplexity", "A_B_2020", "They give no verdict"))
    assert "<script" not in page and "http" not in page.replace("http-equiv", "")
    printed = capsys.readouterr().out
    assert f"wrote {tmp_path / 'run' / 'scorecard.html'}: scorecard" in printed
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

    monkeypatch.setattr(command, "score_model", compute)
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
