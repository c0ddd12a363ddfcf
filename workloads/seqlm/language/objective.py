"""Fine-tuning of a causal language model on conversations. It learns the tokens of responses, not of prompts.

At the end, the tuned and the original model answer held-out questions.
"""

import dataclasses
import gc
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import GENERATION_CONFIG_NAME

from seqlm.runs.run_file import RunFile
from seqlm.training.adapters.adapters import AdaptedObjective
from seqlm.training.checksums import ADAPTER_FILE, verified, write_sums
from seqlm.training.config_rules import fine_tuning_on_xla
from seqlm.training.heartbeat import beat
from seqlm.training.layered_model import LayeredModel
from seqlm.training.objective import Evaluation, Place, held_out_scores
from seqlm.training.packing import PackShape
from seqlm.training.precision import select_precision
from seqlm.training.processes import Processes
from seqlm.training.records import RecordSplit, Split
from seqlm.training.saved_model import assigned, load_plain
from seqlm.training.scoring import EVALUATION_SEED, score_packs
from seqlm.training.step.staging import AnyPack
from seqlm.training.strict_yaml import shown_first
from seqlm.training.tracking.final_scores import scored_text
from seqlm.training.whole_file import write_whole

from .config import ChatConfig
from .conversations import ConversationSplit, ConversationStream, TokenPack, token_pack
from .model import FAMILY, PackedCausalLM, on_meta, plain_class, read_config, shrink_frozen
from .model_files import model_folder, published_as
from .rouge import ANSWERS_FILE, MEASURES, mean_scores, rouge
from .template import Template


class CausalLM(AdaptedObjective):
    """Objective of fine-tuning on conversations.

    Args:
        config: run file with ``chat:``.

    Raises:
        ValueError: if model or data are missing, or do not fit together.
    """

    config: RunFile
    splits = ConversationSplit
    streams = ConversationStream
    xla_problems = (fine_tuning_on_xla("chat"),)

    def __init__(self, config: RunFile) -> None:
        assert config.chat is not None, "a run without chat: has no conversations"
        self.chat = config.chat
        self.folder = model_folder(config)
        self.plain_config = read_config(self.folder, config.chat.max_tokens)
        super().__init__(
            config, ConversationSplit(config.data.path, "train"), self.plain_config, FAMILY
        )
        self.final_packs = config.evaluate.packs

    @property
    def start(self) -> Path:
        return self.folder

    @property
    def plain(self) -> type[PreTrainedModel]:
        return plain_class(self.plain_config)

    def plain_on_meta(self) -> PackedCausalLM:
        return on_meta(self.plain_config)

    def plain_weights(self) -> dict[str, Tensor]:
        try:
            model, missing = load_plain(
                AutoModelForCausalLM, self.folder, dtype=torch.float32, attn_implementation="eager"
            )
        except (OSError, ValueError) as error:
            raise ValueError(f"model.init_from: {self.folder} cannot be read: {error}") from error
        if missing:
            raise ValueError(
                f"model.init_from: {self.folder} lacks {shown_first(missing)}; give a whole model"
            )
        return dict(model.state_dict())

    def loaded(self, model: LayeredModel, dtype: torch.dtype) -> None:
        if self.lora is not None:
            assert isinstance(model, PackedCausalLM)
            shrink_frozen(model, dtype)

    def pack_shape(self, split: RecordSplit) -> PackShape:
        return PackShape.of(
            split, self.config.train.tokens_per_pack, self.chat.max_tokens, special_tokens=0
        )

    def pack(self, host: AnyPack, shape: PackShape, device: torch.device) -> TokenPack:
        return token_pack(host, shape.max_length, device)

    def evaluate(
        self, model: nn.Module, split: RecordSplit, place: Place, num_packs: int
    ) -> Evaluation:
        stream = self.stream(split, place.shape, EVALUATION_SEED)
        return score_packs(
            model,
            stream,
            lambda host: self.pack(host, place.shape, place.here.device),
            place,
            num_packs,
        )

    def write_model(
        self, run_dir: Path, weights: Mapping[str, Tensor], device: torch.device
    ) -> None:
        super().write_model(run_dir, weights, device)
        # Settings for generation, such as the temperature, which servers of the model read.
        settings = self.folder / GENERATION_CONFIG_NAME
        model_folder = run_dir / "model"
        if settings.exists() and model_folder.is_dir():
            write_whole(model_folder / GENERATION_CONFIG_NAME, settings.read_text())
            write_sums(model_folder)

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
        split = ConversationSplit(self.config.data.path, held_out)
        tuned = run_dir / ("adapter" if self.lora is not None and not self.lora.merge else "model")
        to = run_dir / ANSWERS_FILE
        return compare_models(self.chat, split, base=self.folder, tuned=tuned, place=place, to=to)

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
    """Return loss and ROUGE of the run's model, or of the model folder ``inference.model``.

    Every process calls this function and gets the same scores.

    Raises:
        ValueError: if the folder holds no model, or only an adapter.
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
    # In fp32 and with autocast's copies of trainable weights, 14 billion parameters would take 90 GB.
    model.requires_grad_(False)
    shrink_frozen(model, dtype)
    model.to(here.device).eval()
    split = ConversationSplit(config.data.path, config.evaluate.split)
    place = Place(here, objective.pack_shape(split), dtype)
    found = objective.evaluate(model, split, place, objective.final_packs)
    del model
    rouge = {}
    if config.chat.questions:
        base = model_folder(config)
        to = config.run_dir / f"answers-{config.evaluate.split}.json"
        rouge = compare_models(config.chat, split, base=base, tuned=folder, place=place, to=to)
    return {
        "model": str(folder),
        "model_sha256": source.sha256,
        "data": config.data.path,
        "split": config.evaluate.split,
        **found.values,
        **rouge,
        "conversations": found.num_records,
        "scored": scored_text(found.num_records, split.num_units, split.records),
        "eval_runtime": found.seconds,
    }


def compare_models(
    chat: ChatConfig, split: ConversationSplit, *, base: Path, tuned: Path, place: Place, to: Path
) -> dict[str, float]:
    """Generate answers with both models and return mean scores by name.

    Every process answers its share of the questions, with a whole model on its device.

    Args:
        chat: section ``chat:`` of the run file.
        split: split with the questions. The models answer the first ``chat.questions``.
        base: folder of the model that the run started from.
        tuned: folder of the tuned model, or of its adapter.
        place: processes, pack shape and precision.
        to: file for the answers.
    """
    template = Template(chat, base)
    asked = split.texts(chat.questions)
    prompts = template.prompts([question for question, _ in asked])
    # One record for each held-out question, with the texts that ROUGE compares.
    answers: list[dict[str, Any]] = [
        {"question": question, "reference": template.answer(response)}
        for question, response in asked
    ]
    means: dict[str, float] = {}
    for name, folder, prefix in (("base", base, "base_"), ("tuned", tuned, "")):
        beat(f"loading the {name} model", slow=True)
        model = _model(folder, base, place)
        written = _answers(model, template, prompts, chat, place.here)
        del model
        gc.collect()  # the memory may be too small for both models
        for answer, text in zip(answers, written, strict=True):
            answer[name] = template.answer(text)
            answer[f"{name}_scores"] = rouge(answer["reference"], answer[name])
        scores = mean_scores([answer[f"{name}_scores"] for answer in answers])
        means |= {f"{prefix}{measure}": score for measure, score in scores.items()}
        means[f"{prefix}answered"] = sum(bool(answer[name]) for answer in answers) / len(answers)
    if place.here.is_first:
        write_whole(to, json.dumps({"answers": answers}, indent=1, ensure_ascii=False) + "\n")
    return means


def _model(folder: Path, base: Path, place: Place) -> nn.Module:
    """Load a model or, from the folder of an adapter, the base model with the adapter."""
    is_adapter = (folder / ADAPTER_FILE).exists()
    start = base if is_adapter else folder
    with verified(start, place.here):
        model, _ = load_plain(
            AutoModelForCausalLM, start, dtype=place.dtype, attn_implementation="sdpa"
        )
    if is_adapter:
        from peft import PeftModel

        with verified(folder, place.here):
            model = PeftModel.from_pretrained(model, folder)
    return cast(nn.Module, model.to(place.here.device).eval())


def _ends(model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens that end an answer: the tokenizer's, which responses end with, and the model's own.

    Turns of a base model's chat template may end with another token than its texts.
    """
    settings: Any = model.generation_config
    own = settings.eos_token_id
    if own is None:
        own = []
    elif not isinstance(own, list):
        own = [own]
    return sorted({int(tokenizer.eos_token_id), *own})


@torch.inference_mode()
def _answers(
    model: nn.Module, template: Template, prompts: Sequence[str], chat: ChatConfig, here: Processes
) -> list[str]:
    """Return the answers to all prompts, on every process. They are greedy, and so always the same.

    Args:
        model: model on the device of this process.
        template: texts and tokens of conversations.
        prompts: prompts of all questions.
        chat: section ``chat:`` of the run file.
        here: this process, which answers a share of the questions.

    Raises:
        Stopped: between two batches, if the run received a signal to stop.
    """
    tokenizer = template.tokenizer
    generating: Any = model
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    mine: dict[int, str] = {}
    places = list(range(here.rank, len(prompts), here.world_size))
    # Sorted by length, so that a batch has little padding.
    encoded = dict(zip(places, template.tokens([prompts[place] for place in places]), strict=True))
    places.sort(key=lambda place: len(encoded[place]))
    # The same number of batches on every process, because each batch checks for a stop together.
    most_questions = -(-len(prompts) // here.world_size)
    for first in range(0, most_questions, chat.questions_at_once):
        here.check_stop()
        beat("answering questions", slow=True)
        batch = places[first : first + chat.questions_at_once]
        if not batch:
            continue
        rows = [torch.tensor(encoded[place]) for place in batch]
        ids = pad_sequence(rows, batch_first=True, padding_value=pad, padding_side="left")
        ones = [torch.ones_like(row) for row in rows]
        mask = pad_sequence(ones, batch_first=True, padding_value=0, padding_side="left")
        written = generating.generate(
            input_ids=ids.to(here.device),
            attention_mask=mask.to(here.device),
            max_new_tokens=chat.max_new_tokens,
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            eos_token_id=_ends(model, tokenizer),
            pad_token_id=pad,
        )
        texts = tokenizer.batch_decode(written[:, ids.shape[1] :], skip_special_tokens=True)
        mine.update(zip(batch, texts, strict=True))
    answers = here.gather(mine)
    return [answers[place] for place in range(len(prompts))]
