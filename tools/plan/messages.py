"""Messages between the processes of a run in one optimizer step: which, how large and how many.

The counts follow the trainer (``seqlm/training/trainer.py``, ``parallel.py``) and torch:

* Without shards (``parallel.mode: ddp``), the gradients of a step are all-reduced in fp32. With the kernels
  of ``train.kernels``, this is one call after the last backward pass. Without them, DDP sends buckets during
  it.
* FSDP2 gathers the weights of each layer in the type of the arithmetic, in the forward and again in the
  backward pass of every micro-batch. Everything outside of layers is another unit, which stays gathered from
  the forward to the backward pass. After each backward pass, gradients are scattered in fp32.
* HSDP also all-reduces the scattered gradients between its replicas, in the last micro-batch of a step.
* A few numbers are added up: the number of targets, the loss, with FSDP2 the norm of each gradient, and the
  flags of a failure and of what ends or saves a run. With the flags, a logged step also sends four bytes per
  process, which are not counted.

FSDP2 pads the first dimension of each parameter to a multiple of the number of shards, and what it pads is
sent, too. The tests count the messages of real steps and compare them with these.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from seqlm.proteins.model.shape import Shape
from tools.plan.memory import FP32, Layout

Collective = Literal["all-reduce", "all-gather", "reduce-scatter"]
Members = Literal["all", "shards", "replicas"]
"""Processes that take part: all of a run, those that share a copy of the model, or those with the same share
of different copies."""
Reduction = Literal["flat", "buckets", "sharded"]
"""Reduction of gradients: in one call, in DDP's buckets, or by FSDP2."""

Purpose = Literal[
    "number of targets",
    "weights",
    "gradients",
    "gradients of replicas",
    "loss",
    "norms of gradients",
    "flags",
]
Part = Literal["layer", "rest", "model", "figure"]
"""Part of the model that a message carries: one layer, everything outside of layers, or gradients of any
parts. A figure is a number about the step."""

MIB = 2**20
BUCKET_BYTES = (1 * MIB, 25 * MIB)
"""Size from which DDP closes its first bucket, and each other one (torch's ``bucket_cap_mb`` and
``_DEFAULT_FIRST_BUCKET_BYTES``)."""
ALIGNMENT_BYTES = 256
"""Alignment of gradients in the buffer of a flat all-reduce. What it leaves free is sent, too. Gradients of
joined matrices have no gap between them, so a few bytes less are sent for some widths."""
COUNT_BYTES = FP32
"""Bytes of the number of targets."""
FLAGS_BYTES = 4 * FP32
"""Bytes of the flags of a step: to stop, a checkpoint is written, the record or the arithmetic has failed."""
FORWARD_AND_BACKWARD = 2
"""Gathers of a layer per micro-batch."""


@dataclass(frozen=True)
class Unit:
    """Part of a model whose weights travel together with FSDP2: a layer, or everything outside of layers."""

    trained: tuple[Shape, ...]
    """Shapes of the parameters with gradients, in the order of their use."""
    frozen: tuple[Shape, ...] = ()
    """Shapes of the parameters without gradients, which FSDP2 gathers, too."""


@dataclass(frozen=True)
class Parts:
    """Units of a model."""

    rest: Unit
    """Everything outside of layers."""
    layer: Unit
    """One layer; all are alike."""
    num_layers: int


@dataclass(frozen=True)
class Exchange:
    """Way in which the processes of a run exchange weights and gradients."""

    reduction: Reduction
    shards: int
    """Processes that share a copy of the model; 1 with DDP."""
    replicas: int
    """Copies of the model."""
    micro_batches: int
    """Micro-batches of a process in a step."""
    number_bytes: int
    """Bytes of a weight in the type of the arithmetic."""


@dataclass(frozen=True)
class Message:
    """Operations of one purpose and size in an optimizer step."""

    purpose: Purpose
    part: Part
    collective: Collective
    members: Members
    num_bytes: int
    """Bytes of the whole tensor: what a gather puts together, or a scatter divides."""
    count: int


def parts_of(layout: Layout) -> Parts:
    """Return the units of a model from the shapes of its parameters.

    The outputs of a task's head are a few rows and not counted. The two matrices of an adapter count as one
    tensor.
    """
    shape = layout.shape
    config = layout.config
    embedding = (shape.embedding // shape.hidden, shape.hidden)
    contact_head: tuple[Shape, ...] = ()
    if shape.contact_head:
        contact_head = ((1, shape.contact_head - 1), (1,))
    encoder = (embedding, *shape.last_norm_shapes)
    task_head = ((shape.hidden, shape.hidden), (shape.hidden,))
    if config.task is None:
        rest = Unit((*encoder, *shape.head_shapes), contact_head)
    elif config.lora is None:
        rest = Unit((*encoder, *task_head), contact_head)
    else:
        rest = Unit(task_head, (*encoder, *contact_head))
    layer = Unit(shape.layer_shapes)
    if config.task is not None and config.lora is not None:
        rank = config.lora.rank
        adapters = tuple((rank, shape.adapted[target]) for target in config.lora.targets)
        layer = Unit(adapters, shape.layer_shapes)
    return Parts(rest, layer, shape.layers)


def exchange_of(layout: Layout) -> Exchange:
    """Return the exchange of a run on the processes of a layout."""
    config = layout.config
    reduction: Reduction = "sharded"
    if config.parallel.mode == "ddp":
        # Weights that are cast once per step have gradients that are reduced at its end, without DDP.
        is_flat = layout.casts_weights_once and config.train.precision != "fp32"
        reduction = "flat" if is_flat else "buckets"
    return Exchange(
        reduction,
        shards=layout.shards,
        replicas=layout.world_size // layout.shards,
        micro_batches=math.ceil(config.packs_per_step / layout.world_size),
        number_bytes=layout.number_bytes,
    )


def messages(parts: Parts, exchange: Exchange) -> list[Message]:
    """Return the messages of one optimizer step."""
    found = [_figure("number of targets", COUNT_BYTES)]
    if exchange.reduction == "sharded":
        found += _of_units(parts.rest, "rest", 1, exchange, gathers=1)
        found += _of_units(
            parts.layer, "layer", parts.num_layers, exchange, gathers=FORWARD_AND_BACKWARD
        )
    else:
        found += [
            Message("gradients", "model", "all-reduce", "all", num_bytes, 1)
            for num_bytes in gradient_bytes(parts, exchange.reduction)
        ]
    found.append(_figure("loss", FP32))
    if exchange.shards > 1:
        num_gradients = len(parts.rest.trained) + parts.num_layers * len(parts.layer.trained)
        found.append(_figure("norms of gradients", FP32 * num_gradients, "shards"))
    found.append(_figure("flags", FLAGS_BYTES))
    return found


def _figure(purpose: Purpose, num_bytes: int, members: Members = "all") -> Message:
    return Message(purpose, "figure", "all-reduce", members, num_bytes, 1)


def _of_units(
    unit: Unit, part: Part, num_units: int, exchange: Exchange, *, gathers: int
) -> Iterator[Message]:
    """Yield the messages of equal units of FSDP2, each gathered ``gathers`` times per micro-batch."""
    shards = exchange.shards
    weights = exchange.number_bytes * padded_elements((*unit.trained, *unit.frozen), shards)
    gradients = FP32 * padded_elements(unit.trained, shards)
    passes = num_units * exchange.micro_batches
    if shards > 1:
        yield Message("weights", part, "all-gather", "shards", weights, gathers * passes)
        yield Message("gradients", part, "reduce-scatter", "shards", gradients, passes)
    if exchange.replicas > 1:
        share = gradients // shards
        yield Message("gradients of replicas", part, "all-reduce", "replicas", share, num_units)


def gradient_bytes(parts: Parts, reduction: Reduction) -> list[int]:
    """Return the sizes of the all-reduces of unsharded gradients.

    A bucket of DDP takes whole gradients until it has reached its size, in the order in which they become
    ready. Those of the head are ready first, then those of the last layer. The embedding's is the last,
    because the decoder of ESM-2 is the same matrix.
    """
    embedding, *others = parts.rest.trained
    layers = list(reversed(parts.layer.trained)) * parts.num_layers
    ready = [*reversed(others), *layers, embedding]
    sizes = [FP32 * math.prod(shape) for shape in ready]
    if reduction == "flat":
        return [sum(_rounded_up(size, ALIGNMENT_BYTES) for size in sizes)]
    return _buckets(sizes)


def padded_elements(shapes: Iterable[Shape], shards: int) -> int:
    """Return the number of elements with the first dimension padded to a multiple of the shards."""
    return sum(_rounded_up(rows, shards) * math.prod(others) for rows, *others in shapes)


def _rounded_up(number: int, divisor: int) -> int:
    """Return the smallest multiple of the divisor that is not below the number."""
    return math.ceil(number / divisor) * divisor


def _buckets(sizes: Sequence[int]) -> list[int]:
    """Join sizes to buckets; only the last one may be smaller than its limit."""
    first_limit, limit = BUCKET_BYTES
    found: list[int] = []
    filled = 0
    for size in sizes:
        filled += size
        if filled >= (limit if found else first_limit):
            found.append(filled)
            filled = 0
    if filled:
        found.append(filled)
    return found
