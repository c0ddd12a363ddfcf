"""Embeddings do not depend on the batch; constant shapes compile once; the host stays a pack ahead."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from seqlm.proteins.alphabet import CLS, PAD
from seqlm.proteins.inference import engine as engine_module
from seqlm.proteins.inference.engine import (
    COMPILE_FROM_RESIDUES,
    EMBEDDING,
    MASKED_LOGITS,
    PROTEIN_LOGITS,
    RESIDUE_EMBEDDINGS,
    Answer,
    Engine,
    _Running,
    compile_from,
)
from seqlm.proteins.model.packed_layer import PackedLayer
from seqlm.proteins.model.packed_model import Pack
from seqlm.proteins.model.pretrained import load_model, save_esm, starting_config, starting_weights
from seqlm.runs.run_file import ModelConfig
from seqlm.training.config import TrainConfig

BOTH_FAMILIES = True

CPU = torch.device("cpu")
Tokens = npt.NDArray[np.uint8]
BF16_BOUND = 0.01
"""Limit in docs/inference.md for the relative norm of the difference of a protein's two embeddings."""


@pytest.fixture(scope="module")
def real_shape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Published 8M shape with random weights; larger queries and keys make the attention uneven."""
    config = ModelConfig(size="8M")
    weights = starting_weights(config, 0)
    for name, tensor in weights.items():
        if name.endswith(("query.weight", "key.weight")):
            tensor.mul_(6)
    folder = tmp_path_factory.mktemp("8M")
    save_esm(folder, starting_config(config), weights)
    return folder


def proteins(*lengths: int) -> list[Tokens]:
    rng = np.random.default_rng(len(lengths))
    return [rng.integers(4, 24, size=length).astype(np.uint8) for length in lengths]


@pytest.fixture
def not_compiled(monkeypatch: pytest.MonkeyPatch) -> list[PackedLayer]:
    """List the layers that would be compiled."""
    layers: list[PackedLayer] = []
    monkeypatch.setattr(PackedLayer, "compile", lambda layer, **options: layers.append(layer))
    return layers


def recorded(answer: Answer, packs: list[Pack]) -> Answer:
    """Return the same answer, which lists the packs that the model gets."""

    def compute(model: Any, pack: Pack) -> torch.Tensor:
        packs.append(pack)
        return answer.compute(model, pack)

    return dataclasses.replace(answer, compute=compute)


def sizes(packs: list[Pack]) -> list[int]:
    return [len(pack.tokens) for pack in packs]


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embeddings_do_not_depend_on_the_batch(
    dtype: torch.dtype,
    real_shape: Path,
    not_compiled: list[PackedLayer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_module, "SMALLEST_SHAPE", 64)
    # The longest are read in windows. Lengths lie on both sides of the rounded ones.
    ours = proteins(1, 5, 31, 33, 90)
    packs: list[Pack] = []
    embedding = recorded(EMBEDDING, packs)
    model = load_model(str(real_shape))
    engine = Engine(model, device=CPU, dtype=dtype, max_residues=60)
    alone = [engine.run([protein], embedding)[0] for protein in ours]
    assert sizes(packs) == [3, 7, 33, 35, 2 * 62], "natural shapes"
    batches = {"together": engine.run(ours, embedding)}
    engine.tokens_per_pack = 70
    batches["another order and pack size"] = engine.run(ours[::-1], embedding)[::-1]
    assert not not_compiled
    packs.clear()
    padding = Engine(
        model, device=CPU, dtype=dtype, max_residues=60, tokens_per_pack=256, compile_from=0
    )
    batches["padded"] = padding.run(ours, embedding)
    residues = padding.run(ours, recorded(RESIDUE_EMBEDDINGS, packs))
    batches["padded, from residues"] = [rows.mean(axis=0) for rows in residues]
    assert sizes(packs) == [256, 256] and len(not_compiled) == 6
    for name, found in batches.items():
        for one, expected in zip(found, alone, strict=True):
            if dtype == torch.float32:
                np.testing.assert_allclose(one, expected, atol=1e-5, rtol=0, err_msg=name)
            else:
                assert np.linalg.norm(one - expected) < BF16_BOUND * np.linalg.norm(expected), name


@pytest.mark.long
@pytest.mark.parametrize("answer", [EMBEDDING, MASKED_LOGITS])
def test_nothing_compiles_after_the_warm_up(
    answer: Answer, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs: list[Any] = []

    def counting(graph: Any, inputs: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward  # type: ignore[no-any-return]

    monkeypatch.setattr(
        PackedLayer,
        "compile",
        lambda layer, **options: nn.Module.compile(layer, backend=counting, **options),
    )
    torch._dynamo.reset()
    engine = Engine(
        load_model(str(tiny_model)),
        device=CPU,
        dtype=torch.float32,
        tokens_per_pack=4096,
        compile_from=0,
    )
    engine.warm_up(answer)
    compiled = len(graphs)
    assert compiled > 0
    batches = [proteins(9), proteins(*[30] * 20), proteins(*range(1, 90)), proteins(1022, 300)]
    for batch in batches:
        for protein in batch:
            protein[0] = 32  # <mask>, which masked logits require
        engine.run(batch, answer)
    assert len(graphs) == compiled
    torch._dynamo.reset()


def test_short_proteins_get_a_small_shape(
    tiny_model: Path, not_compiled: list[PackedLayer]
) -> None:
    engine = Engine(
        load_model(str(tiny_model)),
        device=CPU,
        dtype=torch.float32,
        tokens_per_pack=16_384,
        compile_from=0,
    )
    for batch, expected in [
        (proteins(30, 40, 50), [1024]),
        (proteins(*[4] * 20), [4096]),  # more proteins than the smallest shape has segments
        (proteins(*[500] * 40), [16_384, 4096]),
    ]:
        packs: list[Pack] = []
        engine.run(batch, recorded(EMBEDDING, packs))
        assert sizes(packs) == expected


def test_padding_is_spread_over_the_spare_segments(
    tiny_model: Path, not_compiled: list[PackedLayer]
) -> None:
    rng = np.random.default_rng(0)
    shapes = set()
    for max_residues in (10, 100, 1022):
        engine = Engine(
            load_model(str(tiny_model)),
            device=CPU,
            dtype=torch.float32,
            tokens_per_pack=2048,
            max_residues=max_residues,
            compile_from=0,
        )
        for count in (1, 30):
            packs: list[Pack] = []
            batch = proteins(*rng.integers(1, 1.5 * max_residues, size=count))
            engine.run(batch, recorded(EMBEDDING, packs))
            for pack in packs:
                bounds = pack.segments.cumulative
                lengths = bounds.diff()
                assert bounds[0] == 0 and bounds[-1] == len(pack.tokens)
                assert (
                    lengths.min() >= 0
                    and lengths.max() <= pack.segments.max_length == max_residues + 2
                )
                # Padding comes after the last protein, in segments of nearly equal lengths.
                num_proteins = int((pack.tokens == CLS).sum())
                padding = lengths[num_proteins:]
                assert (pack.tokens[int(bounds[num_proteins]) :] == PAD).all()
                assert not len(padding) or padding.max() - padding.min() <= 1
                shapes.add((len(pack.tokens), len(lengths), pack.segments.max_length))
    assert len(shapes) > 2


def test_layers_compile_after_enough_residues(
    tiny_model: Path, not_compiled: list[PackedLayer]
) -> None:
    engine = Engine(load_model(str(tiny_model)), device=CPU, dtype=torch.float32, compile_from=100)
    packs: list[Pack] = []
    embedding = recorded(EMBEDDING, packs)
    engine.run(proteins(60), embedding)
    assert sizes(packs) == [62] and not not_compiled
    engine.run(proteins(50), embedding)
    engine.run(proteins(50), embedding)
    assert sizes(packs) == [62, 2048, 2048]
    assert len(not_compiled) == len(engine.model.layers), "each of them once"
    assert compile_from(TrainConfig(compile="off"), CPU) is None
    assert compile_from(TrainConfig(compile="on"), CPU) == 0
    assert compile_from(TrainConfig(), CPU) is None, "not on a CPU"


def test_cuda_compiles_from_a_number_of_residues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "compiles", lambda train, device: True)
    assert compile_from(TrainConfig(), torch.device("cuda")) == COMPILE_FROM_RESIDUES


def test_the_device_has_the_next_pack_before_a_pack_is_reported(tiny_model: Path) -> None:
    events: list[str] = []

    def compute(model: Any, pack: Pack) -> torch.Tensor:
        events.append(f"compute {len(pack.rows)} proteins")
        return EMBEDDING.compute(model, pack)

    engine = Engine(
        load_model(str(tiny_model)), device=CPU, dtype=torch.float32, tokens_per_pack=60
    )
    engine.on_residues = lambda number: events.append(f"{number} residues are done")
    engine.run(proteins(50, 20, 20, 10, 10, 10), dataclasses.replace(EMBEDDING, compute=compute))
    assert events == [
        "compute 1 proteins",
        "compute 3 proteins",
        "50 residues are done",
        "compute 2 proteins",
        "50 residues are done",
        "20 residues are done",
    ]


@pytest.mark.parametrize("answered", [None, np.array([[1, 3], [3, 4]])])
def test_answers_wait_for_the_device_and_are_copies(answered: npt.NDArray[np.int64] | None) -> None:
    rows = torch.zeros(5, 2)  # pinned memory, which the device fills later

    class Event:
        def synchronize(self) -> None:
            rows.copy_(torch.arange(10.0).view(5, 2))

    running: Any = _Running([None, None], answered, rows, Event())  # type: ignore[list-item,arg-type]
    found = running.answers()
    rows.zero_()  # the memory is reused
    expected = [[[2, 3], [4, 5]], [[6, 7]]] if answered is not None else [[0, 1], [2, 3]]
    assert [one.tolist() for one in found] == expected


def test_no_proteins(tiny_model: Path) -> None:
    engine = Engine(load_model(str(tiny_model)), device=CPU, dtype=torch.float32)
    assert engine.run([], PROTEIN_LOGITS) == []
