"""The memory model agrees with the tensors that real steps keep, and with their measured peaks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from transformers import EsmcConfig, PretrainedConfig

from seqlm.proteins.families.esm2.model import PackedEsm, published_config
from seqlm.proteins.families.esmc.model import PackedEsmcModel
from seqlm.proteins.families.table import MODEL_FAMILIES
from seqlm.proteins.finetune.task_kinds import TASK_KINDS
from seqlm.proteins.finetune.tasks import task_class
from seqlm.proteins.model import attention, packed_layer
from seqlm.proteins.model.packed_model import Pack, PackedModel
from seqlm.proteins.model.pretrained import of_config, on_meta
from seqlm.runs.run_file import load_config
from seqlm.training.adapters.adapters import add_adapters, shrink_frozen
from seqlm.training.config import LoraConfig, ParallelConfig
from seqlm.training.optimizer import build_optimizers
from seqlm.training.parallel import parallelize
from seqlm.training.processes import processes
from tests.tools.plan.planned_steps import (
    LENGTH,
    cast_weights,
    layout_of,
    loss_of,
    masked_pack,
    pack_of,
    run_config,
    shape_of_config,
)
from tools.plan.memory import Attention, Layout, head_bytes, memory
from tools.plan.model_size import parameters_of, shape_of
from tools.plan.report import remedies

KINDS: dict[int, Attention] = {2: "segments", 4: "flash"}
"""Kind of attention on a CPU, by the bytes of a number. In fp32 it is a flash kernel, as on a GPU."""
CONFIGS = Path("workloads/seqlm/configs")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def all_layers_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan does not deduct what ESMC's first layer spares, and the queries of the last on CPUs alone."""
    monkeypatch.setattr(PackedEsmcModel, "on_vocabulary", ())
    monkeypatch.setattr(packed_layer, "takes_rows", lambda x: False)


def small_config(family: str) -> PretrainedConfig:
    """ESM-2 8M, or an ESMC of that width."""
    if family == "esm2":
        return published_config("8M")
    return EsmcConfig(
        num_hidden_layers=6, hidden_size=320, num_attention_heads=5, intermediate_size=896
    )


def kept_bytes(model: nn.Module, pack: Pack, number_bytes: int) -> int:
    """Return the bytes of all tensors that autograd keeps in a forward pass, except the model's own."""
    own = {
        tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]
    }
    kept: dict[tuple[int, int], Tensor] = {}  # keeps them alive, so that no address is reused

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr(), tensor.storage_offset()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss_of(model, pack, number_bytes)
    not_own = [(place, tensor) for (place, _), tensor in kept.items() if place not in own]
    if number_bytes == 4:  # values are a third of a product
        return sum({place: tensor.untyped_storage().nbytes() for place, tensor in not_own}.values())
    # Tensors are counted instead of storages, because attention uses only part of its buffers.
    return sum(tensor.nbytes for _, tensor in not_own)


def adapted(esm: PretrainedConfig, lora: LoraConfig) -> PackedModel:
    with torch.device("meta"):
        model = task_class(esm, TASK_KINDS["binary"]).packed(esm)
    add_adapters(model, lora, of_config(esm).adapted)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    shrink_frozen(model, torch.bfloat16)
    return model


@pytest.mark.parametrize(
    ("family", "size"),
    [(name, size) for name, family in MODEL_FAMILIES.items() for size in family.sizes],
)
def test_parameter_counts_match_the_models(family: str, size: str) -> None:
    config = load_config(CONFIGS / "esm2_8m.yaml", [f"model.family={family}", f"model.size={size}"])
    model = on_meta(MODEL_FAMILIES[family].architecture().published(size))
    parameters = parameters_of(config, shape_of(config))
    assert parameters.total == sum(parameter.numel() for parameter in model.parameters())
    assert parameters.trained == sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.long
@pytest.mark.parametrize("rank", [4, 16])
@pytest.mark.parametrize("family", MODEL_FAMILIES)
def test_parameter_counts_with_adapters_match_the_models(family: str, rank: int) -> None:
    lora = LoraConfig(rank=rank)
    esm = small_config(family)
    model = adapted(esm, lora)
    parameters = parameters_of(run_config(512, lora=lora), shape_of_config(esm))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert parameters.trained == pytest.approx(trained, rel=0.01)
    in_16_bits = sum(p.numel() for p in model.parameters() if p.dtype == torch.bfloat16)
    assert parameters.frozen_matrices == in_16_bits
    assert parameters.total == pytest.approx(sum(p.numel() for p in model.parameters()), rel=0.01)


@pytest.mark.parametrize("number_bytes", [pytest.param(2, marks=pytest.mark.long), 4])
@pytest.mark.parametrize("family", MODEL_FAMILIES)
def test_agrees_with_the_tensors_that_autograd_keeps(family: str, number_bytes: int) -> None:
    """Autograd keeps all layers but the last one as a whole, and the last up to its feed-forward block."""
    esm = small_config(family)
    tokens = 512
    model = of_config(esm).masked_lm.packed(esm)
    kept = kept_bytes(model, masked_pack(tokens, torch.device("cpu")), number_bytes)
    layout = layout_of(run_config(tokens), esm, number_bytes, KINDS[number_bytes])
    found = memory(layout)
    # The second norm and later tensors.
    inner = layout.shape.feed_forward_numbers(with_output=True)
    last_block = ((4 + number_bytes) * esm.hidden_size + number_bytes * inner) * tokens
    newest_gradient = layout.shape.largest_matrix * (number_bytes + 4)
    expected = found.activations + found.weights_in_use - newest_gradient - last_block * (1 - 0.18)
    if family == "esmc" and number_bytes == 4:
        # In fp32, the inputs of the norms of queries and keys are parts of the product that has the values.
        expected -= 2 * number_bytes * esm.hidden_size * tokens * esm.num_hidden_layers
    assert kept == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("family", MODEL_FAMILIES)
def test_agrees_with_weights_that_are_cast_once_per_step(family: str) -> None:
    """Autograd keeps the copies of weights, not those of biases, and no others."""
    esm = small_config(family)
    tokens = 512
    config = run_config(tokens)
    model = of_config(esm).masked_lm.packed(esm)
    cast_weights(model, build_optimizers(model, config.optim))
    kept = kept_bytes(model, masked_pack(tokens, torch.device("cpu")), 2)
    layout = layout_of(config, esm, 2, "flash")
    assert layout.casts_weights_once
    copies = memory(layout).weights_in_use
    of_biases = 2 * layout.shape.matrix_biases * esm.num_hidden_layers
    inner = layout.shape.feed_forward_numbers(with_output=True)
    last_block = ((4 + 2) * esm.hidden_size + 2 * inner) * tokens
    activations = memory(replace(layout, attention="segments")).activations
    assert kept == pytest.approx(
        activations + copies - of_biases - last_block * (1 - 0.18), rel=0.03
    )


@pytest.mark.parametrize(
    ("size", "parameters"), [("650M", 0.65e9), ("3B", 2.84e9)], ids=["650M", "3B"]
)
def test_copies_have_two_bytes_for_each_parameter(size: str, parameters: float) -> None:
    config = load_config(CONFIGS / "esm2_8m.yaml", [f"model.size={size}"])
    shape = shape_of(config)
    layout = Layout(config, shape, parameters_of(config, shape), 1)
    found = memory(layout).weights_in_use
    assert found == pytest.approx(2 * parameters, rel=0.02)
    without = replace(config, train=replace(config.train, kernels="off"))
    recomputing = replace(config, train=replace(config.train, activation_checkpointing=True))
    # Without recomputation autograd keeps as many copies, and the newest gradient in bf16.
    assert memory(replace(layout, config=without)).weights_in_use > 0.99 * found
    assert memory(replace(layout, config=recomputing)).weights_in_use == found


@pytest.mark.parametrize(
    "override", ["train.kernels=off", "train.precision=fp32", "parallel.mode=fsdp"]
)
def test_other_runs_keep_no_copies(override: str) -> None:
    config = load_config(CONFIGS / "esm2_8m.yaml", [override])
    shape = shape_of(config)
    number_bytes = 4 if config.train.precision == "fp32" else 2
    layout = Layout(config, shape, parameters_of(config, shape), 2, number_bytes)
    assert not layout.casts_weights_once


@pytest.mark.long
@pytest.mark.parametrize("family", MODEL_FAMILIES)
def test_agrees_with_checkpointing(family: str) -> None:
    esm = small_config(family)
    tokens = 1024
    model = of_config(esm).masked_lm.packed(esm)
    model.activation_checkpointing = True
    kept = kept_bytes(model, masked_pack(tokens, torch.device("cpu")), 2)
    layout = layout_of(run_config(tokens, checkpointing=True), esm, 2, "segments")
    inputs = esm.num_hidden_layers * 4 * tokens * esm.hidden_size
    angles = 4 * tokens * esm.hidden_size // esm.num_attention_heads
    assert kept == pytest.approx(inputs + angles + head_bytes(layout), rel=0.03)


@pytest.mark.long
@pytest.mark.parametrize("targets", [LoraConfig().targets, ("query", "value")])
@pytest.mark.parametrize("family", MODEL_FAMILIES)
def test_agrees_with_adapters(family: str, targets: tuple[str, ...]) -> None:
    esm = small_config(family)
    tokens = 512
    lora = LoraConfig(targets=targets)  # type: ignore[arg-type]
    rows = torch.arange(0, tokens, LENGTH)
    kept = kept_bytes(adapted(esm, lora), pack_of(tokens, rows=rows, device=torch.device("cpu")), 2)
    found = memory(layout_of(run_config(tokens, lora=lora), esm, 2, "segments"))
    # The last block sees one row per protein. The first layer norm of a frozen embedding keeps nothing.
    shape = shape_of_config(esm)
    inner = shape.feed_forward_numbers(with_output="output" in targets)
    spared = ((4 + 4 + 2 * ("output" in targets)) * esm.hidden_size + 2 * inner) * tokens
    assert kept == pytest.approx(found.activations - spared, rel=0.05)


@pytest.fixture
def exact_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of attention's buffers grows in steps that are larger than the tensors of small models."""
    monkeypatch.setattr(attention, "BUFFER_STEP_ELEMENTS", 1 << 12)


def peak_of_step(model: nn.Module, pack: Pack, number_bytes: int) -> int:
    """Return the peak of torch's allocator during a forward and backward pass, which finds no buffers."""
    attention.buffers = attention.Buffers()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        loss_of(model, pack, number_bytes).backward()
    assert profiler.profiler is not None
    events = [
        event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(changes))


@pytest.mark.long
@pytest.mark.usefixtures("exact_buffers")
@pytest.mark.parametrize(
    ("number_bytes", "checkpointing", "layers", "tokens"),
    [(4, False, 4, 512), (2, False, 4, 256), (2, True, 2, 512)],
)
@pytest.mark.parametrize("family", MODEL_FAMILIES)
def test_agrees_with_real_peaks_on_the_cpu(
    family: str, number_bytes: int, checkpointing: bool, layers: int, tokens: int
) -> None:
    esm = small_config(family)
    length = tokens // 2
    esm.num_hidden_layers = layers
    model = of_config(esm).masked_lm.packed(esm)
    device = torch.device("cpu")
    model.activation_checkpointing = checkpointing
    loss_of(model, masked_pack(256, device), number_bytes).backward()  # creates the gradients
    peak = peak_of_step(model, masked_pack(tokens, device, length), number_bytes)
    config = run_config(tokens, checkpointing=checkpointing)
    found = memory(layout_of(config, esm, number_bytes, KINDS[number_bytes], length))
    # The formula takes the largest matrix's gradient to be new while all layers' activations are kept.
    least = {"esm2": 0.9, "esmc": 0.8}[family]
    assert least < peak / (found.activations + found.weights_in_use) < 1.05


@pytest.mark.long
@pytest.mark.usefixtures("exact_buffers")
@pytest.mark.parametrize(("mode", "least"), [("ddp", 0.85), ("fsdp", 0.75)])
def test_copies_of_weights_in_a_wide_model(mode: Literal["ddp", "fsdp"], least: float) -> None:
    """With few tokens and wide layers, copies are most of the peak. With FSDP the model overestimates."""
    esm = published_config("150M")
    tokens = 64
    esm.num_hidden_layers = 2
    config = replace(run_config(tokens), parallel=ParallelConfig(mode=mode))
    with torch.device("meta"):
        empty = PackedEsm(esm)
    with processes() as here:
        model = parallelize(
            empty, PackedEsm(esm).state_dict(), config.parallel, here, torch.bfloat16
        )
        loss_of(model, masked_pack(tokens, here.device, tokens), 2).backward()
        peak = peak_of_step(model, masked_pack(tokens, here.device, tokens), 2)
    found = memory(layout_of(config, esm, 2, "segments", tokens))
    assert found.weights_in_use > 3 * found.activations
    assert least < peak / (found.activations + found.weights_in_use) < 1


def test_suggested_changes_make_a_run_fit() -> None:
    config = load_config(CONFIGS / "esm2_650m.yaml")
    shape = shape_of(config)
    layout = Layout(config, shape, parameters_of(config, shape), 16)
    usable = 22 * 2**30 * 0.92
    assert memory(layout).total > usable
    found = remedies(layout, usable)
    assert found
    for changes in found:
        changed = load_config(CONFIGS / "esm2_650m.yaml", changes.split())
        assert memory(replace(layout, config=changed)).total <= usable, changes


def test_no_change_is_suggested_if_the_states_do_not_fit() -> None:
    config = load_config(CONFIGS / "esm2_15b.yaml")
    shape = shape_of(config)
    layout = Layout(config, shape, parameters_of(config, shape), 2)
    assert remedies(layout, 80 * 2**30) == []
