"""ProteinGym's correlations, averages and comparisons with published figures."""

from __future__ import annotations

import csv
import dataclasses
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from seqlm.proteins.alphabet import encode
from seqlm.proteins.inference.engine import Engine
from seqlm.proteins.model.pretrained import load_model
from seqlm.proteins.scorecard.neighbours import Neighbours
from seqlm.proteins.scorecard.proteingym import (
    BASELINE,
    PUBLISHED_RELEASE,
    REFERENCE,
    RELEASES,
    Assay,
    Benchmark,
    averages,
    published,
    read_benchmark,
    result_file,
    score_assays,
)

TARGET = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ"
MUTANTS = ("M1A", "K2R", "K2R:T3S", "Y5F", "Q9E", "I12V", "K16R:H18N", "L29M")
MEASURED = (0.1, 0.5, 0.5, 0.9, 0.5, 0.9, -1.0, 0.2)
RELEASE, SHA256 = next((release, sha256) for sha256, release in RELEASES.items())


def write_release(
    folder: Path, assays: tuple[str, ...] = ("A_B_2020", "A_C_2021", "Z_D_2022")
) -> Path:
    folder.mkdir(parents=True)
    with (folder / REFERENCE).open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(
            ["DMS_id", "DMS_filename", "UniProt_ID", "coarse_selection_type", "target_seq"]
        )
        for name in assays:
            table.writerow(
                [name, f"{name}.csv", name[0], "Stability" if name < "B" else "Binding", TARGET]
            )
    for name in assays:
        rows = [f"{m},{s},1" for m, s in zip(MUTANTS, MEASURED, strict=True)]
        (folder / f"{name}.csv").write_text(
            "\n".join(["mutant,DMS_score,DMS_score_bin", *rows]) + "\n"
        )
    return folder


def brute_force(model: Path) -> list[float]:
    """Return masked marginals of ``MUTANTS`` by transformers, one masked position at a time."""
    plain = AutoModelForMaskedLM.from_pretrained(model).eval()
    tokenizer = AutoTokenizer.from_pretrained(model)
    ids = tokenizer(TARGET, return_tensors="pt")["input_ids"]
    found = []
    for mutant in MUTANTS:
        total = 0.0
        for one in mutant.split(":"):
            place = int(one[1:-1])  # CLS comes before the first residue
            masked = ids.clone()
            masked[0, place] = tokenizer.mask_token_id
            with torch.no_grad():
                log_p = plain(masked).logits[0, place].log_softmax(-1)
            wild, new = tokenizer.convert_tokens_to_ids([one[0], one[-1]])
            total += float(log_p[new] - log_p[wild])
        found.append(total)
    return found


def ranks(values: tuple[float, ...] | list[float]) -> np.ndarray:
    """Return ranks, of ties their mean."""
    array = np.asarray(values)
    return np.array([(array < value).sum() + ((array == value).sum() - 1) / 2 for value in array])


def engine_of(model: Path) -> Engine:
    return Engine(load_model(str(model)), device=torch.device("cpu"), dtype=torch.float32)


@pytest.mark.parametrize("zipped", [False, True])
def test_correlations_are_those_of_a_loop_over_transformers(
    tiny_model: Path, tmp_path: Path, zipped: bool
) -> None:
    folder = write_release(tmp_path / "gym")
    locations = [str(folder)]
    if zipped:
        with zipfile.ZipFile(tmp_path / "assays.zip", "w") as archive:
            for file in folder.glob("[AZ]*.csv"):
                archive.write(file, f"DMS_ProteinGym_substitutions/{file.name}")
                file.unlink()
        locations.append(str(tmp_path / "assays.zip"))
    benchmark = read_benchmark(locations, tmp_path)
    assert [assay.name for assay in benchmark.assays] == ["A_B_2020", "A_C_2021", "Z_D_2022"]
    assert benchmark.release is None
    out = tmp_path / "parts"
    engine = engine_of(tiny_model)
    neighbours = Neighbours([encode(TARGET)])
    for rank in (1, 0):
        score_assays(benchmark, engine, neighbours, out, "k" * 20, rank, 2)
    expected = np.corrcoef(ranks(brute_force(tiny_model)), ranks(MEASURED))[0, 1]
    for assay in benchmark.assays:
        found = json.loads(result_file(out, assay, "k" * 20).read_text())
        assert found["spearman"] == pytest.approx(expected, abs=1e-6)
        assert found["variants"] == len(MUTANTS) and -1 <= found[BASELINE] <= 1


def test_a_second_start_scores_the_missing_assays_alone(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark = read_benchmark([str(write_release(tmp_path / "gym"))], tmp_path)
    engine = engine_of(tiny_model)
    neighbours = Neighbours([encode(TARGET)])
    out = tmp_path / "parts"
    score_assays(Benchmark(benchmark.assays[:2]), engine, neighbours, out, "k" * 20, 0, 1)
    capsys.readouterr()
    score_assays(benchmark, engine, neighbours, out, "k" * 20, 0, 1)
    assert capsys.readouterr().out.startswith("3 of 3: Z_D_2022 ")
    score_assays(benchmark, engine, neighbours, out, "another model", 0, 1)
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_proteins_count_once_per_type_and_types_once() -> None:
    def assay(name: str, protein: str, kind: str) -> Assay:
        return Assay(name, protein, kind, TARGET, Path(), "")

    benchmark = Benchmark(
        (
            assay("1", "P", "Stability"),
            assay("2", "P", "Stability"),
            assay("3", "Q", "Stability"),
            assay("4", "P", "Binding"),
            assay("5", "R", "Binding"),
        )
    )
    found = averages(benchmark, {"1": 0.2, "2": 0.4, "3": 0.7, "4": -0.1, "5": 0.5})
    assert found == pytest.approx({"Binding": 0.2, "Stability": 0.5, "all": 0.35})


def test_missing_files_and_bad_rows_are_named(tmp_path: Path) -> None:
    folder = write_release(tmp_path / "gym")
    copy = tmp_path / "no reference"
    shutil.copytree(folder, copy)
    (copy / REFERENCE).unlink()
    with pytest.raises(
        ValueError, match=r"proteingym: no DMS_substitutions\.csv in .*no reference"
    ):
        read_benchmark([str(copy)], tmp_path)
    for file in folder.glob("[AZ]*.csv"):
        file.unlink()
    with pytest.raises(ValueError, match="no assay of DMS_substitutions"):
        read_benchmark([str(folder)], tmp_path)
    (folder / "A_B_2020.csv").write_text("mutant,DMS_score\nM1A,1\nA2R,2\n")
    (bad,) = read_benchmark([str(folder)], tmp_path).assays
    with pytest.raises(ValueError, match=r"A_B_2020\.csv :3: A2R: A_B_2020 has K at position 2"):
        bad.measured()


MEAN_MODEL = "facebook/esm2_t33_650M_UR50D"


@pytest.mark.parametrize(
    ("model", "release", "residues", "assay", "expected"),
    [
        (MEAN_MODEL, RELEASE, 1022, None, 0.414),
        (MEAN_MODEL, None, 1022, "BLAT_ECOLX_Stiffler_2015", 0.731),
        (MEAN_MODEL, None, 1022, None, "published for v1.3"),
        (MEAN_MODEL, RELEASE, 512, None, "published with windows of 1022"),
        (MEAN_MODEL, RELEASE, 1022, "X", "no published figure of this assay"),
        ("runs/mine/model", RELEASE, 1022, None, "no published figure of runs/mine/model"),
        ("biohub/ESMC-300M", RELEASE, 1022, None, "no published figure of biohub/ESMC-300M"),
    ],
)
def test_published_figures_stand_beside_the_same_model_release_and_protocol_alone(
    model: str, release: str | None, residues: int, assay: str | None, expected: float | str
) -> None:
    found = published(model, release, residues, assay)
    if isinstance(expected, float):
        assert found.value == expected and not found.reason
    else:
        assert found.value is None and found.reason.startswith(expected)


def test_the_release_is_known_by_names_and_sequences() -> None:
    assert len(SHA256) == 64 and RELEASE == PUBLISHED_RELEASE
    one = Assay("a", "P", "Stability", TARGET, Path(), "")
    other = dataclasses.replace(one, name="b")
    assert Benchmark((one,)).fingerprint != Benchmark((other,)).fingerprint
