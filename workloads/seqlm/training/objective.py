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

from .config import RunConfig
from .layered_model import LayeredModel
from .packing import HostPack, PackShape, PackStream
from .processes import Processes
from .records import RecordSplit, Split


@dataclass(frozen=True)
class Evaluation:
    """Scores of a model on a split."""

    values: dict[str, float]
    """Scores for the run's log, by name."""
    num_records: int
    seconds: float


def held_out_scores(test: Evaluation | None) -> dict[str, Any]:
    """Scores of a language model on the test split by their names in the results; None without the split."""
    return {
        "test_loss": test and test.values["eval_loss"],
        "test_accuracy": test and test.values["eval_accuracy"],
        "test_perplexity": test and test.values["perplexity"],
    }


@dataclass(frozen=True)
class Place:
    """Processes, pack shape and precision of an evaluation."""

    here: Processes
    shape: PackShape
    """Shape of the training's packs, for which the layers are compiled already."""
    dtype: torch.dtype
    """Type of matrix products."""


@dataclass(frozen=True)
class Guard:
    """Records that a run does not train on, and whose loss should not rise."""

    split: RecordSplit
    max_increase: float
    """Relative increase of the loss since the start above which a run warns."""
    stop: bool
    """Whether such an increase ends the run."""


class Objective(ABC):
    """Model, loss and scores of a run; the loop around them is the same for all.

    Args:
        config: of the run.
        split: what is trained on.
        model_config: shape of the model.
    """

    splits = RecordSplit
    """Class of the splits of the prepared data."""
    streams: type[PackStream]
    """Class of the packs of a split."""
    xla_problems: Sequence[str] = ()
    """Settings of the objective that XLA devices do not support."""
    lr_field = "optim.lr"
    """Field of the run file with the peak learning rate."""
    trains_all = True
    """Whether checkpoints hold the whole model; else what is trained of it."""

    def __init__(self, config: RunConfig, split: RecordSplit, model_config: PretrainedConfig) -> None:
        self.config, self.split, self.model_config = config, split, model_config
        self.optim = config.optim

    @property
    def start(self) -> str | Path | None:
        """Model that ``weights`` reads: a folder or a hub id. None if weights start at random."""
        return self.config.model.init_from

    @abstractmethod
    def on_meta(self) -> LayeredModel:
        """The model without weights."""

    @abstractmethod
    def weights(self) -> dict[str, Tensor]:
        """The full fp32 state to start from.

        Raises:
            ValueError: if ``model.init_from`` cannot be read.
        """

    def quantize(
        self, model: LayeredModel, weights: dict[str, Tensor], dtype: torch.dtype, device: torch.device
    ) -> None:
        """Change what a model on the meta device is made of, and the weights that it is to get, if here.

        ``dtype`` is that of matrix products, ``device`` where the model will be.
        """
        return

    def loaded(self, model: LayeredModel, dtype: torch.dtype) -> None:
        """Change a model with weights before it moves to its device; not with FSDP.

        ``dtype`` is that of matrix products.
        """
        return

    def open(self, split: Split) -> RecordSplit:
        return self.splits(self.config.data.path, split)

    def guard(self) -> Guard | None:
        """Return what is scored to see what the model forgets; None scores nothing more."""
        return None

    def pack_shape(self, split: RecordSplit) -> PackShape:
        """Return the shape of the packs of a split."""
        return PackShape.of(split, self.config.train.tokens_per_pack, self.config.model.max_residues)

    def stream(self, split: RecordSplit, shape: PackShape, seed: int) -> PackStream:
        return self.streams(split, shape, seed)

    @abstractmethod
    def pack(self, host: HostPack, shape: PackShape, device: torch.device) -> Any:
        """Return the input of the model for a pack."""

    def num_targets(self, pack: Any) -> Tensor:
        """() int64, over which the loss is a mean."""
        return (pack.targets != -100).sum()

    def loss_sum(self, model: nn.Module, pack: Any) -> Tensor:
        """() fp32, with the gradient; of a language model cross-entropies in nats."""
        return model(pack).loss_sum

    @abstractmethod
    def evaluate(self, model: nn.Module, split: RecordSplit, place: Place, num_packs: int) -> Evaluation:
        """Score on the first packs of a split; 0: all. Every process calls it."""

    @abstractmethod
    def write_model(self, run_dir: Path, weights: Mapping[str, Tensor], device: torch.device) -> None:
        """Write the trained model for others to load.

        Args:
            run_dir: of the run.
            weights: what checkpoints hold of the model, whole and on the CPU.
            device: on which it was trained.
        """

    @abstractmethod
    def results(self, validation: Evaluation, test: Evaluation | None) -> dict[str, Any]:
        """Return results of the finished run in addition to those of every run."""

    def record(self, run_dir: Path, validation: Evaluation, test: Evaluation | None) -> None:
        """Write what the report needs besides the results."""
        return

    def score_written(self, run_dir: Path, place: Place) -> Mapping[str, float]:
        """Scores of the model that was written, by their names in the log; none if there are no such.

        Every process calls it, once nothing of the training is in its device's memory any more.
        """
        return {}

    @abstractmethod
    def summary(self, results: Mapping[str, Any]) -> str:
        """The results in a line."""

    def identity(self, here: Processes) -> dict[str, Any]:
        """Return the values that a resumed checkpoint must share. All others may change between starts."""
        config, model = self.config, asdict(self.config.model)
        if model.get("family") == getattr(type(config.model), "family", None):
            model.pop("family", None)  # the default: checkpoints of earlier versions have no such field
        return {
            **{f"model.{name}": value for name, value in model.items()},
            "train.seed": config.train.seed,
            "train.tokens_per_pack": config.train.tokens_per_pack,
            "train.tokens_per_step": config.train.tokens_per_step,
            "optim.name": config.optim.name,
            "optim.betas": list(config.optim.betas),
            "optim.eps": config.optim.eps,
            "optim.weight_decay": config.optim.weight_decay,
            "data (sha256 of the training shards)": hashlib.sha256(
                "".join(shard.sha256 for shard in self.split.manifest.splits["train"].shards).encode()
            ).hexdigest(),
        }
