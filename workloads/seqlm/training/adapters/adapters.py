"""Runs that train all weights, or low-rank adapters by peft beside frozen weights of 32, 16 or 4 bits.

A model with adapters is the packed model itself, in which peft puts its layers in the places of the matrices:
what it names ``x.base_layer.weight`` is ``x.weight`` of the model without.
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
"""peft's words, by what transformers' classes are called."""


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
    """Modules that are trained as a whole; a model has one of them, or none."""


def add_adapters(model: LayeredModel, lora: LoraConfig, family: AdaptedModules) -> None:
    """Put adapters into a model on the meta device; they and the head are what is trained."""
    import peft

    from .adapted_linear import AdaptedLinear

    peft.inject_adapter_in_model(_peft_config(lora, family, "", None), model, low_cpu_mem_usage=True)
    for module in model.modules():
        if type(module) is peft.tuners.lora.Linear:
            module.__class__ = AdaptedLinear
    for name, module in model.named_children():
        if name in family.heads:
            module.requires_grad_(True)


def with_adapters(model: LayeredModel, weights: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """State to start from: the weights by peft's names, and new adapters.

    Args:
        model: with adapters.
        weights: of the model without.
        seed: of the adapters' first matrices; the second ones are 0, so that they change nothing yet.
    """
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, value in model.state_dict().items():
        if ".lora_A." in name:
            state[name] = torch.empty(value.shape)
            # As peft does it: uniform within 1 / sqrt(inputs).
            nn.init.kaiming_uniform_(state[name], a=math.sqrt(5), generator=generator)
        elif ".lora_B." in name:
            state[name] = torch.zeros(value.shape)
        else:
            state[name] = weights[name.replace(".base_layer.", ".")]
    return state


def shrink_frozen(model: LayeredModel, dtype: torch.dtype) -> None:
    """Keep the layers' frozen matrices in the type of the arithmetic, 4-bit ones as they are.

    Autocast would round them to the same 16 bits in every pass.
    """
    for module in model.layers.modules():
        if type(module) is nn.Linear and not module.weight.requires_grad:
            module.to(dtype)


def _peft_config(
    lora: LoraConfig, family: AdaptedModules, base: str | None, task: str | None, revision: str | None = None
) -> Any:
    import peft

    modules = "|".join(re.escape(module) for name in lora.targets for module in family.modules[name])
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
    """Trains all weights, or with ``lora:`` adapters beside frozen ones.

    A subclass sets ``plain``, transformers' class of the model with its head.

    Args:
        config: of the run.
        split: what is trained on.
        model_config: shape of the model.
        family: where its models have what adapters go beside.

    Raises:
        ModuleNotFoundError: if ``lora:`` is set and peft is missing.
        ValueError: if ``lora.quantize`` is set and bitsandbytes is missing.
    """

    plain: type[PreTrainedModel]

    def __init__(
        self, config: RunConfig, split: RecordSplit, model_config: PretrainedConfig, family: AdaptedModules
    ) -> None:
        super().__init__(config, split, model_config)
        self.lora, self.family = config.lora, family
        self._fingerprint = ""
        if self.lora is None:
            return
        require("peft")
        if self.lora.quantize != "none" and importlib.util.find_spec("bitsandbytes") is None:
            raise ValueError(
                f"lora.quantize: got {self.lora.quantize}, which needs bitsandbytes, and that is not "
                "installed; install requirements.txt anew (make env), or set lora.quantize=none"
            )
        self.optim, self.lr_field = dataclasses.replace(config.optim, lr=self.lora.lr), "lora.lr"
        self.trains_all = False

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
            add_adapters(model, self.lora, self.family)
        return model

    def weights(self) -> dict[str, Tensor]:
        weights = self.plain_weights()
        if self.lora is None:
            return weights
        self._fingerprint = fingerprint(weights)
        return with_adapters(self.on_meta(), weights, self.config.train.seed)

    def quantize(
        self, model: LayeredModel, weights: dict[str, Tensor], dtype: torch.dtype, device: torch.device
    ) -> None:
        if self.lora is not None and self.lora.quantize == "nf4":
            four_bit.quantize_layers(model, weights, dtype, device)

    def loaded(self, model: LayeredModel, dtype: torch.dtype) -> None:
        if self.lora is not None:
            shrink_frozen(model, dtype)

    def base_of_adapters(self, device: torch.device) -> dict[str, Tensor]:
        """The frozen weights again, as the trained model has seen them on the device: 4-bit ones rounded.

        Raises:
            ValueError: if they are not those that the run started from.
        """
        assert self.lora is not None
        weights = self.plain_weights()
        if fingerprint(weights) != self._fingerprint:
            raise ValueError(
                f"model.init_from: {self.config.model.init_from} has changed since this run started from it, "
                "and the adapters fit what it was; put it back and start the same command again"
            )
        for name, value in weights.items() if self.lora.quantize != "none" else ():
            if name.startswith(f"{self.family.layers}.") and name.endswith(".weight") and value.ndim == 2:
                # In place: two copies of a model may not fit.
                weights[name] = four_bit.as_rounded(value.to(device)).cpu()
        return weights

    @property
    @abstractmethod
    def tokens(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer."""

    @property
    def published(self) -> tuple[str, str | None]:
        """Model that peft is to load the adapter onto, and its revision on the hub."""
        return self.config.model.init_from or "", None

    @abstractmethod
    def as_written(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return weights of the model without adapters as others read them."""

    def write_model(self, run_dir: Path, weights: Mapping[str, Tensor], device: torch.device) -> None:
        """Write ``model`` in transformers' format, and with adapters ``adapter`` in that of peft.

        With adapters, ``model`` has them merged, and is written with ``lora.merge`` alone.
        """
        model_config, kind, tokens = self.model_config, self.plain, self.tokens
        if self.lora is None:
            save_model(run_dir / "model", model_config, self.as_written(dict(weights)), kind, tokens)
            return
        import peft

        heads = {name: value for name, value in weights.items() if name.split(".")[0] in self.family.heads}
        whole = self.as_written(self.base_of_adapters(device) | heads)
        with torch.device("meta"):
            plain = kind(model_config)
        task = next(task for part, task in _TASKS.items() if part in kind.__name__)
        plain.name_or_path, revision = self.published
        with warnings.catch_warnings():  # peft asks for a property by its old name
            warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
            settings = _peft_config(self.lora, self.family, plain.name_or_path or None, task, revision)
            model: Any = peft.get_peft_model(plain, settings, low_cpu_mem_usage=True)
        state = {}
        for name in model.state_dict():
            inner = name.removeprefix("base_model.model.")
            for part in (".base_layer", ".modules_to_save.default", ".original_module"):
                inner = inner.replace(part, "")
            state[name] = weights[inner] if ".lora_" in inner else whole[inner]
        model.load_state_dict(state, assign=True)
        with new_folder(run_dir / "adapter") as folder:
            # Otherwise peft asks the hub whether the vocabulary has grown.
            model.save_pretrained(folder, save_embedding_layers=False)
            model_config.save_pretrained(folder)
            tokens.save_pretrained(folder)
        if self.lora.merge:
            merged = dict(model.merge_and_unload().state_dict())
            save_model(run_dir / "model", model_config, merged, kind, tokens)

    def identity(self, here: Processes) -> dict[str, Any]:
        identity = super().identity(here)
        if self.lora is None:
            return identity
        # Checkpoints do not hold the frozen weights, so they must be the same at the next start.
        weights = [self._fingerprint]
        dist.broadcast_object_list(weights, src=0, group=here.control)
        return identity | {
            "lora.rank": self.lora.rank,
            "lora.alpha": self.lora.alpha,
            "lora.targets": list(self.lora.targets),
            "lora.quantize": self.lora.quantize,
            "weights to start from (sha256)": weights[0],
        }
