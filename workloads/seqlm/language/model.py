"""Causal language models for packs of conversations, with transformers' modules, weights and layers.

The forward pass differs from that of transformers in two points: a pack is one row of tokens with attention
within each conversation only, and the head runs only on the places before a token of a response.

Shapes: T tokens, K predicted tokens, C hidden size, V vocabulary.
"""

import copy
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from seqlm.training.adapters import adapters
from seqlm.training.adapters.adapters import GATED_LAYER, AdaptedModules
from seqlm.training.checksums import ADAPTER_FILE, unreadable
from seqlm.training.data.model_folder import check_config, check_files
from seqlm.training.layered_model import LayeredModel, Prediction
from seqlm.training.saved_model import name_no_kernel

from .attention import PACKED
from .conversations import TokenPack

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
"""Allowed model types of configurations. All have the same module names and arguments of layers."""
FAMILY = AdaptedModules(layers="model.layers", modules=GATED_LAYER)
HEAD_ROWS = 2048
"""Number of places that the head runs on at once. With a vocabulary of 152,064, their logits take 1.2 GB in
fp32. The logits of a pack of 16,384 tokens would take 20 GB with their gradients."""


def read_config(folder: Path, max_tokens: int) -> PretrainedConfig:
    """Read the configuration of the model in a folder.

    Args:
        folder: folder of the model.
        max_tokens: longest conversation.

    Raises:
        ValueError: if the model type is not supported, or the model cannot read ``max_tokens`` tokens.
    """
    check_files(folder)
    if (folder / ADAPTER_FILE).exists():
        raise ValueError(
            f"model.init_from: {folder} holds an adapter, which names another model as its base; give a "
            "model folder in which it is merged"
        )
    try:
        saved, _ = PretrainedConfig.get_config_dict(folder)
        check_config(saved, folder)
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        name_no_kernel(config)
    except Exception as error:  # transformers raises nearly anything
        raise unreadable(folder, error) from error
    if config.model_type not in MODEL_TYPES:
        raise ValueError(
            f"model.init_from: {folder} is a model of type {config.model_type}; allowed are "
            f"{', '.join(MODEL_TYPES)}"
        )
    window = getattr(config, "sliding_window", None)
    longest = min(config.max_position_embeddings, window or config.max_position_embeddings)
    if max_tokens > longest:
        raise ValueError(
            f"chat.max_tokens: got {max_tokens}; {folder} reads at most {longest} tokens"
            + (" within its attention window" if window == longest else "")
        )
    config.attention_dropout = 0.0
    return config


def plain_class(config: PretrainedConfig) -> type[PreTrainedModel]:
    """Return transformers' class for the model."""
    return cast("type[PreTrainedModel]", MODEL_FOR_CAUSAL_LM_MAPPING[type(config)])


def on_meta(config: PretrainedConfig) -> "PackedCausalLM":
    """Return a packed model without weights."""
    plain = plain_class(config)
    kind: Any = type(f"Packed{plain.__name__}", (PackedCausalLM, plain), {})
    with torch.device("meta"):
        # A copy, because transformers sets the implementation in the configuration.
        return cast(
            PackedCausalLM, kind._from_config(copy.deepcopy(config), attn_implementation=PACKED)
        )


def shrink_frozen(model: "PackedCausalLM", dtype: torch.dtype) -> None:
    """Convert the frozen weights of layers, embedding and head to the type of matrix products."""
    adapters.shrink_frozen(model, dtype)
    model.lm_head.to(dtype)
    model.model.embed_tokens.to(dtype)


class PackedCausalLM(LayeredModel):
    """Base class of a model, combined with a class of transformers that defines the modules."""

    model: Any
    lm_head: nn.Linear
    config: PretrainedConfig
    # The head runs on few places. Without it, the count of FLOPs is a lower bound.
    uncounted = ("embed_tokens", "lm_head")

    @property
    def layers(self) -> nn.ModuleList:
        return cast(nn.ModuleList, self.model.layers)

    @property
    def flops_per_pair(self) -> float:
        """Half of the FLOPs of full attention, because a token attends only to those before it."""
        config = self.config
        head_size = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        return 6.0 * config.num_hidden_layers * config.num_attention_heads * head_size

    def make_buffers(self, device: torch.device) -> None:
        self.model.rotary_emb = type(self.model.rotary_emb)(self.config).to(device)

    def recompute_layers(self) -> None:
        enable: Any = self.activation_checkpointing_enable
        enable({"use_reentrant": False, "preserve_rng_state": False})

    def forward(self, pack: TokenPack) -> Prediction:
        """Return the loss sum and the number of correct predictions at the pack's rows."""
        hidden = self.hidden(pack)[pack.rows]  # (K, C)
        parts = list(zip(hidden.split(HEAD_ROWS), pack.targets.split(HEAD_ROWS), strict=True))
        if len(parts) == 1 or not torch.is_grad_enabled():
            found = [self._predict(*part) for part in parts]
        else:  # recomputed in the backward pass, so that the logits of all parts are never kept
            found = [
                checkpoint(self._predict, *part, use_reentrant=False, preserve_rng_state=False)
                for part in parts
            ]
        losses, correct = zip(*found, strict=True)
        return Prediction(torch.stack(losses).sum(), torch.stack(correct).sum())

    def hidden(self, pack: TokenPack) -> Tensor:
        """Return the hidden states after the last norm, (T, C)."""
        # The residual stream is fp32, although FSDP may gather the embedding in another type.
        embedded = self.model.embed_tokens(pack.tokens[None]).float()
        output = self.model(
            inputs_embeds=embedded,
            position_ids=pack.positions[None],
            use_cache=False,
            segments=pack.segments,
        )
        return cast(Tensor, output.last_hidden_state[0])

    def _predict(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss sum and the number of correct predictions of a part of the rows."""
        logits = self.lm_head(hidden).float()  # (K, V)
        loss = F.cross_entropy(logits, targets, reduction="sum")
        return loss, (logits.detach().argmax(dim=-1) == targets).sum()
