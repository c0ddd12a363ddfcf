"""Model card: README.md of a published model, from the files of its run alone.

A fact that no file states is left out. Texts from data and run files are escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from workloads.training.data.manifest import MANIFEST_FILE
from workloads.training.strict_yaml import read_mapping
from workloads.training.tracking.mirror import without_login
from workloads.training.tracking.run_log import CONFIG_FILE, RESULTS_FILE

HEADS = {
    "ForMaskedLM": ("fill-mask", "Masked language model of proteins"),
    "ForSequenceClassification": ("text-classification", "Model that predicts for whole proteins"),
    "ForTokenClassification": ("token-classification", "Model that predicts for each residue of a protein"),
    "ForCausalLM": ("text-generation", "Causal language model"),
}
"""The hub's pipeline and a description, by the end of the architecture's name."""
NO_SCORES = ("runtime", "samples_per_second")
_HUB_TABLE = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)(?:@[\w.-]+)?/.+")
Rows = Iterable[Sequence[object]]


@dataclass(frozen=True)
class Published:
    """Facts about a model that its run does not state."""

    model: Path
    """Model folder, beside the files of its run."""
    repository: str | None
    license: str
    family: str | None
    base: str | None
    """Hub id of the model that the training began with, directly or through other runs."""
    parameters: int
    sha256: str | None
    """SHA-256 of the list of the files' checksums, as in the scores of ``make evaluate``."""


def head_of(architecture: str) -> str | None:
    """Return the end of an architecture's name that says which head the model has."""
    return next((end for end in HEADS if architecture.endswith(end)), None)


def model_card(about: Published) -> str:
    """Return the text of README.md."""
    folder = about.model.parent
    run, results = read_mapping(folder / CONFIG_FILE), read_mapping(folder / RESULTS_FILE)
    (architecture,) = read_mapping(about.model / "config.json")["architectures"]
    head = head_of(architecture)
    assert head is not None, "publish checks the architecture"
    pipeline, description = HEADS[head]
    sources = _at(run, "chat.table") or []
    data_sets = [found[1] for source in sources if (found := _HUB_TABLE.fullmatch(source))]
    tags = [about.family and "protein-language-model", about.family]
    metadata = {
        "license": about.license.lower(),  # as the hub writes SPDX's names
        "library_name": "transformers",
        "pipeline_tag": pipeline,
        "base_model": about.base,
        "datasets": sorted(set(data_sets)),
        "tags": [tag for tag in tags if tag],
    }
    given = {name: value for name, value in metadata.items() if value}
    origin = f", trained from [{about.base}](https://huggingface.co/{about.base})" if about.base else ""
    if run and _at(run, "model.init_from") is None:
        origin = ", trained from random weights"
    name = about.repository or folder.name
    parts = [
        f"---\n{yaml.safe_dump(given, sort_keys=False, allow_unicode=True)}---\n\n# {_escaped(name)}",
        f"{description} (`{architecture}`, {about.parameters:,} parameters){origin}.",
        f"## Use\n\n```python\n{_snippet(head, about.repository or 'path/to/this/folder', run)}\n```",
        _data(read_mapping(Path(_at(run, "data.path") or "") / MANIFEST_FILE)),
        _section("Training", _table(("setting", "value"), _training(run, results))),
        _section("Scores", _scores(results), _evaluations(about), _scorecard(about)),
        _section("Software", _table(("", "version"), (results.get("environment") or {}).items())),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _snippet(head: str, source: str, run: Mapping[str, Any]) -> str:
    load = f'from_pretrained("{source}")'
    lines = [
        f"from transformers import AutoModel{head}, AutoTokenizer\n",
        f"tokenizer = AutoTokenizer.{load}\nmodel = AutoModel{head}.{load}",
    ]
    prompt, answers = _at(run, "chat.prompt"), head == "ForCausalLM"
    if answers and prompt is not None:
        question = f'{prompt!r}.replace("{{question}}", "...")'
        lines.append(f'inputs = tokenizer({question}, add_special_tokens=False, return_tensors="pt")')
    elif answers:
        lines.append('messages = [{"role": "user", "content": "..."}]')
        lines.append("inputs = tokenizer.apply_chat_template(")
        lines.append('    messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"\n)')
    else:
        masked = "<mask>" if head == "ForMaskedLM" else "Q"
        lines.append(f'inputs = tokenizer("MKTAYIAKQR{masked}ISFVKSHFSRQ", return_tensors="pt")')
    call = "tokenizer.decode(model.generate(**inputs, max_new_tokens=256)[0])"
    lines.append(f"print({call if answers else 'model(**inputs).logits'})")
    return "\n".join(lines)


def _data(manifest: Mapping[str, Any]) -> str:
    sources = [
        (_location(each["name"]), each["bytes"], each["sha256"]) for each in manifest.get("sources", ())
    ]
    splits = [
        (name, split["records"], split["residues"])
        for name, split in manifest.get("splits", {}).items()
        if split["records"]
    ]
    tokens = "residues" if manifest.get("vocabulary") else "tokens"
    return _section(
        "Data",
        _table(("source", "bytes", "SHA-256"), sources),
        _table(("split", "records", tokens), splits),
    )


def _location(name: str) -> str:
    """Return a source without folders of this machine, logins and signatures."""
    return without_login(name.partition("?")[0]) if "://" in name else Path(name).name


def _training(run: Mapping[str, Any], results: Mapping[str, Any]) -> Rows:
    lr = _at(run, "lora.lr") or _at(run, "optim.lr")
    values = {
        "task": _at(run, "task.kind"),
        "predicted columns": _at(run, "task.label_columns"),
        "classes": results.get("classes"),
        "optimizer steps": _at(run, "train.max_steps"),
        "tokens per step": _at(run, "train.tokens_per_step"),
        "tokens trained on" if _at(run, "chat") else "residues trained on": results.get("train_residues"),
        "longest protein, in residues": None if _at(run, "chat") else _at(run, "model.max_residues"),
        "optimizer": _at(run, "optim.name"),
        "peak learning rate": lr,
        "schedule": _at(run, "optim.schedule"),
        "warm-up steps": _at(run, "optim.warmup_steps"),
        "weight decay": _at(run, "optim.weight_decay"),
        "LoRA rank": _at(run, "lora.rank"),
        "LoRA matrices": _at(run, "lora.targets"),
        "seed": _at(run, "train.seed"),
        "devices": results.get("world_size"),
    }
    for name, value in values.items():
        yield name, ", ".join(map(str, value)) if isinstance(value, list) else value


def _scores(results: Mapping[str, Any]) -> str:
    """Return the scores at the end of the run."""
    held_out = "test" if "test_loss" in results else "validation"
    columns: dict[str, dict[str, float]] = {"validation": {}, "test": {}}
    for name, value in results.items():
        prefix, _, rest = name.partition("_")
        if prefix in ("eval", "test") and rest not in NO_SCORES:
            columns["validation" if prefix == "eval" else "test"][rest] = value
        elif re.fullmatch("(unigram_)?perplexity", name):
            columns["validation"][name] = value
        elif re.match("(base_)?rouge", name):
            columns[held_out][name] = value
    return _by_split(columns)


def _evaluations(about: Published) -> str:
    """Return the scores that ``make evaluate`` wrote for exactly these files."""
    columns = {}
    for path in sorted(about.model.parent.glob("evaluation-*.json")):
        found = read_mapping(path)
        if about.sha256 and found.get("model_sha256") == about.sha256:
            scores = {name.removeprefix("eval_"): value for name, value in found.items()}
            columns[str(found["split"])] = {name: scores[name] for name in scores if name not in NO_SCORES}
    return _by_split(columns)


def _scorecard(about: Published) -> str:
    found = read_mapping(path := about.model.parent / "scorecard.json")
    weights = max(file.stat().st_mtime for file in about.model.glob("*.safetensors"))
    is_same = Path(str(found.get("model"))).resolve() == about.model.resolve()
    if not is_same or path.stat().st_mtime < weights:  # of an earlier training
        return ""
    rows = [(score["name"], score["value"], score["data"]) for score in found["scores"]]
    return _table(("score", "value", "data"), rows)


def _by_split(columns: Mapping[str, Mapping[str, Any]]) -> str:
    used = {split: {n: v for n, v in scores.items() if _is_number(v)} for split, scores in columns.items()}
    used = {split: scores for split, scores in used.items() if scores}
    names = dict.fromkeys(name for scores in used.values() for name in scores)
    rows = [(name, *(scores.get(name, "") for scores in used.values())) for name in names]
    return _table(("score", *used), rows)


def _table(titles: Sequence[str], rows: Rows) -> str:
    kept = [row for row in rows if None not in row]
    lines = [titles, ["---"] * len(titles), *([_cell(value) for value in row] for row in kept)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) if kept else ""


def _section(title: str, *parts: str) -> str:
    found = [part for part in parts if part]
    return "\n\n".join([f"## {title}", *found]) if found else ""


def _cell(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.5g}" if isinstance(value, float) else _escaped(str(value))


def _escaped(text: str) -> str:
    """Return a text of data in one line, without effect in Markdown and HTML."""
    return re.sub(r"([\\`*_{}\[\]<>|#!~&$])", r"\\\1", " ".join(text.split()))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _at(values: Mapping[str, Any], name: str) -> Any:
    """Return ``section.field`` of a run file, None if it is missing."""
    section, _, field = name.partition(".")
    found = values.get(section)
    return found.get(field) if field and isinstance(found, dict) else None if field else found
