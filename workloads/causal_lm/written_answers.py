"""Answers of the tuned and the original model to held-out questions, and their scores."""

import gc
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from workloads.esm2.pretrained import ADAPTER_FILE
from workloads.training.checksums import verified
from workloads.training.heartbeat import beat
from workloads.training.objective import Place
from workloads.training.processes import Processes
from workloads.training.whole_file import write_whole

from .config import ChatConfig
from .conversations import ConversationSplit
from .rouge import mean_scores, rouge
from .template import Template


def compare_models(
    chat: ChatConfig, split: ConversationSplit, *, base: Path, tuned: Path, place: Place, to: Path
) -> dict[str, float]:
    """Generate answers with both models and return mean scores by name.

    Every process answers its share of the questions, with a whole model on its device.

    Args:
        chat: of the run.
        split: with the questions; the model answers the first ``chat.questions``.
        base: folder of the model that the run started from.
        tuned: folder of the tuned one, or of its adapter.
        place: where, and in which arithmetic.
        to: file that gets the answers.
    """
    template = Template(chat, base)
    asked = split.texts(chat.questions)
    prompts = template.prompts([question for question, _ in asked])
    # Of each held-out question; texts as ROUGE compares them.
    answers: list[dict[str, Any]] = [
        {"question": question, "reference": template.answer(response)} for question, response in asked
    ]
    means: dict[str, float] = {}
    for name, folder, prefix in (("base", base, "base_"), ("tuned", tuned, "")):
        beat(f"loading the {name} model", slow=True)
        model = _model(folder, base, place)
        written = _answers(model, template, prompts, chat, place.here)
        del model
        gc.collect()  # both at once may not fit
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
    is_adapter = (folder / ADAPTER_FILE).exists()
    start = base if is_adapter else folder
    with verified(start, place.here):
        model: Any = AutoModelForCausalLM.from_pretrained(start, dtype=place.dtype)
    if is_adapter:
        from peft import PeftModel

        with verified(folder, place.here):
            model = PeftModel.from_pretrained(model, folder)
    return cast(nn.Module, model.to(place.here.device).eval())


def _ends(model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens that end an answer: the one that is trained on, and those that the model itself names.

    A base model may have a chat template whose turns end otherwise than its texts.
    """
    settings: Any = model.generation_config
    named = settings.eos_token_id
    own = named if isinstance(named, list) else [] if named is None else [named]
    return sorted({int(tokenizer.eos_token_id), *own})


@torch.inference_mode()
def _answers(
    model: nn.Module, template: Template, prompts: Sequence[str], chat: ChatConfig, here: Processes
) -> list[str]:
    """Return greedy answers, so that a model always answers the same; every process gets all of them.

    Raises:
        Stopped: between two batches, if the run received a signal to stop.
    """
    tokenizer, generating = template.tokenizer, model
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    mine: dict[int, str] = {}
    places = list(range(here.rank, len(prompts), here.world_size))
    # Of like lengths, so that little is padded.
    encoded = dict(zip(places, template.tokens([prompts[place] for place in places]), strict=True))
    places.sort(key=lambda place: len(encoded[place]))
    most = -(-len(prompts) // here.world_size)  # that a process has: as many batches on each
    for first in range(0, most, chat.questions_at_once):
        here.check_stop()
        beat("answering questions", slow=True)
        batch = places[first : first + chat.questions_at_once]
        if not batch:
            continue
        rows = [torch.tensor(encoded[place]) for place in batch]
        ids, mask = (
            pad_sequence(sequences, batch_first=True, padding_value=value, padding_side="left")
            for sequences, value in ((rows, pad), ([torch.ones_like(row) for row in rows], 0))
        )
        written = generating.generate(  # type: ignore[operator]  # of transformers
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
    found = here.gather(mine)
    return [found[place] for place in range(len(prompts))]
