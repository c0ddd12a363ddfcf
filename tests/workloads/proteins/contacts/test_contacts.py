"""Contacts equal those of transformers, a fit finds the head that knows them, and others are refused."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

from seqlm.proteins.alphabet import encode
from seqlm.proteins.contacts import head
from seqlm.proteins.contacts.command import contacts, peak_bytes
from seqlm.proteins.contacts.head import Chain, ContactHead, chains, precision
from seqlm.proteins.inference.engine import Engine
from seqlm.proteins.model.pretrained import load_model, save_esm
from seqlm.runs.run_file import RunFile
from seqlm.training.processes import Processes
from seqlm.training.scoring import NotFiniteError
from tests.workloads.proteins.inference.conftest import configured, here, sequences  # noqa: F401
from tests.workloads.proteins.inference.written import rows

BOTH_FAMILIES = {
    "test_probabilities_are_those_of_numpy_over_transformers",
    "test_a_fit_finds_the_head_that_knows_the_contacts_and_is_stored",
    "test_an_unfitted_head_is_refused",
}
TEXT = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEKAVQVKVK"
SHAPE = (2, 4)


def engine_of(model: Path) -> Engine:
    return Engine(load_model(str(model)), device=torch.device("cpu"), dtype=torch.float32)


def attention_maps(model: Path, text: str) -> np.ndarray:
    """Return transformers' attention between residues, symmetrized and corrected, (N, H, L, L)."""
    plain = AutoModelForMaskedLM.from_pretrained(model, attn_implementation="eager").eval()
    with torch.no_grad():
        found = plain(
            **AutoTokenizer.from_pretrained(model)(text, return_tensors="pt"),
            output_attentions=True,
        )
    maps = np.stack([layer[0].double().numpy() for layer in found.attentions])[..., 1:-1, 1:-1]
    maps = maps + maps.swapaxes(-1, -2)
    expected = (
        np.einsum("nhi,nhj->nhij", maps.sum(-1), maps.sum(-2)) / maps.sum((-1, -2))[..., None, None]
    )
    return np.asarray(maps - expected)


def test_probabilities_are_those_of_numpy_over_transformers(tiny_model: Path) -> None:
    weights = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32) * 9
    engine = engine_of(tiny_model)
    found = ContactHead(weights, -0.5).probabilities(
        engine, Chain("a", TEXT, "", *[np.ones(1, bool)] * 2).tokens
    )
    logits = np.einsum("nh,nhij->ij", weights, attention_maps(tiny_model, TEXT)) - 0.5
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-logits)), atol=1e-5)


def planted(model: Path, layer: int, attention_head: int) -> Chain:
    """Return a chain whose contacts are the largest values of one attention map."""
    values = attention_maps(model, TEXT)[layer, attention_head]
    near = values > np.quantile(values, 0.9)
    return Chain("planted", TEXT, "C" * len(TEXT), np.ones(len(TEXT), dtype=bool), near)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weights": [1], "bias": 0}', "[" * 9999])
def test_a_damaged_head_beside_a_model_is_one_line(
    text: str, tiny_model: Path, tmp_path: Path
) -> None:
    model = load_model(str(tiny_model))
    (tmp_path / head.FILE).write_text(text)
    with pytest.raises(ValueError, match=f"{head.FILE} is no contact head of this model") as raised:
        head.load(model, str(tmp_path))
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 500


def test_a_head_that_is_not_finite_gives_no_contacts(tiny_model: Path) -> None:
    engine = engine_of(tiny_model)
    weights = np.zeros(SHAPE, dtype=np.float32)
    broken = weights.copy()
    broken[0, 0] = np.nan
    for diverged in (ContactHead(broken, 0.0), ContactHead(weights, math.nan)):
        with pytest.raises(NotFiniteError):
            diverged.probabilities(engine, encode(TEXT))


def test_a_fit_keeps_links_to_folders_as_links(tiny_model: Path, tmp_path: Path) -> None:
    """A folder of a stranger may have links to any place."""
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    (tmp_path / "private").mkdir()
    (tmp_path / "private/key").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "private")
    head.save(load_model(str(folder)), str(folder), ContactHead(np.ones(SHAPE, np.float32), -1.0))
    assert (folder / "link").is_symlink()


def test_a_fit_finds_the_head_that_knows_the_contacts_and_is_stored(
    tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    weights = AutoModelForMaskedLM.from_pretrained(tiny_model).state_dict()
    for name, tensor in weights.items():
        if re.search(r"\b(query|key|q_proj|k_proj)\.weight", name):
            tensor.mul_(10)  # random weights attend to all residues alike
    save_esm(folder, AutoConfig.from_pretrained(tiny_model), weights)
    before = load_model(str(folder)).state_dict()
    chain = planted(folder, 1, 2)
    engine = engine_of(folder)
    # One short protein has few pairs, so that the penalty would outweigh them.
    copies = [dataclasses.replace(chain) for _ in range(40)]
    fitted = head.fit(engine, copies)
    assert np.unravel_index(np.abs(fitted.weights).argmax(), SHAPE) == (1, 2)
    assert precision(chain, fitted.probabilities(engine, chain.tokens), "long") > 0.8
    written = head.save(engine.model, str(folder), fitted)
    assert written.is_file() and not list(tmp_path.glob("*partial*"))
    loaded = load_model(str(folder))  # verifies the checksums
    stored = head.load(loaded, str(folder))
    np.testing.assert_array_equal(stored.weights, fitted.weights)
    assert stored.bias == pytest.approx(fitted.bias)
    after = loaded.state_dict()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert all("contact_head" in name for name in changed)
    # The folder that was copied keeps its own head.
    with pytest.raises(ValueError, match="no fitted contact head"):
        head.load(load_model(str(tiny_model)), str(tiny_model))
    if hasattr(loaded, "esm"):
        plain = AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
        tokens = AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt")
        theirs = (
            plain.esm.predict_contacts(tokens["input_ids"], tokens["attention_mask"])[0]
            .detach()
            .numpy()
        )
        ours = stored.probabilities(engine, chain.tokens)
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_an_unfitted_head_is_refused(tiny_model: Path) -> None:
    with pytest.raises(
        ValueError, match=r"no fitted contact head; fit it .* inference\.fit_contacts=true"
    ):
        head.load(load_model(str(tiny_model)), str(tiny_model))
    with pytest.raises(ValueError, match="facebook/x is no model folder"):
        head.check_folder("facebook/x")


def test_precision_counts_resolved_pairs_alone() -> None:
    rng = np.random.default_rng(3)
    length = 40
    resolved = rng.random(length) > 0.2
    near = np.triu(rng.random((length, length)) < 0.3, 1)
    chain = Chain("a", "A" * length, "C" * length, resolved, near | near.T)
    scores = rng.random((length, length)).astype(np.float32)
    for kind, (low, high) in {"short": (6, 11), "medium": (12, 23), "long": (24, 99)}.items():
        pairs = [
            (i, j)
            for i, j in itertools.combinations(range(length), 2)
            if low <= j - i <= high and resolved[i] and resolved[j]
        ]
        best = sorted(pairs, key=lambda pair: -scores[pair])
        for share in (1.0, 0.2):
            top = best[: int(resolved.sum() * share)]
            assert precision(chain, scores, kind, share) == pytest.approx(
                np.mean([near[pair] for pair in top])
            )


def test_the_bundled_structures_are_those_that_their_readme_describes() -> None:
    readme = (head.STRUCTURES_FILE.parent / "README.md").read_text()
    assert hashlib.sha256(head.STRUCTURES_FILE.read_bytes()).hexdigest() in readme
    fit = chains("fit")
    score = chains("score")
    assert (len(fit), len(score)) == (20, 30) and len({chain.id for chain in [*fit, *score]}) == 50
    for chain in [*fit, *score]:
        assert (
            len(chain.sequence)
            == len(chain.structure)
            == len(chain.resolved)
            == len(chain.contacts)
        )
        assert (chain.contacts == chain.contacts.T).all() and not chain.contacts.diagonal().any()
        assert not chain.contacts[~chain.resolved].any()
        # C-beta atoms of residues next to each other are near: 8 A hold three or four residues of a chain.
        i = np.flatnonzero(chain.resolved[:-1] & chain.resolved[1:])
        assert chain.contacts[i, i + 1].mean() > 0.98
        words = {chain.sequence[n : n + 7] for n in range(len(chain.sequence) - 6)}
        others = [other for other in [*fit, *score] if other.id != chain.id]
        assert not any(word in other.sequence for word in words for other in others)
    assert re.fullmatch("[HEC.]+", "".join(chain.structure for chain in [*fit, *score]))


def test_memory_of_attention_maps_grows_with_the_square_of_the_length(tiny_model: Path) -> None:
    model = load_model(str(tiny_model))
    # Scores, softmax and corrected maps in fp32, of 4 heads and 1022 residues with CLS and EOS.
    assert peak_bytes(model, 1022) == 3 * 4 * 4 * 1024**2
    assert peak_bytes(model, 2046) == 4 * peak_bytes(model, 1022)


def test_the_command_writes_matrix_list_and_picture(
    configured: Callable[..., RunFile],  # noqa: F811
    here: Processes,  # noqa: F811
    sequences: list[str],  # noqa: F811
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = tmp_path / "model"
    out = tmp_path / "contacts.csv"
    fasta = tmp_path / "few.fasta"
    # Each protein's picture takes half a second.
    fasta.write_text("".join(f">P{number}\n{sequences[number]}\n" for number in (1, 8, 9)))
    shutil.copytree(tiny_model, model)
    engine = engine_of(model)
    known = ContactHead(np.random.default_rng(0).normal(size=SHAPE).astype(np.float32), -1.0)
    head.save(engine.model, str(model), known)
    contacts(
        configured(model=str(model), input=[str(fasta)], output=str(out), max_residues=100), here
    )
    printed = capsys.readouterr().out
    assert (
        "GB for a protein of 100 residues" in printed
        and f"wrote {tmp_path / 'contacts'}" in printed
    )
    found = rows(out)
    rejects = rows(tmp_path / "contacts.csv.rejects.csv")
    assert len(rejects) == 1 and "120 residues; allowed are 100" in str(rejects)
    text = sequences[8]
    (matrix,) = (tmp_path / "contacts").glob("P8-*.npz")
    expected = known.probabilities(engine, Chain("a", text, "", *[np.ones(1, bool)] * 2).tokens)
    np.testing.assert_allclose(np.load(matrix)["contacts"], expected, atol=1e-6)
    np.testing.assert_allclose(np.loadtxt(matrix.with_suffix(".tsv")), expected, atol=6e-5)
    assert matrix.with_suffix(".png").stat().st_size > 5000
    mine = [row for row in found if row["id"] == "P8"]
    pairs = [(i, j) for i, j in itertools.combinations(range(len(text)), 2) if j - i >= 6]
    best = sorted((expected[pair] for pair in pairs), reverse=True)[: len(text)]
    np.testing.assert_allclose([float(row["probability"]) for row in mine], best, atol=1e-6)
    assert all(row["residue_i"] == text[int(row["i"]) - 1] for row in mine)
    # Two residues are too few for any pair; such a protein has a matrix and no row.
    assert not [row for row in found if row["id"] == "P1"] and list(
        (tmp_path / "contacts").glob("P1-*.png")
    )
    contacts(
        configured(model=str(model), input=[str(fasta)], output=str(out), max_residues=100), here
    )
    assert "already exists" in capsys.readouterr().out
    assert json.loads((tmp_path / "contacts.csv.json").read_text())["command"] == "contacts"
