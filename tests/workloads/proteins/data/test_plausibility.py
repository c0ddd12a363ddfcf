"""Input that is text but no proteins, and proteins that are on both sides of a split."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from seqlm.proteins.alphabet import encode
from seqlm.proteins.data.plausibility import Implausible
from seqlm.proteins.data.prepare import prepare
from seqlm.proteins.data.sources import ProteinFiles
from seqlm.training.data.manifest import Manifest

RESIDUES = "LAGVSERTIDPKQNFYMHWC"
DNA = "ATGGCGTACGATTTCGATCGTAGCATTAGCTAGACCGTATGC"
RNA = DNA.replace("T", "U")


def protein(seed: int, length: int = 200) -> str:
    return "".join(random.Random(seed).choices(RESIDUES, k=length))


def run(folder: Path, records: dict[str, str], allow_nucleotides: bool = False) -> Manifest:
    fasta = folder / "in.fasta"
    fasta.write_text("".join(f">{name}\n{text}\n" for name, text in records.items()))
    return prepare(
        ProteinFiles([fasta], allow_nucleotides=allow_nucleotides),
        folder / "out",
        seed=0,
        validation_fraction=0.2,
        test_fraction=0.2,
    )


@pytest.mark.parametrize("nucleotides", [DNA, RNA, DNA.lower(), DNA + "N"])
def test_nucleotides_are_refused_and_the_option_that_allows_them_is_named(
    tmp_path: Path, nucleotides: str
) -> None:
    records = {"gene1": nucleotides, "gene2": nucleotides[::-1], "p": protein(0)}
    with pytest.raises(
        ValueError, match=r"in.fasta:1: 2 of 3 records look like DNA or RNA .* gene1; .*"
    ) as e:
        run(tmp_path, records)
    assert "data.allow_nucleotides=true" in str(e.value)
    assert not (tmp_path / "out").exists()
    assert run(tmp_path, records, allow_nucleotides=True).records == 3


def test_a_few_implausible_records_are_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = {f"p{n}": protein(n) for n in range(20)}
    run(tmp_path, {**records, "gene": DNA, "peptide": "MKTAYIAK", "tail": "Q" * 60 + "MKT"})
    said = capsys.readouterr().err
    assert "warning: 1 of 23 records look like DNA or RNA, for example gene\n" in said
    assert "warning: 1 of 23 records have fewer than 20 residues, for example peptide\n" in said
    assert (
        "warning: 1 of 23 records are of low complexity (few kinds of residues), for example tail\n"
        in said
    )


def test_proteins_of_few_letters_are_not_nucleotides() -> None:
    found = Implausible()
    # Antifreeze repeats, a poly-alanine, a peptide of the four letters, and a composition as nature has it.
    texts = ["DTASDAAAAAALTAANAAAAAKLTADNAAAAAAATAR", "A" * 40, "GATTACA", protein(3)]
    found.look_at([f"p{n}" for n in range(len(texts))], [encode(text).tobytes() for text in texts])
    assert found.counts == {"nucleotides": 0, "short": 1, "repetitive": 2}


def test_an_id_that_begins_with_the_sign_of_headers_is_left_out(tmp_path: Path) -> None:
    assert run(tmp_path, {"p": protein(0), ">q": protein(1)}).records == 1
    (listed,) = tmp_path.glob("**/rejects.csv")
    assert (
        "in.fasta:3,marked id,the id '>q' begins with '>'; write one '>' a header"
        in listed.read_text()
    )


def test_relatives_on_both_sides_of_a_split_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Families of mutants: each held-out one has a relative in the training split. Strangers have none."""
    draw = random.Random(1)
    records = {}
    for family in range(40):
        for member in range(3):
            letters = [
                draw.choice(RESIDUES) if draw.random() < 0.15 else x for x in protein(family)
            ]
            records[f"f{family}m{member}"] = "".join(letters)
    strangers = {f"s{n}": protein(1000 + n) for n in range(60)}
    manifest = run(tmp_path, records | strangers)
    similar = manifest.similar
    assert similar is not None
    held_out = sum(manifest.splits[name].records for name in ("validation", "test"))
    assert similar["held_out"] == held_out
    assert similar["training"] == manifest.splits["train"].records
    ids = similar["example"][:2]
    assert ids[0].startswith("f") and ids[0].split("m")[0] == ids[1].split("m")[0]
    assert 0.5 * held_out * 2 / 3 < similar["similar"] <= held_out * 0.8
    assert (
        f"warning: {similar['similar']} of {held_out} held-out proteins resemble"
        in capsys.readouterr().err
    )
    (tmp_path / "again").mkdir()
    alone = run(tmp_path / "again", strangers)
    assert alone.similar is not None and alone.similar["similar"] == 0
    assert "resemble" not in capsys.readouterr().err


def test_manifests_written_before_the_comparison_are_read(tmp_path: Path) -> None:
    run(tmp_path, {f"p{n}": protein(n) for n in range(20)})
    file = tmp_path / "out" / "manifest.json"
    text = file.read_text()
    start = text.index(',\n "similar"')
    end = text.index(',\n "format_version"')
    file.write_text(text[:start] + text[end:])
    assert Manifest.load(tmp_path / "out").similar is None
