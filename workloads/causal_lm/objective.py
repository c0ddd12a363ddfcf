"""Fine-tuning of a causal language model on conversations: the next token of responses, none of prompts."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import GENERATION_CONFIG_NAME

from workloads.esm2.evaluation import EVALUATION_SEED, score_packs
from workloads.run_file import RunFile
from workloads.training.adapters.adapters import AdaptedObjective
from workloads.training.checksums import verified, write_sums
from workloads.training.config_rules import fine_tuning_on_xla
from workloads.training.heartbeat import beat
from workloads.training.layered_model import LayeredModel
from workloads.training.objective import Evaluation, Place, held_out_scores
from workloads.training.packing import HostPack, PackShape
from workloads.training.precision import select_precision
from workloads.training.processes import Processes
from workloads.training.records import ProteinSplit, Split
from workloads.training.saved_model import assigned
from workloads.training.whole_file import write_whole

from .conversations import ConversationSplit, ConversationStream, TokenPack, token_pack
from .model import FAMILY, PackedCausalLM, on_meta, plain_class, read_config, shrink_frozen
from .model_files import model_folder, published_as
from .rouge import ANSWERS_FILE, MEASURES
from .template import Template
from .written_answers import compare_models


class CausalLM(AdaptedObjective):
    """Objective of the run's conversations.

    Raises:
        ValueError: if model or data are missing, or do not fit.
    """

    config: RunFile
    splits, streams = ConversationSplit, ConversationStream
    xla_problems = (fine_tuning_on_xla("chat"),)

    def __init__(self, config: RunFile) -> None:
        assert config.chat is not None, "a run without chat: has no conversations"
        self.chat = config.chat
        self.folder = model_folder(config)
        self.plain_config = read_config(self.folder, config.chat.max_tokens)
        split = ConversationSplit(config.data.path, "train")
        super().__init__(config, split, self.plain_config, FAMILY)

    @property
    def start(self) -> Path:
        return self.folder

    def plain_on_meta(self) -> PackedCausalLM:
        return on_meta(self.plain_config)

    def plain_weights(self) -> dict[str, Tensor]:
        try:
            model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32)
        except (OSError, ValueError) as error:
            raise ValueError(f"model.init_from: {self.folder} cannot be read: {error}") from error
        return dict(model.state_dict())

    def loaded(self, model: LayeredModel, dtype: torch.dtype) -> None:
        if self.lora is not None:
            assert isinstance(model, PackedCausalLM)
            shrink_frozen(model, dtype)

    def open(self, split: Split) -> ConversationSplit:
        return ConversationSplit(self.config.data.path, split)

    def pack_shape(self, split: ProteinSplit) -> PackShape:
        return PackShape.of(split, self.config.train.tokens_per_pack, self.chat.max_tokens, special_tokens=0)

    def pack(self, host: HostPack, shape: PackShape, device: torch.device) -> TokenPack:
        return token_pack(host, shape.max_length, device)

    def evaluate(self, model: nn.Module, split: ProteinSplit, place: Place, num_packs: int) -> Evaluation:
        stream = self.stream(split, place.shape, EVALUATION_SEED)
        return score_packs(
            model, stream, lambda host: self.pack(host, place.shape, place.here.device), place, num_packs
        )

    def write_model(self, run_dir: Path, weights: Mapping[str, Tensor], device: torch.device) -> None:
        super().write_model(run_dir, weights, device)
        # Temperature and the like, which those who serve the model read.
        settings, written = self.folder / GENERATION_CONFIG_NAME, run_dir / "model"
        if settings.exists() and written.is_dir():
            write_whole(written / GENERATION_CONFIG_NAME, settings.read_text())
            write_sums(written)

    @property
    def plain(self) -> type[PreTrainedModel]:
        return plain_class(self.plain_config)

    @property
    def tokens(self) -> PreTrainedTokenizerBase:
        return Template(self.chat, self.folder).tokenizer

    @property
    def published(self) -> tuple[str, str | None]:
        return published_as(self.config)

    def as_written(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights in the type of the original model, which is usually half as large as fp32."""
        dtype = self.plain_config.dtype or torch.float32
        return {name: value.to(dtype) for name, value in weights.items()}

    def score_written(self, run_dir: Path, place: Place) -> Mapping[str, float]:
        if not self.chat.questions:
            return {}
        held_out: Split = "test" if self.split.manifest.splits["test"].records else "validation"
        written = run_dir / ("adapter" if self.lora is not None and not self.lora.merge else "model")
        return compare_models(
            self.chat,
            self.open(held_out),
            base=self.folder,
            tuned=written,
            place=place,
            to=run_dir / ANSWERS_FILE,
        )

    def results(self, validation: Evaluation, test: Evaluation | None) -> dict[str, Any]:
        return held_out_scores(test)

    def summary(self, results: Mapping[str, Any]) -> str:
        found = f"validation perplexity {results['perplexity']:.2f}, accuracy {results['eval_accuracy']:.3f}"
        scores = [
            f"{name} {results[name]:.3f} (before {results[f'base_{name}']:.3f})"
            for name in MEASURES
            if name in results
        ]
        return "; ".join([found, *scores])

    def identity(self, here: Any) -> dict[str, Any]:
        return super().identity(here) | {"chat.max_tokens": self.chat.max_tokens}


def score_chat(config: RunFile, here: Processes) -> dict[str, Any]:
    """Loss and ROUGE of the run's model, or of the folder that ``inference.model`` names.

    Every process calls it, and gets the same.

    Raises:
        ValueError: if there is no such model, or it is an adapter.
    """
    assert config.chat is not None
    folder = Path(config.inference.model or config.run_dir / "model")
    if not (folder / "config.json").exists() or not any(folder.glob("*.safetensors")):
        raise ValueError(
            f"{folder} holds no model: the run {config.name} has not finished, or merges none (lora.merge); "
            "name a folder that transformers reads with inference.model=<folder>"
        )
    beat("loading", slow=True)
    start = dataclasses.replace(config.model, init_from=str(folder))
    objective = CausalLM(dataclasses.replace(config, model=start, lora=None))
    dtype = select_precision(config.train, here.device, here).dtype
    with verified(folder, here) as source:
        model = assigned(objective.plain_on_meta(), objective.plain_weights())
    # In fp32, with the copies that autocast keeps of what could be trained, 14 billion take 90 GB.
    model.requires_grad_(False)
    shrink_frozen(model, dtype)
    model.to(here.device).eval()
    split = objective.open(config.evaluate.split)
    place = Place(here, objective.pack_shape(split), dtype)
    found = objective.evaluate(model, split, place, 0)
    del model
    rouge = {}
    if config.chat.questions:
        rouge = compare_models(
            config.chat,
            split,
            base=model_folder(config),
            tuned=folder,
            place=place,
            to=config.run_dir / f"answers-{config.evaluate.split}.json",
        )
    return {
        "model": str(folder),
        "model_sha256": source.sha256,
        "data": config.data.path,
        "split": config.evaluate.split,
        **found.values,
        **rouge,
        "conversations": found.num_proteins,
        "eval_runtime": found.seconds,
    }
