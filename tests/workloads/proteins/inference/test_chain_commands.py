"""Commands of inference on records with several chains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from seqlm.api import Model, load
from seqlm.proteins.alphabet import encode
from seqlm.proteins.contacts import head as contact_head
from seqlm.proteins.contacts.command import contacts
from seqlm.proteins.contacts.head import ContactHead
from seqlm.proteins.contacts.picture import prediction_figure, top_contacts
from seqlm.proteins.inference.embed import embed, layer_embeddings
from seqlm.proteins.inference.engine import RESIDUE_EMBEDDINGS, Engine, Part
from seqlm.proteins.inference.poolings import POOLED
from seqlm.proteins.inference.single_mutants import proteins_of as drawn_proteins
from seqlm.proteins.inference.variants import variants
from seqlm.proteins.model.pretrained import load_model
from seqlm.proteins.reading.chains import ChainSpan
from seqlm.runs.run_file import RunFile
from seqlm.training.processes import Processes
from tests.workloads.proteins.inference.written import rows

HEAVY = "EVQLVESGGGLVQPGGSLRL"
LIGHT = "DIQMTQSPSSLSASV"
LINKED = HEAVY + "G" * 25 + LIGHT
PLACES = [*range(20), *range(45, 60)]
"""Places of the residues of both chains in ``LINKED``."""


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.fasta"
    path.write_text(f">ab1 chains=H,L\n{HEAVY}|{LIGHT}\n>one\n{LIGHT}\n")
    return path


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Engine:
    return Engine(load_model(str(tiny_model)), device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    return load(str(tiny_model), precision="fp32")


def vectors(engine: Engine, sequence: str) -> np.ndarray:
    return engine.run([encode(sequence)], RESIDUE_EMBEDDINGS)[0]


def test_linkers_are_left_out_of_every_pooling(tiny_model: Path) -> None:
    spans = [Part(0, 20), Part(45, 60)]
    for longest in (
        1022,
        32,
    ):  # read whole, and in windows, one of which has residues of both chains
        engine = Engine(
            load_model(str(tiny_model)),
            device=torch.device("cpu"),
            dtype=torch.float32,
            max_residues=longest,
        )
        whole = vectors(engine, LINKED)
        plain = encode(HEAVY)
        expected = {
            "mean": whole[PLACES].mean(axis=0),
            "max": whole[PLACES].max(axis=0),
            "std": whole[PLACES].std(axis=0),
            "cls": engine.run([encode(LINKED)], layer_embeddings((-1 % 3,), ("cls",)))[0],
        }
        assert set(expected) == set(POOLED)
        for pooling, vector in expected.items():
            answer = layer_embeddings((-1 % 3,), (pooling,))
            found, other = engine.run([encode(LINKED), plain], answer, [spans, ()])
            np.testing.assert_allclose(found, vector, atol=1e-5)
            np.testing.assert_allclose(other, engine.run([plain], answer)[0], atol=1e-6)
        [residues] = engine.run([encode(LINKED)], RESIDUE_EMBEDDINGS, [spans])
        np.testing.assert_allclose(residues, whole[PLACES], atol=1e-6)


@pytest.mark.parametrize("mode", ["separate", "linker", "joined"])
def test_embeddings_of_each_mode(
    mode: str,
    configured: Callable[..., RunFile],
    here: Processes,
    pairs: Path,
    engine: Engine,
    tmp_path: Path,
) -> None:
    out = tmp_path / "out.parquet"
    embed(configured(input=[str(pairs)], output=str(out), chains=mode), here)
    found = {row["id"]: row for row in rows(out)}
    texts = {
        "separate": {"ab1.H": HEAVY, "ab1.L": LIGHT},
        "linker": {"ab1": LINKED},
        "joined": {"ab1": HEAVY + LIGHT},
    }
    expected = {name: vectors(engine, text) for name, text in {**texts[mode], "one": LIGHT}.items()}
    if mode == "linker":
        expected["ab1"] = expected["ab1"][PLACES]
    assert list(found) == list(expected)
    for name, residues in expected.items():
        assert found[name]["length"] == len(residues)
        np.testing.assert_allclose(found[name]["embedding"], residues.mean(axis=0), atol=1e-5)
    if mode == "separate":
        assert "chains" not in found["one"]
    else:
        assert found["ab1"]["chains"] == "H 1-20, L 21-35" and found["one"]["chains"] == ""


def test_a_mutation_is_scored_beside_the_other_chains(
    configured: Callable[..., RunFile],
    here: Processes,
    pairs: Path,
    model: Model,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = tmp_path / "mutations.csv"
    table.write_text(
        "id,mutation\nab1,H.V2A\nab1,L.I2A\nab1,H.V2A:L.I2A\nab1,X.I2A\nab1,I2A\none,I2A\n"
    )
    out = tmp_path / "out.csv"
    settings = {"input": [str(pairs)], "mutations": str(table), "chains": "linker"}
    variants(configured(output=str(out), **settings), here)
    assert "mutations: read 6, used 4, left out 2" in capsys.readouterr().out
    found = {(row["id"], row["mutation"]): float(row["score"]) for row in rows(out)}
    of_linked = model.variants(LINKED, ["V2A", "I47A"])["score"]
    assert found["ab1", "H.V2A"] == pytest.approx(of_linked[0], abs=1e-5)
    assert found["ab1", "L.I2A"] == pytest.approx(of_linked[1], abs=1e-5)
    assert found["ab1", "H.V2A:L.I2A"] == pytest.approx(of_linked.sum(), abs=1e-5)
    assert found["ab1", "L.I2A"] != pytest.approx(found["one", "I2A"], abs=1e-5)
    reasons = [row["reason"] for row in rows(tmp_path / "out.csv.rejects.csv")]
    assert any("ab1 has no chain 'X'; it has the chains H, L" in reason for reason in reasons)


@pytest.mark.long
def test_all_single_mutants_have_a_heat_map_for_each_chain(
    configured: Callable[..., RunFile], here: Processes, pairs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.csv"
    settings = {"input": [str(pairs)], "chains": "linker", "score": "wild_type_marginals"}
    variants(configured(output=str(out), **settings), here)
    found = rows(out)
    assert len(found) == 19 * (20 + 15 + 15)
    assert [one.title for one in drawn_proteins(out)] == ["ab1.H", "ab1.L", "one"]
    places = rows(tmp_path / "out.positions.csv")
    assert [row["chain"] for row in places] == ["H"] * 20 + ["L"] * 15 + [""] * 15
    assert [row["position"] for row in places[19:21]] == ["20", "1"]
    assert (tmp_path / "out.02-ab1.L.png").exists()


@pytest.mark.long
def test_contacts_name_the_chains(
    configured: Callable[..., RunFile],
    here: Processes,
    pairs: Path,
    tiny_model: Path,
    tmp_path: Path,
) -> None:
    (fitted := tmp_path / "fitted").mkdir()
    for file in tiny_model.iterdir():
        (fitted / file.name).write_bytes(file.read_bytes())
    weights = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32) * 9
    contact_head.save(load_model(str(fitted)), str(fitted), ContactHead(weights, -0.5))
    out = tmp_path / "contacts.csv"
    settings = {"model": str(fitted), "input": [str(pairs)], "chains": "linker"}
    contacts(configured(output=str(out), **settings), here)
    found = [row for row in rows(out) if row["id"] == "ab1"]
    assert len(found) == 35
    texts = {"H": HEAVY, "L": LIGHT}
    for row in found:
        for side in "ij":
            residue = texts[row[f"chain_{side}"]][int(row[side]) - 1]
            assert residue == row[f"residue_{side}"]
        if row["chain_i"] == row["chain_j"]:
            assert int(row["j"]) - int(row["i"]) >= 6
    assert {row["chain_i"] + row["chain_j"] for row in found} > {"HL"}
    [file] = (tmp_path / "contacts").glob("ab1-*.npz")
    written = np.load(file)
    assert written["contacts"].shape == (35, 35) and list(written["chains"]) == ["H", "L"]
    assert list(written["lengths"]) == [20, 15]
    in_python = load(str(fitted)).contacts({"H": HEAVY, "L": LIGHT}, chains="linker")
    np.testing.assert_allclose(in_python, written["contacts"], atol=1e-6)


def test_maps_show_the_borders_of_chains() -> None:
    chains = (ChainSpan("H", 0, 20), ChainSpan("L", 45, 60))
    random = np.random.default_rng(0).random((35, 35)).astype(np.float32)
    [axis, _] = prediction_figure("ab1", random, chains).axes
    assert [20.5, 20.5] in [list(line.get_xdata()) for line in axis.lines]
    labels = [label.get_text() for label in axis.get_xticklabels()]
    assert labels[0] == "H 1" and "L 1" in labels
    plain = top_contacts(random)
    assert (plain.j - plain.i).min() >= 6 and len(plain.i) == 35
    between = top_contacts(np.eye(35, k=1, dtype=np.float32), chains)
    assert (between.i[0], between.j[0]) == (19, 20)  # the ends of two chains may be in contact


def test_python_reads_chains_like_the_commands(model: Model, engine: Engine) -> None:
    linked = vectors(engine, LINKED)[PLACES]
    for record in (f"{HEAVY}|{LIGHT}", {"H": HEAVY, "L": LIGHT}):
        [found] = model.embed([record], chains="linker")
        np.testing.assert_allclose(found, linked.mean(axis=0), atol=1e-5)
    assert len(model.embed([f"{HEAVY}|{LIGHT}", LIGHT], chains="separate")) == 3
    scores = model.variants({"H": HEAVY, "L": LIGHT}, ["L.I2A"], chains="linker")["score"]
    assert scores[0] == pytest.approx(model.variants(LINKED, ["I47A"])["score"][0], abs=1e-5)
    [joined, of_text] = model.perplexity([f"{HEAVY}|{LIGHT}", HEAVY + LIGHT], chains="joined")
    assert joined == pytest.approx(of_text)
    [without_linker] = model.perplexity([f"{HEAVY}|{LIGHT}"], chains="linker")
    assert without_linker != pytest.approx(model.perplexity([LINKED])[0])


@pytest.mark.parametrize(
    ("record", "chains", "reason"),
    [
        (f"{HEAVY}|{LIGHT}", None, "'A', 'B'.; set chains to separate, linker or joined"),
        (f"{HEAVY}||{LIGHT}", "linker", "chain 'B' has no residues"),
        ({"H": HEAVY, "L": 3}, "linker", "got 3; expected a sequence as text"),
        ({"H": f"{HEAVY}|{LIGHT}"}, "linker", "has '|' or ':' in it"),
        (HEAVY, "glued", "got 'glued'; allowed are separate, linker, joined"),
    ],
)
def test_python_refuses_what_cannot_be_read(
    record: object, chains: str | None, reason: str, model: Model
) -> None:
    with pytest.raises(ValueError, match=reason.replace("|", r"\|")):
        model.embed([record], chains=chains)  # type: ignore[list-item]


def test_python_scores_one_record_at_a_time(model: Model) -> None:
    with pytest.raises(ValueError, match="got 'separate' for one record; allowed are linker and"):
        model.variants(f"{HEAVY}|{LIGHT}", chains="separate")
