"""Speed of a run on more GPUs: a model of computation and communication, not a measurement.

Inputs are the time of a pack on one GPU, the messages of a step (``messages.py``) and the time of each on the
network (``network.py``). These assumptions say what overlaps:

* A step takes as many rounds as the GPU with the most packs has micro-batches.
* The backward pass takes two thirds of a micro-batch; with recomputed layers three quarters.
* A flat all-reduce begins when the last backward pass has ended.
* DDP's buckets are sent one after the other, each as soon as its gradients are ready. Gradients become ready
  in proportion to their size.
* FSDP2 gathers a layer while the one before it computes, and scatters gradients while the next one computes.
  The first gathers and the last scatter of a pass overlap with nothing.
* HSDP's all-reduces use other connections than gathers and scatters if a copy of the model fits into a node.
* The few figures of a step are added up one after the other, and overlap with nothing.
* Communication takes no arithmetic units from computation, all GPUs are equally fast, and the optimizer is
  part of a pack's time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tools.plan.memory import Layout
from tools.plan.messages import (
    Exchange,
    Members,
    Message,
    Part,
    Purpose,
    exchange_of,
    messages,
    parts_of,
)
from tools.plan.network import Group, Network
from tools.plan.speed import FILL

BACKWARD_SHARE = 2 / 3
"""Share of the backward pass in a micro-batch: 4 of 6 FLOPs per parameter and token."""
BACKWARD_SHARE_RECOMPUTED = 3 / 4
"""The same with recomputed layers: 6 of 8 FLOPs."""
FEWEST_GPUS = 8
MOST_GPUS = 512
"""First and last of the numbers of GPUs, each twice the one before."""


@dataclass(frozen=True)
class Scaled:
    """Speed of a run on a number of GPUs."""

    num_gpus: int
    step_seconds: float
    message_seconds: float
    """Duration of all messages of a step over NCCL, hidden behind computation or not."""
    waiting_seconds: float
    """Part of the step in which GPUs only communicate."""
    residues_per_second: float
    efficiency: float
    """Residues per second, relative to as many GPUs with the speed of one."""


def sizes(world_size: int) -> list[int]:
    """Return the numbers of GPUs of the table: doublings, and the number at hand."""
    doublings = []
    size = FEWEST_GPUS
    while size <= MOST_GPUS:
        doublings.append(size)
        size *= 2
    return sorted({*doublings, world_size})


def scaled(layout: Layout, network: Network, pack_seconds: float) -> Scaled:
    """Return the speed of a run on the processes of a layout.

    Args:
        layout: run and number of GPUs.
        network: connections of the GPUs.
        pack_seconds: time of a pack on one GPU.
    """
    parts = parts_of(layout)
    exchange = exchange_of(layout)
    backward = BACKWARD_SHARE
    if layout.config.train.activation_checkpointing:
        backward = BACKWARD_SHARE_RECOMPUTED
    step = _Step(network, exchange, parts.num_layers, pack_seconds, backward)
    sent = messages(parts, exchange)
    waiting = step.waiting(sent)
    step_seconds = exchange.micro_batches * pack_seconds + waiting
    residues = layout.config.train.tokens_per_step * FILL
    alone = residues / layout.config.packs_per_step / pack_seconds
    return Scaled(
        num_gpus=layout.world_size,
        step_seconds=step_seconds,
        message_seconds=sum(one.count * step.duration(one) for one in sent),
        waiting_seconds=waiting,
        residues_per_second=residues / step_seconds,
        efficiency=residues / step_seconds / (layout.world_size * alone),
    )


@dataclass(frozen=True)
class _Step:
    """Overlap of the messages of a step with its computation."""

    network: Network
    exchange: Exchange
    num_layers: int
    pack_seconds: float
    backward_share: float

    @property
    def backward_seconds(self) -> float:
        """Time of a backward pass."""
        return self.backward_share * self.pack_seconds

    def group(self, members: Members) -> Group:
        return self.network.group(members, self.exchange.shards, self.exchange.replicas)

    def duration(self, message: Message) -> float:
        """Return the seconds of one operation of a message."""
        return self.network.seconds(message, self.group(message.members))

    def waiting(self, sent: Sequence[Message]) -> float:
        """Return the seconds of a step in which GPUs only communicate."""
        figures = sum(one.count * self.duration(one) for one in sent if one.part == "figure")
        of_model = [one for one in sent if one.part != "figure"]
        if self.exchange.reduction == "sharded":
            return figures + self._waiting_for_shards(of_model)
        if self.exchange.reduction == "buckets":
            return figures + self._waiting_for_buckets(of_model)
        return figures + sum(self.duration(one) for one in of_model)

    def _waiting_for_buckets(self, buckets: Sequence[Message]) -> float:
        """Return the seconds from the end of the last backward pass to the end of the last bucket."""
        total = sum(one.num_bytes for one in buckets)
        ready_bytes = 0
        end = 0.0
        for one in buckets:
            ready_bytes += one.num_bytes
            ready = self.backward_seconds * ready_bytes / total
            end = max(end, ready) + self.duration(one)
        return end - self.backward_seconds

    def _waiting_for_shards(self, sent: Sequence[Message]) -> float:
        """Return the seconds that all micro-batches wait for weights and gradients of FSDP2."""
        seconds = {(one.purpose, one.part): self.duration(one) for one in sent}

        def of(purpose: Purpose, part: Part) -> float:
            """Return the seconds of an operation; 0 if a run has none, as without shards or replicas."""
            return seconds.get((purpose, part), 0.0)

        gather = of("weights", "layer")
        scatter = of("gradients", "layer")
        forward_seconds = self.pack_seconds - self.backward_seconds
        hidden_gathers = (self.num_layers - 1) * gather
        in_forward = of("weights", "rest") + gather + max(0.0, hidden_gathers - forward_seconds)
        hidden_backward = hidden_gathers + self.num_layers * scatter
        in_backward = (
            gather + max(0.0, hidden_backward - self.backward_seconds) + of("gradients", "rest")
        )
        of_replicas = self.num_layers * of("gradients of replicas", "layer")
        busy = max(self.backward_seconds, hidden_backward)
        if self.group("shards").num_nodes == 1:
            late = max(0.0, of_replicas - busy)
        else:
            late = max(0.0, hidden_backward + of_replicas - busy)
        last = late + of("gradients of replicas", "rest")
        return self.exchange.micro_batches * (in_forward + in_backward) + last
