"""Third model family: ESM-2's modules under another type of model, with heads of 16 channels."""

from __future__ import annotations

from transformers import (
    EsmConfig,
    EsmForMaskedLM,
    EsmForSequenceClassification,
    EsmForTokenClassification,
)

from seqlm.proteins.families.esm2 import model as esm2
from seqlm.proteins.families.esm2.facts import ESM2
from seqlm.proteins.families.family import ModelFamily
from seqlm.proteins.model.architecture import Architecture, ModelClass
from seqlm.proteins.model.shape import Dimensions

TOY = ModelFamily(
    name="toy",
    title="Toy",
    model_type="toy-esm",
    model_module=__name__,
    sizes={"1M": Dimensions(layers=2, hidden=64, heads=4, feed_forward=96)},
    shape=ESM2.shape,
    max_residues=510,
    contact_head="esm.contact_head",
    hub_prefix="toys/toy_",
    published_name=r"\btoy_(\d+M)\b",
    license="cc0-1.0",
)


class ToyConfig(EsmConfig):  # type: ignore[misc]
    model_type = TOY.model_type


class ToyForMaskedLM(EsmForMaskedLM):
    config_class = ToyConfig


class ToyForSequenceClassification(EsmForSequenceClassification):
    config_class = ToyConfig


class ToyForTokenClassification(EsmForTokenClassification):
    config_class = ToyConfig


class PackedToy(esm2.PackedEsm):
    config_class = ToyConfig


class PackedToySequenceClassifier(esm2.PackedSequenceClassifier):
    config_class = ToyConfig


class PackedToyTokenClassifier(esm2.PackedTokenClassifier):
    config_class = ToyConfig


def published_config(size: str) -> ToyConfig:
    dimensions = TOY.sizes[size]
    return ToyConfig(
        **esm2.published_config("8M").to_dict()
        | {
            "model_type": TOY.model_type,
            "num_hidden_layers": dimensions.layers,
            "hidden_size": dimensions.hidden,
            "num_attention_heads": dimensions.heads,
            "intermediate_size": dimensions.feed_forward,
        }
    )


def architecture() -> Architecture:
    of_esm2 = esm2.architecture()
    return Architecture(
        config=ToyConfig,
        published=published_config,
        masked_lm=ModelClass(ToyForMaskedLM, PackedToy),
        sequence_classifier=ModelClass(ToyForSequenceClassification, PackedToySequenceClassifier),
        token_classifier=ModelClass(ToyForTokenClassification, PackedToyTokenClassifier),
        encoder=of_esm2.encoder,
        tokenizer=of_esm2.tokenizer,
        adapted=of_esm2.adapted,
        may_lack=of_esm2.may_lack,
    )
