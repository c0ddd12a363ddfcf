"""Models with heads and their losses, against transformers' own."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig
from peft.tuners.lora import Linear as PeftLinear
from sklearn.utils.class_weight import compute_class_weight
from transformers import PretrainedConfig

from seqlm.proteins.finetune.labelled import LabelledSplit
from seqlm.proteins.finetune.objective import LabelledPack, LabelledStream, labelled_pack
from seqlm.proteins.finetune.task_kinds import TASK_KINDS
from seqlm.proteins.finetune.tasks import TaskLoss, new_head, task_class, task_config
from seqlm.runs.run_file import load_config
from seqlm.training.adapters.adapted_linear import AdaptedLinear
from seqlm.training.packing import PackShape
from seqlm.training.saved_model import assigned
from tests.workloads.proteins.finetune.labelled_proteins import TASKS, write_task_file

BOTH_FAMILIES = True

CPU = torch.device("cpu")
MAX_RESIDUES = 126


@pytest.fixture(scope="module", params=TASKS)
def split(
    request: pytest.FixtureRequest, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> LabelledSplit:
    run_file = write_task_file(tmp_path_factory.mktemp(request.param), tiny_model, request.param)
    return LabelledSplit(load_config(run_file).data.path, "train")


def loaded(split: LabelledSplit) -> tuple[LabelledStream, LabelledPack, np.ndarray]:
    """A pack of the split, and which of its proteins it holds."""
    stream = LabelledStream(split, PackShape.of(split, 512, MAX_RESIDUES), seed=0)
    planned = next(stream.epoch(0))
    return stream, stream.load(planned), planned.units


def test_outputs_and_loss_are_those_of_transformers(
    split: LabelledSplit, tiny_config: PretrainedConfig
) -> None:
    kind = split.schema.kind
    config = task_config(tiny_config, split.schema)
    torch.manual_seed(1)
    reference = task_class(config, TASK_KINDS[kind]).plain(config).eval()
    assert config.num_labels == split.schema.num_outputs
    with torch.device("meta"):
        packed = task_class(config, TASK_KINDS[kind]).packed(config)
    state = {name: value for name, value in reference.state_dict().items()}
    packed = assigned(packed, state).eval()  # without dropout
    stream, host, units = loaded(split)
    pack = labelled_pack(host, stream.shape.max_length, CPU)
    loss = TaskLoss(split, balanced=False)
    with torch.no_grad():
        outputs = packed(pack)
    total = 0.0
    for index in range(len(units)):
        start, stop = host.cumulative[index : index + 2]
        tokens = torch.from_numpy(host.tokens[start:stop].astype(np.int64))[None]
        assert tokens.shape[1] <= MAX_RESIDUES + 2
        targets = torch.from_numpy(
            host.targets[start:stop] if kind == "residue" else host.targets[[index]]
        )
        rows = slice(start, stop) if kind == "residue" else slice(index, index + 1)
        with torch.no_grad():
            expected = (
                reference(tokens).logits[0] if kind == "residue" else reference(tokens).logits
            )
        torch.testing.assert_close(outputs[rows], expected, rtol=1e-5, atol=1e-5)
        given: torch.Tensor = targets[None] if kind == "residue" else targets
        if kind == "multiclass":
            given = given[:, 0].long()
        if kind == "regression":
            given = (given - torch.from_numpy(loss.shift)) / torch.from_numpy(loss.scale)
        count = int(loss.num_targets(targets))
        # transformers knows missing labels of residues alone.
        if count == targets.numel() or kind == "residue":
            with torch.no_grad():
                theirs = reference(tokens, labels=given).loss * count
            torch.testing.assert_close(loss(outputs[rows], targets), theirs, rtol=1e-4, atol=1e-5)
            total += count
    assert total > len(units) / 2, "most are compared"


def test_labels_of_a_pack_are_those_of_its_proteins(split: LabelledSplit) -> None:
    _, host, units = loaded(split)
    if split.schema.kind == "residue":
        for index, labels in enumerate(split.token_labels(units)):
            start, stop = host.cumulative[index : index + 2]
            assert host.targets[start] == host.targets[stop - 1] == -100, "CLS and EOS have none"
            assert host.targets[start + 1 : stop - 1].tolist() == labels[:MAX_RESIDUES].tolist()
        assert (host.targets[host.cumulative[len(units)] :] == -100).all()
        return
    np.testing.assert_array_equal(host.targets[: len(units)], split.labels(units))
    assert np.isnan(host.targets[len(units) :]).all()


def test_class_weights_are_those_of_the_training_split(split: LabelledSplit) -> None:
    kind = split.schema.kind
    if kind == "regression":
        return  # without classes
    units = np.arange(split.num_units)
    flat = np.concatenate(split.token_labels(units)) if kind == "residue" else split.labels(units)
    rng = np.random.default_rng(0)
    outputs = torch.from_numpy(rng.normal(size=(4, split.schema.num_outputs)).astype(np.float32))
    balanced = TaskLoss(split, balanced=True)
    plain = TaskLoss(split, balanced=False)
    if kind in ("multiclass", "residue"):
        flat = flat[flat >= 0].astype(int).ravel()
        weights = compute_class_weight("balanced", classes=np.unique(flat), y=flat)
        for place, weight in enumerate(weights):
            targets = torch.full((4, 1), float(place))
            targets = targets[:, 0].long() if kind == "residue" else targets
            ratio = float(balanced(outputs, targets) / plain(outputs, targets))
            assert ratio == pytest.approx(weight, rel=1e-5)
        return
    for column in range(flat.shape[1]):
        positives, negatives = ((flat[:, column] == value).sum() for value in (1, 0))
        for label, weight in ((1.0, negatives / positives), (0.0, 1.0)):
            targets = torch.full((4, flat.shape[1]), torch.nan)
            targets[:, column] = label
            ratio = float(balanced(outputs, targets) / plain(outputs, targets))
            assert ratio == pytest.approx(weight, rel=1e-5)


def test_a_new_head_depends_on_the_seed_alone(
    split: LabelledSplit, tiny_config: PretrainedConfig
) -> None:
    kind = split.schema.kind
    config = task_config(tiny_config, split.schema)
    heads = []
    for seed in (0, 0, 1):
        torch.rand(3)
        heads.append(
            torch.cat(
                [value.ravel() for value in new_head(config, TASK_KINDS[kind], seed).values()]
            )
        )
    assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])


def test_adapted_matrix_is_that_of_peft() -> None:
    torch.manual_seed(0)
    theirs = PeftLinear(
        torch.nn.Linear(12, 20).requires_grad_(False), "default", LoraConfig(), r=4, lora_alpha=12
    )
    torch.nn.init.normal_(theirs.lora_B["default"].weight)
    x = torch.randn(7, 12, requires_grad=True)
    weights = torch.randn(7, 20)
    ours = copy.deepcopy(theirs)
    ours.__class__ = AdaptedLinear
    found = []
    for layer in (theirs, ours):
        x.grad = None
        outputs = layer(x)
        (outputs * weights).sum().backward()
        a, b = (part["default"].weight.grad for part in (layer.lora_A, layer.lora_B))
        assert layer.base_layer.weight.grad is None
        found.append((outputs.detach(), x.grad, a, b))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)
