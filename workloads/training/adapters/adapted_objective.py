"""What runs that may train adapters in place of all weights have in common."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PretrainedConfig

from workloads.training.config import OptimConfig, RunConfig
from workloads.training.layered_model import LayeredModel
from workloads.training.objective import Objective
from workloads.training.processes import Processes
from workloads.training.records import ProteinSplit
from workloads.training.saved_model import fingerprint as fingerprint_of

from . import adapters
from .four_bit import quantize_layers


class AdaptedObjective(Objective):
    """Trains all weights, or with ``lora:`` adapters beside frozen ones.

    Args:
        config: of the run.
        split: what is trained on.
        model_config: shape of the model.
        family: where its models have what adapters go beside.

    Raises:
        ValueError: if 4 bits are asked for that nobody can do.
    """

    def __init__(
        self,
        config: RunConfig,
        split: ProteinSplit,
        model_config: PretrainedConfig,
        family: adapters.AdaptedModules,
    ) -> None:
        super().__init__(config, split, model_config)
        self.lora, self.family = config.lora, family
        if self.lora is not None:
            adapters.check_packages(self.lora)
        self._fingerprint = ""

    @property
    def optim(self) -> OptimConfig:
        if self.lora is None:
            return self.config.optim
        return dataclasses.replace(self.config.optim, lr=self.lora.lr)

    @property
    def lr_field(self) -> str:
        return "optim.lr" if self.lora is None else "lora.lr"

    @property
    def trains_all(self) -> bool:
        return self.lora is None

    @abstractmethod
    def plain_on_meta(self) -> LayeredModel:
        """The model without weights and adapters."""

    @abstractmethod
    def plain_weights(self) -> dict[str, Tensor]:
        """Its full fp32 state to start from.

        Raises:
            ValueError: if ``model.init_from`` cannot be read.
        """

    def on_meta(self) -> LayeredModel:
        model = self.plain_on_meta()
        if self.lora is not None:
            adapters.add_adapters(model, self.lora, self.family)
        return model

    def weights(self) -> dict[str, Tensor]:
        weights = self.plain_weights()
        if self.lora is None:
            return weights
        self._fingerprint = fingerprint_of(weights)
        return adapters.with_adapters(self.on_meta(), weights, self.config.train.seed)

    def quantize(
        self, model: LayeredModel, weights: dict[str, Tensor], dtype: torch.dtype, device: torch.device
    ) -> None:
        if self.lora is not None and self.lora.quantize == "nf4":
            quantize_layers(model, weights, dtype, device)

    def loaded(self, model: LayeredModel, dtype: torch.dtype) -> None:
        if self.lora is not None:
            adapters.shrink_frozen(model, dtype)

    def base_of_adapters(self, device: torch.device) -> dict[str, Tensor]:
        """The frozen weights again, as the model has seen them that was trained on the device.

        Raises:
            ValueError: if they are not those that the run started from.
        """
        assert self.lora is not None
        start = self.plain_weights()
        if fingerprint_of(start) != self._fingerprint:
            raise ValueError(
                f"model.init_from: {self.config.model.init_from} has changed since this run started from it, "
                "and the adapters fit what it was; put it back and start the same command again"
            )
        return adapters.dequantized(start, self.lora, device, self.family)

    def identity(self, here: Processes) -> dict[str, Any]:
        identity = super().identity(here)
        if self.lora is None:
            return identity
        # Checkpoints do not hold the frozen weights, so they must be the same at the next start.
        fingerprint = [self._fingerprint]
        dist.broadcast_object_list(fingerprint, src=0, group=here.control)
        return identity | {
            "lora.rank": self.lora.rank,
            "lora.alpha": self.lora.alpha,
            "lora.targets": list(self.lora.targets),
            "lora.quantize": self.lora.quantize,
            "weights to start from (sha256)": fingerprint[0],
        }
