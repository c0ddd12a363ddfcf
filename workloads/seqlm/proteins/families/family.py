"""Facts about a family of protein language models, without tensors.

Standard library only, because machines without torch read the table of families.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # brings torch and transformers
    from seqlm.proteins.model.architecture import Architecture

from seqlm.proteins.model.shape import Dimensions, ModelShape


class ProteinGymScores(NamedTuple):
    """Zero-shot Spearman correlations in ProteinGym v1.3's summary of substitutions."""

    mean: float
    """Mean over all assays."""
    one_assay: float
    """Correlation of the assay BLAT_ECOLX_Stiffler_2015."""


@dataclass(frozen=True, kw_only=True)
class ModelFamily:
    """Family of protein language models."""

    name: str
    """Value of ``model.family``."""
    title: str
    """Name in messages and documents."""
    model_type: str
    """Name of the family in transformers, as in a model's config.json."""
    model_module: str
    """Module with the function ``architecture``, which returns the model classes. It is imported when they
    are needed, because it imports torch and transformers."""
    sizes: Mapping[str, Dimensions]
    """Values of ``model.size``, and the dimensions of these published models."""
    shape: Callable[[Dimensions], ModelShape]
    """Returns the shape of a model with these dimensions."""
    max_residues: int
    """Longest protein that the published models were trained on, in residues."""
    contact_head: str | None
    """Name of the module with the contact head in the models of this family. None: they have none, and a
    fitted head is stored beside the model."""
    hub_prefix: str
    """Beginning of the published models' hub ids."""
    published_name: str
    """Regular expression that finds a published model's name in a hub id or path; its group is the size."""
    license: str
    """Licence of the published models (docs/models.md), as the hub writes SPDX ids."""
    proteingym: Mapping[str, ProteinGymScores] = field(default_factory=dict)
    """Published scores, by hub id."""

    def published_shape(self, size: str) -> ModelShape:
        """Return the shape of a published size."""
        return self.shape(self.sizes[size])

    def shape_of_config(self, config: Mapping[str, Any]) -> ModelShape:
        """Return the shape of a model from its config.json."""
        dimensions = Dimensions(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            heads=config["num_attention_heads"],
            feed_forward=config["intermediate_size"],
        )
        return self.shape(dimensions)

    def architecture(self) -> Architecture:
        """Import and return the model classes."""
        found: Architecture = import_module(self.model_module).architecture()
        return found
