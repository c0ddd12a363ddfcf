"""Drawn proteins, small models of them, and how far two results are apart.

Shapes: T tokens, C hidden size.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import EsmConfig, EsmForMaskedLM

from seqlm.proteins.alphabet import CLS, FIRST_RESIDUE, NUM_STANDARD_RESIDUES
from seqlm.proteins.families.esm2.model import PackedEsm, published_config
from seqlm.proteins.model.masking import mask_pack
from seqlm.proteins.model.packed_model import Pack
from seqlm.proteins.model.pretrained import with_weights
from seqlm.proteins.model.protein_packs import ProteinStream
from seqlm.proteins.pretraining.objective import Pretraining
from seqlm.runs.run_file import ModelConfig, RunFile
from seqlm.training.config import OptimConfig, TrainConfig
from seqlm.training.objective import Objective
from seqlm.training.packing import PackShape
from seqlm.training.records import Drawn, RecordSplit, Split
from seqlm.training.step.staging import AnyPack

HEAD_SIZES = (16, 24, 32, 64, 128)
"""Head sizes of ESM-2 from 8M to 15B."""
PACKS_PER_STEP = 4


@dataclass(frozen=True)
class Scale:
    """Sizes of the tests."""

    tokens: int = 8192
    """Tokens of a pack."""
    max_residues: int = 1022
    heads: int = 4
    """Heads of the models with two layers."""
    model: str = "8M"
    """Published size that the hygiene tests train; ``-`` for two layers of 16."""
    steps: int = 20
    tokens_of_a_run: int = 65_536
    """Tokens of a pack of a run, with which kernels are compared when it starts."""

    @staticmethod
    def rehearsal() -> Scale:
        return Scale(tokens=256, max_residues=126, heads=2, model="-", steps=4, tokens_of_a_run=256)


class DrawnSplit(RecordSplit):
    """Proteins of lengths as in UniRef50 (log-normal, median 220), without files."""

    def __init__(self, num_proteins: int = 2000, longest: int = 1200) -> None:
        rng = np.random.default_rng(0)
        lengths = np.clip(
            rng.lognormal(np.log(min(220, longest / 2)), 0.7, num_proteins), 1, longest
        )
        self._lengths = lengths.astype(np.int64)
        letters = FIRST_RESIDUE + NUM_STANDARD_RESIDUES
        self._proteins = [
            rng.integers(FIRST_RESIDUE, letters, length, dtype=np.uint8) for length in self._lengths
        ]
        self.num_units = self.num_records = num_proteins
        self.num_tokens = int(self._lengths.sum())
        self.manifest: Any = SimpleNamespace(splits={"train": SimpleNamespace(shards=())})

    def drawn(self, units: npt.NDArray[np.int64], seed: int, epoch: int) -> Drawn:
        return Drawn(np.zeros_like(units), units, self._lengths[units])

    def crops(
        self,
        places: Sequence[tuple[int, int]],
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.uint8]:
        parts: list[npt.NDArray[np.uint8]] = []
        for (_, unit), start, length in zip(places, starts, lengths, strict=True):
            parts.append(self._proteins[unit][start : start + length])
        return np.concatenate(parts)

    def token_ids(self, place: tuple[int, int]) -> npt.NDArray[np.uint8]:
        return self._proteins[place[1]]


class DrawnPretraining(Pretraining):
    """Pre-training on drawn proteins, in micro-batches of four a step.

    As soon as ``fails`` is set, the losses of new packs are not numbers. The packs have the reason, because a
    CUDA graph replays the operations on them and calls no function of this class.
    """

    def __init__(self, scale: Scale, *, compile: bool) -> None:
        train = TrainConfig(
            max_steps=1000,
            tokens_per_pack=scale.tokens,
            tokens_per_step=PACKS_PER_STEP * scale.tokens,
            precision="bf16",
            compile="on" if compile else "off",
        )
        config = RunFile(
            name="gpu-tests",
            model=ModelConfig(max_residues=scale.max_residues),
            optim=OptimConfig(warmup_steps=1),
            train=train,
        )
        self.esm_config = drawn_config(scale, head_size=8)
        Objective.__init__(
            self, config, DrawnSplit(longest=scale.max_residues + 100), self.esm_config
        )
        self.fails = False

    def open(self, split: Split) -> RecordSplit:
        return self.split

    def weights(self) -> dict[str, Tensor]:
        return drawn_weights(self.esm_config)

    def pack(self, host: AnyPack, shape: PackShape, device: torch.device) -> Pack:
        pack = super().pack(host, shape, device)
        if self.fails:
            pack.token_scale.fill_(torch.nan)
        return pack


def two_layers(head_size: int, heads: int) -> EsmConfig:
    config = published_config("8M")
    config.num_hidden_layers = 2
    config.num_attention_heads = heads
    config.hidden_size = heads * head_size
    config.intermediate_size = 4 * heads * head_size
    return config


def drawn_config(scale: Scale, head_size: int = 16) -> EsmConfig:
    """Configuration of the scale's published size, or of two layers with heads of this size."""
    return (
        two_layers(head_size, scale.heads) if scale.model == "-" else published_config(scale.model)
    )


def drawn_weights(config: EsmConfig) -> dict[str, Tensor]:
    """Weights whose attention scores have a standard deviation of about 1, as in a trained model.

    transformers' own are so small that every token attends to all others alike, and wrong scores would not
    show.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = EsmForMaskedLM(config)
        for module in model.esm.encoder.layer.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
                nn.init.normal_(module.bias, std=0.02)
    return model.state_dict()


def reference_model(config: EsmConfig, device: torch.device) -> EsmForMaskedLM:
    """transformers' model in fp32 on the device, with attention as plain products."""
    model = EsmForMaskedLM(copy.deepcopy(config)).eval()
    model.load_state_dict(drawn_weights(config))
    model.set_attn_implementation("eager")
    return model.to(device)


def packed_model(config: EsmConfig, device: torch.device) -> PackedEsm:
    """The project's model with the same weights."""
    return with_weights(config, drawn_weights(config)).to(device)


def masked_packs(scale: Scale, device: torch.device, number: int) -> list[Pack]:
    split = DrawnSplit(longest=scale.max_residues + 100)
    stream = ProteinStream(split, PackShape.of(split, scale.tokens, scale.max_residues), seed=3)
    planned = [pack for pack, _ in zip(stream.epoch(0), range(number), strict=False)]
    return [mask_pack(stream.load(pack), stream.shape.max_length, 0.15, device) for pack in planned]


def empty_pack(scale: Scale, device: torch.device) -> Pack:
    """A pack of padding alone, which a process gets that has nothing else to do."""
    split = DrawnSplit(longest=scale.max_residues + 100)
    stream = ProteinStream(split, PackShape.of(split, scale.tokens, scale.max_residues), seed=3)
    return mask_pack(stream.load(None), stream.shape.max_length, 0.15, device)


def proteins_of(pack: Pack) -> list[slice]:
    """Places of the proteins: the segments that begin with CLS."""
    bounds = pack.segments.cumulative.tolist()
    firsts = pack.tokens.cpu()
    return [slice(a, b) for a, b in pairwise(bounds) if b > a and firsts[a] == CLS]


def under_autocast(device: torch.device, *, enabled: bool = True) -> torch.autocast:
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.float() for name, p in model.named_parameters() if p.grad is not None}


def difference(found: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm of what is expected."""
    found = found.double()
    expected = expected.double()
    return ((found - expected).norm() / expected.norm()).item()


def worst_protein(found: list[Tensor], expected: list[Tensor]) -> float:
    return max(difference(*pair) for pair in zip(found, expected, strict=True))


def worst_difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Largest relative difference of a tensor.

    Tensors below a thousandth of the largest norm are compared to that: most of what they hold cancels, and
    rounding errors are left.
    """
    assert found.keys() == expected.keys()
    floor = 1e-3 * max(value.double().norm().item() for value in expected.values())
    return max(
        (found[name].double() - value.double()).norm().item()
        / max(value.double().norm().item(), floor)
        for name, value in expected.items()
    )
