"""Runs that train all weights, or low-rank adapters by peft beside frozen weights of 32, 16 or 4 bits.

A model with adapters is the packed model itself, in which peft replaces the matrices by layers of its own.
Its parameter ``x.base_layer.weight`` is ``x.weight`` of the model without adapters.
"""

import dataclasses
import importlib.util
import math
import re
import warnings
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from seqlm.training.checksums import new_folder
from seqlm.training.command_line import require
from seqlm.training.config import LoraConfig, LoraTarget, RunConfig
from seqlm.training.layered_model import LayeredModel
from seqlm.training.objective import Objective
from seqlm.training.processes import Processes
from seqlm.training.records import RecordSplit
from seqlm.training.saved_model import fingerprint, save_model

from . import four_bit

_TASKS = {"CausalLM": "CAUSAL_LM", "Token": "TOKEN_CLS", "Sequence": "SEQ_CLS"}
"""peft's types of tasks, by a part of the names of transformers' classes."""
_PEFT_PARTS = (".base_layer", ".modules_to_save.default", ".original_module")
"""Parts that peft inserts into the names of a model's parameters."""

GATED_LAYER: Mapping[LoraTarget, tuple[str, ...]] = {
    "query": ("self_attn.q_proj",),
    "key": ("self_attn.k_proj",),
    "value": ("self_attn.v_proj",),
    "attention_output": ("self_attn.o_proj",),
    "intermediate": ("mlp.gate_proj", "mlp.up_proj"),
    "output": ("mlp.down_proj",),
}
"""Modules of layers with a gated feed-forward block, as transformers names them."""


@dataclasses.dataclass(frozen=True)
class AdaptedModules:
    """Modules of an architecture that adapters go beside."""

    layers: str
    """Name of the list of layers."""
    modules: Mapping[LoraTarget, tuple[str, ...]]
    """Modules of a layer, by their names in ``lora.targets``."""
    heads: tuple[str, ...] = ()
    """Modules that are trained as a whole. A model has one of them, or none."""


def add_adapters(model: LayeredModel, lora: LoraConfig, family: AdaptedModules) -> None:
    """Put adapters into a model on the meta device. Only the adapters and the head are trained."""
    import peft

    from .adapted_linear import AdaptedLinear

    peft.inject_adapter_in_model(
        _peft_config(lora, family, "", None), model, low_cpu_mem_usage=True
    )
    for module in model.modules():
        if type(module) is peft.tuners.lora.Linear:
            module.__class__ = AdaptedLinear
    for name, module in model.named_children():
        if name in family.heads:
            module.requires_grad_(True)


def with_adapters(
    model: LayeredModel, weights: Mapping[str, Tensor], seed: int
) -> dict[str, Tensor]:
    """Return the state to start from: the weights by peft's names, and new adapters.

    Args:
        model: model with adapters.
        weights: weights of the model without adapters.
        seed: seed of the adapters' first matrices. The second matrices are 0, so that the adapters change
            nothing yet.
    """
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, value in model.state_dict().items():
        if ".lora_A." in name:
            state[name] = torch.empty(value.shape)
            # The distribution that peft draws from: uniform within 1 / sqrt(inputs).
            nn.init.kaiming_uniform_(state[name], a=math.sqrt(5), generator=generator)
        elif ".lora_B." in name:
            state[name] = torch.zeros(value.shape)
        else:
            state[name] = weights[name.replace(".base_layer.", ".")]
    return state


def shrink_frozen(model: LayeredModel, dtype: torch.dtype) -> None:
    """Convert the layers' frozen matrices to the type of the arithmetic, except those in 4 bits.

    Autocast would round them to the same 16 bits in every pass.
    """
    for module in model.layers.modules():
        if type(module) is nn.Linear and not module.weight.requires_grad:
            module.to(dtype)


def _peft_config(
    lora: LoraConfig,
    family: AdaptedModules,
    base: str | None,
    task: str | None,
    revision: str | None = None,
) -> Any:
    import peft

    modules = "|".join(
        re.escape(module) for name in lora.targets for module in family.modules[name]
    )
    return peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=rf"(.*\.)?{re.escape(family.layers)}\.\d+\.({modules})",
        bias="none",
        task_type=task,
        base_model_name_or_path=base,
        revision=revision,
        inference_mode=False,
    )


class AdaptedObjective(Objective):
    """Objective that trains all weights, or with ``lora:`` adapters beside frozen weights.

    Args:
        config: configuration of the run.
        split: records to train on.
        model_config: shape of the model.
        family: modules of the architecture that adapters go beside.

    Raises:
        ModuleNotFoundError: if ``lora:`` is set and peft is missing.
        ValueError: if ``lora.quantize`` is set and bitsandbytes is missing.
    """

    def __init__(
        self,
        config: RunConfig,
        split: RecordSplit,
        model_config: PretrainedConfig,
        family: AdaptedModules,
    ) -> None:
        super().__init__(config, split, model_config)
        self.lora = config.lora
        self.family = family
        self._fingerprint = ""
        """SHA-256 of the weights that the run started from, without adapters; set by ``weights``."""
        if self.lora is None:
            return
        require("peft")
        if self.lora.quantize != "none" and importlib.util.find_spec("bitsandbytes") is None:
            raise ValueError(
                f"lora.quantize: got {self.lora.quantize}, which needs bitsandbytes, and that is not "
                "installed; install requirements.txt anew (make env), or set lora.quantize=none"
            )
        self.optim = dataclasses.replace(config.optim, lr=self.lora.lr)
        self.lr_field = "lora.lr"
        self.trains_all = False

    @property
    @abstractmethod
    def plain(self) -> type[PreTrainedModel]:
        """Transformers' class of the model with its head."""

    @abstractmethod
    def plain_on_meta(self) -> LayeredModel:
        """Return the model without weights and adapters."""

    @abstractmethod
    def plain_weights(self) -> dict[str, Tensor]:
        """Return the full fp32 state to start from, without adapters.

        Raises:
            ValueError: if ``model.init_from`` cannot be read.
        """

    def on_meta(self) -> LayeredModel:
        model = self.plain_on_meta()
        if self.lora is not None:
            add_adapters(model, self.lora, self.family)
        return model

    def weights(self) -> dict[str, Tensor]:
        weights = self.plain_weights()
        if self.lora is None:
            return weights
        self._fingerprint = fingerprint(weights)
        return with_adapters(self.on_meta(), weights, self.config.train.seed)

    def quantize(
        self,
        model: LayeredModel,
        weights: dict[str, Tensor],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        if self.lora is not None and self.lora.quantize == "nf4":
            four_bit.quantize_layers(model, weights, dtype, device)

    def loaded(self, model: LayeredModel, dtype: torch.dtype) -> None:
        if self.lora is not None:
            shrink_frozen(model, dtype)

    def base_of_adapters(self, device: torch.device) -> dict[str, Tensor]:
        """Read the frozen weights again, rounded as the trained model had them on the device.

        Raises:
            ValueError: if they are not the weights that the run started from.
        """
        assert self.lora is not None
        weights = self.plain_weights()
        if fingerprint(weights) != self._fingerprint:
            raise ValueError(
                f"model.init_from: {self.config.model.init_from} has changed since this run started from it, "
                "and the adapters fit what it was; put it back and start the same command again"
            )
        if self.lora.quantize == "none":
            return weights
        for name, value in weights.items():
            if (
                name.startswith(f"{self.family.layers}.")
                and name.endswith(".weight")
                and value.ndim == 2
            ):
                # In place: two copies of a model may not fit.
                weights[name] = four_bit.as_rounded(value.to(device)).cpu()
        return weights

    @property
    @abstractmethod
    def tokens(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer."""

    @property
    def published(self) -> tuple[str, str | None]:
        """Name of the model that peft loads the adapter onto, and its revision on the hub."""
        return self.config.model.init_from or "", None

    @abstractmethod
    def as_written(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return weights of the model without adapters in the form that transformers reads."""

    def write_model(
        self, run_dir: Path, weights: Mapping[str, Tensor], device: torch.device
    ) -> None:
        """Write ``model`` in the format of transformers, and with adapters ``adapter`` in that of peft.

        With adapters, ``model`` has them merged into its weights, and is written only with ``lora.merge``.
        """
        if self.lora is None:
            self._save_model(run_dir, self.as_written(dict(weights)))
            return
        heads = {
            name: value
            for name, value in weights.items()
            if name.split(".")[0] in self.family.heads
        }
        whole = self.as_written(self.base_of_adapters(device) | heads)
        model = self._in_peft(self.lora)
        state = {}
        for name in model.state_dict():
            inner = name.removeprefix("base_model.model.")
            for part in _PEFT_PARTS:
                inner = inner.replace(part, "")
            state[name] = weights[inner] if ".lora_" in inner else whole[inner]
        model.load_state_dict(state, assign=True)
        with new_folder(run_dir / "adapter") as folder:
            # Otherwise peft requests the vocabulary's size from the hub, to see whether it has grown.
            model.save_pretrained(folder, save_embedding_layers=False)
            self.model_config.save_pretrained(folder)
            self.tokens.save_pretrained(folder)
        if self.lora.merge:
            self._save_model(run_dir, dict(model.merge_and_unload().state_dict()))

    def _save_model(self, run_dir: Path, weights: dict[str, Tensor]) -> None:
        save_model(run_dir / "model", self.model_config, weights, self.plain, self.tokens)

    def _in_peft(self, lora: LoraConfig) -> Any:
        """Return transformers' model with peft's adapters, on the meta device."""
        import peft

        with torch.device("meta"):
            plain = self.plain(self.model_config)
        task = next(task for part, task in _TASKS.items() if part in self.plain.__name__)
        name, revision = self.published
        plain.name_or_path = name
        with warnings.catch_warnings():
            # peft reads a property by its old name.
            warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
            settings = _peft_config(lora, self.family, name or None, task, revision)
            return peft.get_peft_model(plain, settings, low_cpu_mem_usage=True)

    def identity(self, here: Processes) -> dict[str, Any]:
        identity = super().identity(here)
        if self.lora is None:
            return identity
        # Checkpoints do not hold the frozen weights, so the next start must begin from the same ones.
        weights = [self._fingerprint]
        dist.broadcast_object_list(weights, src=0, group=here.control)
        return identity | {
            "lora.rank": self.lora.rank,
            "lora.alpha": self.lora.alpha,
            "lora.targets": list(self.lora.targets),
            "lora.quantize": self.lora.quantize,
            "weights to start from (sha256)": weights[0],
        }
