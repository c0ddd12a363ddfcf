"""Masked marginals equal those that transformers computes one mask at a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from seqlm.proteins.alphabet import STANDARD_RESIDUES, TOKENS, encode
from seqlm.proteins.inference import single_mutants
from seqlm.proteins.inference.mutation_table import read_mutations
from seqlm.proteins.inference.records import Protein
from seqlm.proteins.inference.variant_scores import SCORES
from seqlm.proteins.inference.variants import variants
from seqlm.proteins.mutations.edits import Variant
from seqlm.runs.run_file import RunFile
from seqlm.training.processes import Processes
from tests.workloads.proteins.inference.written import rows

BOTH_FAMILIES = {
    "test_scores_are_masked_marginals",
    "test_the_summary_by_position_is_that_of_transformers",
}

WILD = "MKTAYIAKQRQISFVKSHFSRQ"
LONG = "GAVLIMPFWYSTCNQDEHKR" * 5


def reference(model: Any, tokenizer: AutoTokenizer, protein: str, place: int) -> torch.Tensor:
    """Return log p of the residues at a masked place, computed with transformers."""
    ids = tokenizer(protein, return_tensors="pt").input_ids  # type: ignore[operator]
    ids[0, place + 1] = tokenizer.mask_token_id  # type: ignore[attr-defined]
    with torch.no_grad():
        return model(ids, attention_mask=torch.ones_like(ids)).logits[0, place + 1].log_softmax(-1)


def test_scores_are_masked_marginals(
    configured: Callable[..., RunFile], tiny_model: Path, here: Processes, tmp_path: Path
) -> None:
    fasta = tmp_path / "wild.fasta"
    table = tmp_path / "mutations.csv"
    fasta.write_text(f">w\n{WILD}\n>long\n{LONG}\n")
    asked = ["w,A4G", "w,A4G:K8R:Q22W", "long,G1A", "long,I45W", "long,R100K", "w, m1v "]
    wrong = ["w,A5G", "w,A4", "w,A4G:A4V", "w,Q23A", "w,A4B", "other,A4G", "w,"]
    table.write_text("\n".join(["id,mutation", *asked, *wrong]) + "\n")
    # Windows of 40 residues; the long protein has 100.
    settings = {"max_residues": 40, "input": [str(fasta)], "output": str(tmp_path / "out.csv")}
    variants(configured(**settings, mutations=str(table)), here)
    found = {
        (row["id"], row["mutation"]): float(row["score"]) for row in rows(tmp_path / "out.csv")
    }
    assert len(found) == len(asked)
    model = AutoModelForMaskedLM.from_pretrained(tiny_model).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)

    def score(protein: str, place: int, mutant: str) -> float:
        log_p = reference(model, tokenizer, protein, place)
        return float(log_p[TOKENS.index(mutant)] - log_p[TOKENS.index(protein[place])])

    multiple = score(WILD, 3, "G") + score(WILD, 7, "R") + score(WILD, 21, "W")
    expected = {
        ("w", "A4G"): score(WILD, 3, "G"),
        ("w", "A4G:K8R:Q22W"): multiple,
        ("w", "m1v"): score(WILD, 0, "V"),
        # The window of a long protein has the 40 residues around the place.
        ("long", "G1A"): score(LONG[:40], 0, "A"),
        ("long", "I45W"): score(LONG[24:64], 20, "W"),
        ("long", "R100K"): score(LONG[60:], 39, "K"),
    }
    assert found == pytest.approx(expected, abs=1e-5)
    # The summary does not repeat the table.
    about = json.loads((tmp_path / "out.csv.json").read_text())
    assert len(about["mutations_fingerprint"]) == 32 and "A4G" not in json.dumps(about)
    reasons = [row["reason"] for row in rows(tmp_path / "out.csv.rejects.csv")]
    assert len(reasons) == len(wrong)
    told = "\n".join(reasons)
    for message in (
        "A5G: w has Y at position 5, not A",
        "'A4' is not a mutation",
        "two mutations change the residue at position 4",
        "Q23A: position 23 is outside w, which has the positions 1 to 22",
        f"A4B: B is not one of the residues {STANDARD_RESIDUES}",
        "no protein other in the input",
        "the name of the variant is empty",
    ):
        assert message in told
    assert rows(tmp_path / "out.csv.rejects.csv")[0]["where"] == f"{table}:8"


@pytest.mark.long
def test_every_single_mutant_and_its_picture(
    configured: Callable[..., RunFile], here: Processes, tmp_path: Path
) -> None:
    fasta = tmp_path / "wild.fasta"
    # Some ids look like numbers, and some come twice.
    fasta.write_text(f">sp|P1|w\n{WILD[:9]}XU\n>0012\nMKT\n>0012\nMK\n>none\nXXU\n")
    variants(configured(input=[str(fasta)], output=str(tmp_path / "out.csv")), here)
    found = rows(tmp_path / "out.csv")
    # Positions without a standard residue are not scored.
    assert [row["mutation"] for row in found if row["id"] == "sp|P1|w"] == [
        f"{WILD[place]}{place + 1}{mutant}"
        for place in range(9)
        for mutant in STANDARD_RESIDUES
        if mutant != WILD[place]
    ]
    assert np.isfinite([float(row["score"]) for row in found]).all()
    pictures = sorted(tmp_path.glob("*.png"))
    repeated = [(row["mutation"][:2], row["occurrence"]) for row in found if row["id"] == "0012"]
    assert set(repeated) == {("M1", "1"), ("K2", "1"), ("T3", "1"), ("M1", "2"), ("K2", "2")}
    names = ["out.01-sp-P1-w", "out.02-0012", "out.03-0012"]
    assert [path.name for path in pictures] == [
        f"{name}{end}.png" for name in names for end in (".logo", "")
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)


def test_the_summary_by_position_is_that_of_transformers(
    configured: Callable[..., RunFile], here: Processes, tiny_model: Path, tmp_path: Path
) -> None:
    fasta = tmp_path / "wild.fasta"
    fasta.write_text(f">w\n{WILD}\n>v\nMKT\n")
    variants(configured(input=[str(fasta)], output=str(tmp_path / "out.csv")), here)
    found = rows(tmp_path / "out.positions.csv")
    assert [row["id"] for row in found] == ["w"] * len(WILD) + ["v"] * 3
    model = AutoModelForMaskedLM.from_pretrained(tiny_model).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    for place, row in enumerate(found[: len(WILD)]):
        wild = WILD[place]
        log_p = reference(model, tokenizer, WILD, place)
        among = {r: float(log_p[TOKENS.index(r)]) for r in STANDARD_RESIDUES}
        p = np.exp(list(among.values())) / np.exp(list(among.values())).sum()
        scores = {r: value - among[wild] for r, value in among.items() if r != wild}
        assert (row["position"], row["wild_type"]) == (str(place + 1), wild)
        assert float(row["mean_score"]) == pytest.approx(np.mean(list(scores.values())), abs=1e-4)
        assert float(row["best_score"]) == pytest.approx(max(scores.values()), abs=1e-4)
        assert scores[row["best_mutant"]] == pytest.approx(max(scores.values()), abs=1e-4)
        assert float(row["entropy"]) == pytest.approx(-(p * np.log2(p)).sum(), abs=1e-4)
        expected = 1 / p[list(among).index(wild)]
        assert float(row["pseudo_perplexity"]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("length", "widths"), [(3, [3]), (100, [100]), (101, [51, 50]), (210, [70] * 3)]
)
def test_bands_of_a_heat_map_have_equal_widths_and_a_legend(length: int, widths: list[int]) -> None:
    mutants = single_mutants.Mutants("sp|P1|w$x")
    for place in range(1, length + 1):
        mutants.wild[place] = "M"
        mutants.scores |= {(place, "A"): -1.0, (place, "G"): 0.5}
    figure = single_mutants.heat_map(mutants, "runs/a/model")
    *bands, bar = figure.axes
    assert [band.images[0].get_size()[1] for band in bands] == widths
    assert all(band.get_ylabel() == "mutant residue" for band in bands)
    assert bands[-1].get_xlabel() == "position"
    assert (bar.get_title(), bar.get_xlabel()) == ("favoured", "disfavoured")
    assert figure.get_suptitle() == "sp|P1|w$x, a/model"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["wild type"]
    assert [len(band.lines[0].get_xdata()) for band in bands] == widths


@pytest.mark.long
def test_pictures_are_replaced_only_with_the_option(
    configured: Callable[..., RunFile], here: Processes, tmp_path: Path
) -> None:
    fasta = tmp_path / "wild.fasta"
    out = str(tmp_path / "out.csv")
    fasta.write_text(">w\nMKT\n")
    picture = tmp_path / "out.01-w.png"
    other = tmp_path / "out.01-v.png"
    picture.write_text("mine")
    with pytest.raises(ValueError, match=r"out.01-w.png exists .*inference.overwrite=true"):
        variants(configured(input=[str(fasta)], output=out), here)
    assert picture.read_text() == "mine"
    variants(configured(input=[str(fasta)], output=out, overwrite=True), here)
    assert picture.read_bytes().startswith(b"\x89PNG")
    # The same command draws a missing picture again and changes nothing else.
    picture.unlink()
    table = (tmp_path / "out.csv").stat()
    variants(configured(input=[str(fasta)], output=out), here)
    assert picture.exists() and (tmp_path / "out.csv").stat() == table
    # Pictures of a replaced result are deleted with it.
    fasta.write_text(">v\nMKT\n")
    variants(configured(input=[str(fasta)], output=out, overwrite=True), here)
    assert other.exists() and not picture.exists()


def test_proteins_without_a_residue_to_replace_are_an_error(
    configured: Callable[..., RunFile], here: Processes, tmp_path: Path
) -> None:
    fasta = tmp_path / "wild.fasta"
    fasta.write_text(">none\nXXU\n")
    out = tmp_path / "out.csv"
    with pytest.raises(
        ValueError, match=r"residues: read 3, used 0, left out 3 \(3 unusual letters"
    ):
        variants(configured(input=[str(fasta)], output=str(out)), here)
    assert not out.exists()


def test_a_table_without_a_mutation_that_fits_is_an_error(
    configured: Callable[..., RunFile], here: Processes, tmp_path: Path
) -> None:
    fasta = tmp_path / "wild.fasta"
    table = tmp_path / "mutations.csv"
    fasta.write_text(f">w\n{WILD}\n")
    table.write_text("mutation\nA27G\nW31R\n")
    output = tmp_path / "out.csv"
    with pytest.raises(
        ValueError,
        match=r"inference\.mutations: nothing can be used\. mutations: read 2, used 0, left out 2 \(2 that "
        "do not fit\\), the first one at .*mutations.csv:2: A27G",
    ):
        variants(configured(input=[str(fasta)], output=str(output), mutations=str(table)), here)
    assert not output.exists()


def test_a_table_without_ids_is_for_the_only_protein(
    configured: Callable[..., RunFile], here: Processes, tmp_path: Path
) -> None:
    fasta = tmp_path / "wild.fasta"
    table = tmp_path / "mutations.csv"
    fasta.write_text(f">w\n{WILD}\n")
    table.write_text("mutation\nA4G\n")
    out = tmp_path / "out.csv"
    config = configured(input=[str(fasta)], output=str(out), mutations=str(table))
    variants(config, here)
    assert [row["mutation"] for row in rows(out)] == ["A4G"]
    fasta.write_text(f">w\n{WILD}\n>v\n{WILD}\n")
    with pytest.raises(ValueError, match="a row has no id, and the input has 2 proteins"):
        variants(config, here)
    table.write_text("change\nA4G\n")
    with pytest.raises(
        ValueError, match=r"known for mutations; it has 'change'.*inference\.mutation_column"
    ):
        variants(config, here)


MUTATION_TABLES = [
    ("mutation\nA4G\n", {}, "mutation: mutation"),
    ("Mutation;score\nA4G;1\n", {}, "mutation: Mutation"),
    (
        "mutant,mutated_sequence,DMS_score,DMS_score_bin\nA4G,MKTG,0.1,0\n",
        {},
        "a ProteinGym assay of substitutions; mutation: mutant",
    ),
    (
        "accession,hgvs_nt,hgvs_splice,hgvs_pro,score\nurn:mavedb:1-a-1#1,NA,NA,A4G,0.3\n",
        {},
        "a score set of MaveDB; mutation: hgvs_pro",
    ),
    ("id,variant,ddG\nw,A4G,0.1\n", {}, "mutation: variant, id of the protein: id"),
    ("change,variant\nA4G,B\n", {"mutation_column": "change"}, "mutation: change"),
    ("Entry,mutation\nw,A4G\n", {"id_column": "Entry"}, "id of the protein: Entry"),
]


@pytest.mark.parametrize(("text", "fields", "announced"), MUTATION_TABLES)
def test_columns_of_mutations_are_found(
    tmp_path: Path,
    text: str,
    fields: dict[str, str],
    announced: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "list"
    path.write_text(text)
    table = read_mutations(path, **fields)
    protein = Protein("w", encode(WILD), "w.fasta")
    (variant,) = table.parsed(protein)
    assert isinstance(variant, Variant) and variant.name == "A4G"
    assert announced in capsys.readouterr().err


def test_rows_of_mutations_that_cannot_be_read_are_rejects(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_text("id,mutation\nw,A4G\nw,A4G,0.1\nw\n")
    table = read_mutations(path)
    rejects = table.of_others({"w"})
    assert [reject.where for reject in rejects] == [f"{path}:3", f"{path}:4"]


def scored(
    configured: Callable[..., RunFile],
    here: Processes,
    folder: Path,
    names: list[str],
    **settings: Any,
) -> dict[str, float]:
    """Return the scores of variants of the wild type."""
    fasta = folder / "wild.fasta"
    fasta.write_text(f">w\n{WILD}\n")
    table = folder / "mutations.csv"
    table.write_text("\n".join(["mutation", *(f'"{name}"' for name in names)]) + "\n")
    out = folder / "out.csv"
    variants(
        configured(
            input=[str(fasta)], output=str(out), mutations=str(table), overwrite=True, **settings
        ),
        here,
    )
    return {row["mutation"]: float(row["score"]) for row in rows(out)}


MUTANT = "MKTGYIARQRQISFVKSHFSRQ"
SHORTER = "MKTGYIAQRQISFVKSHFSRQ"


@pytest.mark.parametrize("score", SCORES)
def test_every_score_is_that_of_transformers(
    configured: Callable[..., RunFile],
    tiny_model: Path,
    here: Processes,
    tmp_path: Path,
    score: str,
) -> None:
    model = AutoModelForMaskedLM.from_pretrained(tiny_model).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)

    def seen(protein: str) -> torch.Tensor:
        ids = tokenizer(protein, return_tensors="pt").input_ids
        with torch.no_grad():
            logits = model(ids, attention_mask=torch.ones_like(ids)).logits
        found: torch.Tensor = logits[0, 1:-1].log_softmax(-1)
        return found

    def change(log_p: torch.Tensor, place: int) -> float:
        new = TOKENS.index(MUTANT[place])
        return float(log_p[new] - log_p[TOKENS.index(WILD[place])])

    def whole(protein: str) -> float:
        places = range(len(protein))
        return sum(
            float(reference(model, tokenizer, protein, place)[TOKENS.index(protein[place])])
            for place in places
        )

    expected = {
        "masked_marginals": lambda: sum(
            change(reference(model, tokenizer, WILD, place), place) for place in (3, 7)
        ),
        "wild_type_marginals": lambda: sum(change(seen(WILD)[place], place) for place in (3, 7)),
        "mutant_marginals": lambda: sum(change(seen(MUTANT)[place], place) for place in (3, 7)),
        "pseudo_log_likelihood": lambda: whole(MUTANT) - whole(WILD),
    }[score]()
    names = ["WT", "A4G:K8R", MUTANT, "p.[Ala4Gly;Lys8del]"]
    found = scored(configured, here, tmp_path, names, score=score)
    assert found["WT"] == 0
    assert found["A4G:K8R"] == found[MUTANT] == pytest.approx(expected, abs=1e-4)
    if SCORES[score].takes_indels:
        shorter = whole(SHORTER) - whole(WILD)
        assert found["p.[Ala4Gly;Lys8del]"] == pytest.approx(shorter, abs=1e-4)
    else:
        [reject] = rows(tmp_path / "out.csv.rejects.csv")
        assert "inserts or deletes residues" in reject["reason"]
        assert "use pseudo_log_likelihood (inference.score)" in reject["reason"]


def test_another_score_is_another_result(
    configured: Callable[..., RunFile], here: Processes, tmp_path: Path
) -> None:
    scored(configured, here, tmp_path, ["A4G"])
    about = json.loads((tmp_path / "out.csv.json").read_text())
    assert "score" not in about
    first = scored(configured, here, tmp_path, ["A4G"], score="wild_type_marginals")
    assert json.loads((tmp_path / "out.csv.json").read_text())["score"] == "wild_type_marginals"
    moved = scored(
        configured, here, tmp_path, ["A23G"], score="wild_type_marginals", first_position=20
    )
    assert moved["A23G"] == first["A4G"]
    with pytest.raises(ValueError, match=r"set inference\.first_position=20"):
        scored(configured, here, tmp_path, ["A23G", "K27R"])


@pytest.mark.long
@pytest.mark.parametrize("score", ["mutant_marginals", "pseudo_log_likelihood"])
def test_scores_that_are_no_distribution_have_no_summary_by_position(
    configured: Callable[..., RunFile], here: Processes, tmp_path: Path, score: str
) -> None:
    fasta = tmp_path / "wild.fasta"
    fasta.write_text(">w\nMKT\n")
    out = tmp_path / "out.csv"
    settings = {"input": [str(fasta)], "output": str(out), "first_position": 7}
    variants(configured(**settings, score=score), here)
    assert rows(out)[0]["mutation"] == "M7L"
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["out.01-w.png"]
    assert not (tmp_path / "out.positions.csv").exists()
