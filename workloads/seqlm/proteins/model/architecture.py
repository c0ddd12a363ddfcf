"""Interface of a family of protein language models, which the code for all families reads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from transformers import PretrainedConfig, PreTrainedModel

from seqlm.training.adapters.adapters import AdaptedModules

from .packed_model import PackedModel


class ModelClass(NamedTuple):
    """Model with one head: transformers' class, which saved models name, and the one that computes."""

    plain: type[PreTrainedModel]
    packed: type[PackedModel]


@dataclass(frozen=True)
class Architecture:
    """Classes of a family of models in transformers' format."""

    config: type[PretrainedConfig]
    """Class of the configurations."""
    published: Callable[[str], PretrainedConfig]
    """Returns the configuration of a published size."""
    masked_lm: ModelClass
    sequence_classifier: ModelClass
    token_classifier: ModelClass
    encoder: str
    """First part of the names of all parameters below the head."""
    tokenizer: Callable[[Any], Any]
    """Returns transformers' tokenizer of a configuration."""
    adapted: AdaptedModules
    """Modules that can have adapters."""
    may_lack: str = "\0"
    """First part of the names of parameters that a saved model need not have."""

    @property
    def classes(self) -> dict[str, ModelClass]:
        """Models by their names in ``architectures`` of config.json."""
        found = (self.masked_lm, self.sequence_classifier, self.token_classifier)
        return {each.plain.__name__: each for each in found}
