"""Interface for the differences between pre-training and fine-tuning."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from seqlm.training.data.manifest import IGNORED

from .config import RunConfig
from .layered_model import LayeredModel
from .packing import PackShape, PackStream
from .processes import Processes
from .records import RecordSplit, Split
from .step.staging import AnyPack


@dataclass(frozen=True)
class Evaluation:
    """Scores of a model on a split."""

    values: dict[str, float]
    """Scores by their names in the run's log."""
    num_records: int
    """Number of scored records."""
    seconds: float
    """Duration of the evaluation."""


def held_out_scores(test: Evaluation | None) -> dict[str, Any]:
    """Return scores of a language model on the test split, by their names in the results.

    Without a test split, all are None.
    """
    scores: Mapping[str, float | None] = test.values if test is not None else {}
    return {
        "test_loss": scores.get("eval_loss"),
        "test_accuracy": scores.get("eval_accuracy"),
        "test_perplexity": scores.get("perplexity"),
    }


@dataclass(frozen=True)
class Place:
    """Processes, pack shape and precision of an evaluation."""

    here: Processes
    """This process, one of those that evaluate together."""
    shape: PackShape
    """Shape of the packs, that of the training, for which the layers are compiled already."""
    dtype: torch.dtype
    """Type of matrix products."""


@dataclass(frozen=True)
class Guard:
    """Records that a run does not train on; a rise of their loss shows what the model forgets."""

    split: RecordSplit
    max_increase: float
    """Relative increase of the loss since the start above which a run warns."""
    stop: bool
    """Whether such an increase ends the run."""


class Objective(ABC):
    """Model, loss and scores of a run. The loop around them is the same for all objectives.

    Args:
        config: configuration of the run.
        split: records to train on.
        model_config: shape of the model.
    """

    splits: type[RecordSplit] = RecordSplit
    """Class of the splits of the prepared data."""
    streams: type[PackStream]
    """Class of the packs of a split."""
    xla_problems: Sequence[str] = ()
    """Settings of the objective that XLA devices do not support."""
    lr_field = "optim.lr"
    """Field of the run file with the peak learning rate."""
    trains_all = True
    """Whether checkpoints hold the whole model, rather than only its trained parameters."""
    has_constant_passes = False
    """Whether the passes of all packs are the same operations on the same shapes, without random numbers, so
    that they can be recorded once and replayed."""
    final_packs = 0
    """Number of packs of a split that the scores at the end of a run read; 0 reads all."""
    can_score_any_packs = False
    """Whether a single pack has scores, so that the duration of the final scores can be measured."""
    compiles_packs = False
    """Whether compiled functions make the inputs of the model. The trainer sets it on GPUs."""

    def __init__(
        self, config: RunConfig, split: RecordSplit, model_config: PretrainedConfig
    ) -> None:
        self.config = config
        self.split = split
        self.model_config = model_config
        self.optim = config.optim
        """Settings of the optimizer; an objective may change those of the run file."""

    @property
    def start(self) -> str | Path | None:
        """Model that ``weights`` reads: a folder or a hub id. None if weights start at random."""
        return self.config.model.init_from

    @abstractmethod
    def on_meta(self) -> LayeredModel:
        """Return the model on the meta device, without weights."""

    @abstractmethod
    def weights(self) -> dict[str, Tensor]:
        """Return the full fp32 state to start from.

        Raises:
            ValueError: if ``model.init_from`` cannot be read.
        """

    def quantize(
        self,
        model: LayeredModel,
        weights: dict[str, Tensor],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Replace modules of a model by quantized ones, in place. By default, nothing is quantized.

        Args:
            model: model on the meta device.
            weights: weights for the model; empty on processes that get theirs from another.
            dtype: type of matrix products.
            device: device of the training.
        """
        return

    def loaded(self, model: LayeredModel, dtype: torch.dtype) -> None:
        """Change a model with its weights, in place, before it moves to its device. Not called with FSDP.

        Args:
            model: model on the host.
            dtype: type of matrix products.
        """
        return

    def open(self, split: Split) -> RecordSplit:
        """Return a split of the prepared data."""
        return self.splits(self.config.data.path, split)

    def guard(self) -> Guard | None:
        """Return the records that show what the model forgets; None if no others are scored."""
        return None

    def pack_shape(self, split: RecordSplit) -> PackShape:
        """Return the shape of the packs of a split."""
        return PackShape.of(
            split, self.config.train.tokens_per_pack, self.config.model.max_residues
        )

    def stream(self, split: RecordSplit, shape: PackShape, seed: int) -> PackStream:
        return self.streams(split, shape, seed)

    @abstractmethod
    def pack(self, host: AnyPack, shape: PackShape, device: torch.device) -> Any:
        """Return the input of the model for a pack on the host, or on its way to the device."""

    def num_targets(self, pack: Any) -> Tensor:
        """Count the targets of a pack, over which the loss is a mean: () int64."""
        return (pack.targets != IGNORED).sum()

    def loss_sum(self, model: nn.Module, pack: Any) -> Tensor:
        """Return the sum of the losses of a pack's targets with its gradient: () fp32.

        The losses of a language model are cross-entropies in nats.
        """
        return model(pack).loss_sum

    @abstractmethod
    def evaluate(
        self, model: nn.Module, split: RecordSplit, place: Place, num_packs: int
    ) -> Evaluation:
        """Score a model on the first packs of a split. Every process calls this.

        Args:
            model: model on its device.
            split: records to score.
            place: processes, pack shape and precision.
            num_packs: number of packs to score; 0 scores all.
        """

    @abstractmethod
    def write_model(
        self, run_dir: Path, weights: Mapping[str, Tensor], device: torch.device
    ) -> None:
        """Write the trained model for others to load.

        Args:
            run_dir: folder of the run.
            weights: weights that checkpoints hold, unsharded and on the CPU.
            device: device of the training.
        """

    @abstractmethod
    def results(self, validation: Evaluation, test: Evaluation | None) -> dict[str, Any]:
        """Return results of the finished run in addition to those of every run."""

    def record(self, run_dir: Path, validation: Evaluation, test: Evaluation | None) -> None:
        """Write files that the report reads besides the results."""
        return

    def score_written(self, run_dir: Path, place: Place) -> Mapping[str, float]:
        """Score the model as it was written; by default, return no scores.

        Every process calls this, once the training has freed the memory of its device.

        Returns:
            Scores by their names in the log.
        """
        return {}

    @abstractmethod
    def summary(self, results: Mapping[str, Any]) -> str:
        """Return the results in one line."""

    def identity(self, here: Processes) -> dict[str, Any]:
        """Return the values that a resumed checkpoint must share. All others may change between starts."""
        config = self.config
        model = asdict(config.model)
        if model.get("family") == getattr(type(config.model), "family", None):
            # Checkpoints of earlier versions lack this field; its default stands for them.
            model.pop("family", None)
        shards = self.split.manifest.splits["train"].shards
        data = "".join(shard.sha256 for shard in shards)
        return {
            **{f"model.{name}": value for name, value in model.items()},
            "train.seed": config.train.seed,
            "train.tokens_per_pack": config.train.tokens_per_pack,
            "train.tokens_per_step": config.train.tokens_per_step,
            "optim.name": config.optim.name,
            "optim.betas": list(config.optim.betas),
            "optim.eps": config.optim.eps,
            "optim.weight_decay": config.optim.weight_decay,
            "data (sha256 of the training shards)": hashlib.sha256(data.encode()).hexdigest(),
        }
