"""Memory of a device at the peak of a step, counted from the tensors that this trainer keeps.

Bytes for T tokens per pack, C hidden size, H heads and L layers; s is the size of a number in the arithmetic,
2 for bf16. Autograd keeps these tensors per layer (``workloads/seqlm/proteins/families/esm2/model.py``):

* 4 TC: the input, which is the residual stream in fp32, for the layer norm
* s TC: the normed input, for the products of queries, keys and values
* 6s TC: for flash attention, queries, keys and values (the storage behind the view of the values), rotated
  queries and keys, and the attention's output; in addition 4 TH for its log-sums
* 4 TC: the residual stream again, for the second layer norm, and s TC for its output
* 8s TC: input and output of the GELU

Other devices and settings:

* On a CPU, attention keeps 5s TC and the probabilities.
* On NeuronCores (``proteins/model/window_attention.py``) attention keeps 8s TC, because keys and values are
  stored with their neighbors. It also keeps the probabilities over three times the longest protein, in fp32
  and in s. The compiler may keep less than PyTorch would.
* The last layer's feed-forward block and the head process only the predicted tokens. At the start of the
  backward pass they add no more than the last layer saves, so the peak is that of L whole layers.
* With activation checkpointing a layer keeps only its input, and one layer at a time is kept as a whole.
* On a GPU, ``train.kernels`` lets a run cast its weights once per step into buffers of s bytes per element of
  the layers' matrices and biases (``proteins/model/kernels/products.py``). They replace autocast's copies,
  and gradients of weights leave the products in fp32, where they stay.
* torch.compile keeps at most as much.
"""

from dataclasses import dataclass
from typing import Literal

from seqlm.proteins.model.shape import ModelShape, num_rows
from seqlm.runs.run_file import RunFile
from seqlm.training.config import LoraConfig
from tools.plan.model_size import Parameters

FP32 = 4
ADAM_STATE = 2 * FP32
"""Bytes of AdamW's two moments per parameter."""
MUON_STATE = FP32
"""Bytes of Muon's momentum per parameter, for the layers' matrices only."""
NF4 = 0.516
"""Bytes per parameter: 4 bits, and a scale of 8 bits per 64 parameters, which is itself scaled per 256."""
USABLE = 0.92
"""Share of a GPU's memory for the allocator. The rest is for the CUDA context, NCCL's buffers and
fragmentation. This is an allowance, not a measurement."""

Attention = Literal["flash", "segments", "window"]


@dataclass(frozen=True)
class Memory:
    """Memory of one device in bytes."""

    parameters: float
    gradients: float
    optimizer: float
    weights_in_use: float
    """Copies of weights in the type of the arithmetic, and with FSDP also gathered weights."""
    activations: float

    @property
    def total(self) -> float:
        return (
            self.parameters
            + self.gradients
            + self.optimizer
            + self.weights_in_use
            + self.activations
        )


@dataclass(frozen=True)
class Layout:
    """Layout of a run on devices."""

    config: RunFile
    shape: ModelShape
    parameters: Parameters
    world_size: int
    number_bytes: int = 2
    """Size s of a number: 2 for bf16, 4 for fp32."""
    attention: Attention = "flash"
    attended_pairs: float = 0.0
    """Sum of squared lengths of a pack's proteins, for the probabilities of attention by segments."""

    @property
    def shards(self) -> int:
        """Number of devices that share one copy of the model."""
        parallel = self.config.parallel
        return (parallel.shard_size or self.world_size) if parallel.mode == "fsdp" else 1

    @property
    def casts_weights_once(self) -> bool:
        """Whether the weights of layers are cast once per step, as ``train.kernels`` other than off does."""
        config = self.config
        is_possible = self.attention == "flash" and self.number_bytes < FP32
        has_plain_weights = config.parallel.mode == "ddp" and not (config.task and config.lora)
        return config.train.kernels != "off" and is_possible and has_plain_weights


def memory(layout: Layout) -> Memory:
    """Return the memory at the peak of a step; gradients exist from the first micro-batch on."""
    parameters = layout.parameters
    shards = layout.shards
    lora = layout.config.lora if layout.config.task else None
    frozen_bytes = NF4 if lora and lora.quantize == "nf4" else layout.number_bytes
    return Memory(
        parameters=(
            FP32 * (parameters.trained + parameters.frozen)
            + frozen_bytes * parameters.frozen_matrices
        )
        / shards,
        gradients=FP32 * parameters.trained / shards,
        optimizer=_optimizer_bytes(layout) / shards,
        weights_in_use=_weights_in_use(layout, lora),
        activations=_activations(layout, lora),
    )


def _optimizer_bytes(layout: Layout) -> float:
    trained = layout.parameters.trained
    if layout.config.optim.name == "adamw" or layout.config.lora:
        return ADAM_STATE * trained
    inner = layout.shape.layers * layout.shape.layer_matrices
    return MUON_STATE * inner + ADAM_STATE * (trained - inner)


def _weights_in_use(layout: Layout, lora: LoraConfig | None) -> float:
    """Return the bytes of the copies for a backward pass, and of FSDP's gathered current and next layer."""
    shape = layout.shape
    size = layout.number_bytes
    checkpointing = layout.config.train.activation_checkpointing
    matrices = shape.layer_matrices
    joined = shape.joined_matrices
    # A matrix has a gradient in the type of the arithmetic, and one in fp32.
    newest_gradient = shape.largest_matrix * (size + FP32)
    if lora is not None:
        return (
            2 * shape.largest_matrix * size
        )  # a frozen matrix with its adapter, or unpacked from 4 bits
    if layout.casts_weights_once:
        return (matrices + shape.matrix_biases) * size * shape.layers
    if layout.config.parallel.mode == "fsdp":
        gathered = 2 * matrices * size + (shape.embedding + shape.language_head) * size
        reduced = matrices * (size + FP32)
        kept = joined * size * (1 if checkpointing else shape.layers)
        return gathered + reduced + kept
    of_a_layer = (joined if size == FP32 else matrices) * size
    if not checkpointing:
        return of_a_layer * shape.layers + newest_gradient
    # Autocast keeps all casts of a forward pass until its end, except the joined matrices.
    in_forward = 0 if size == FP32 else (matrices - joined) * size * shape.layers
    return max(in_forward, of_a_layer + newest_gradient)


def _activations(layout: Layout, lora: LoraConfig | None) -> float:
    shape = layout.shape
    size = layout.number_bytes
    tokens = layout.config.train.tokens_per_pack
    unit = tokens * shape.hidden
    whole = layer_bytes(shape, size, layout.attention, lora) * tokens + _attention_extras(layout)
    if not layout.config.train.activation_checkpointing:
        return shape.layers * whole
    # Gradients around the activation function and of the residual stream.
    backward = (FP32 + size) * unit + size * tokens * shape.feed_forward_numbers(with_output=False)
    return shape.layers * FP32 * unit + (whole - FP32 * unit) + max(backward, head_bytes(layout))


def head_bytes(layout: Layout) -> float:
    """Return the bytes that the language model's head keeps for the predicted tokens.

    They are two normed inputs in fp32, and in s the inputs of two products and of a GELU. Probabilities over
    the vocabulary are negligible. The memory is released before the layers' backward passes begin.
    """
    if layout.config.task is not None:
        return 0.0
    predicted = num_rows(layout.config.train.tokens_per_pack, layout.config.model.mask_fraction)
    return predicted * layout.shape.hidden * (2 * FP32 + 3 * layout.number_bytes)


def layer_bytes(
    shape: ModelShape, size: int, attention: Attention, lora: LoraConfig | None = None
) -> int:
    """Return the bytes that a layer keeps for each token."""
    targets = set(lora.targets) if lora else None

    def is_kept(*names: str) -> bool:
        """Return whether a product keeps its input: a frozen one only if it has an adapter."""
        return targets is None or not targets.isdisjoint(names)

    around_attention = {"flash": 6, "segments": 4, "window": 7}[attention]
    context = attention != "flash" and is_kept("attention_output")
    inputs = is_kept("query", "key", "value") + context + is_kept("intermediate")
    inner = shape.feed_forward_numbers(with_output=is_kept("output"))
    in_fp32 = 2 * shape.hidden + shape.norm_numbers
    return FP32 * in_fp32 + size * ((inputs + around_attention) * shape.hidden + inner)


def window_keys(config: RunFile) -> int:
    """Return the number of keys per query in ``workloads/seqlm/proteins/model/window_attention.py``."""
    return min(config.train.tokens_per_pack, 3 * (config.model.max_residues + 2))


def _attention_extras(layout: Layout) -> float:
    if layout.attention == "flash":
        return FP32 * layout.config.train.tokens_per_pack * layout.shape.heads
    if layout.attention == "window":
        tokens = layout.config.train.tokens_per_pack
        window = window_keys(layout.config)
        mask = tokens * window
        return (FP32 + layout.number_bytes) * tokens * window * layout.shape.heads + mask
    return layout.number_bytes * layout.shape.heads * layout.attended_pairs
