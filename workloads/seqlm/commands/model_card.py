"""Model card of a published model, from the files of its run alone.

A fact that no file states is left out. Texts from data and run files are escaped.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from seqlm.runs.inference_commands import MASKED_LM, SEQUENCE_CLASSIFIER, TOKEN_CLASSIFIER
from seqlm.training.data.manifest import MANIFEST_FILE
from seqlm.training.strict_yaml import read_mapping
from seqlm.training.tracking.mirror import without_login
from seqlm.training.tracking.run_log import CONFIG_FILE, RESULTS_FILE

CAUSAL = "ForCausalLM"


class Head(NamedTuple):
    """Head of a published model."""

    pipeline: str
    """Pipeline of the hub."""
    description: str


HEADS = {
    MASKED_LM: Head("fill-mask", "Masked language model of proteins"),
    SEQUENCE_CLASSIFIER: Head("text-classification", "Model that predicts for whole proteins"),
    TOKEN_CLASSIFIER: Head(
        "token-classification", "Model that predicts for each residue of a protein"
    ),
    CAUSAL: Head("text-generation", "Causal language model"),
}
"""Heads by the end of the architecture's name."""
SETTINGS = (
    "task.kind",
    "task.label_columns",
    "model.max_residues",
    "model.mask_fraction",
    "train.max_steps",
    "train.tokens_per_step",
    "train.seed",
    "optim.name",
    "optim.lr",
    "optim.schedule",
    "optim.warmup_steps",
    "optim.weight_decay",
    "lora.rank",
    "lora.lr",
    "lora.targets",
)
"""Fields of the run file that the card states."""
MAX_SOURCES = 50
"""Source files that the card lists."""
_HUB_TABLE = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)(?:@[\w.-]+)?/.+")


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
    run = read_mapping(folder / CONFIG_FILE)
    results = read_mapping(folder / RESULTS_FILE)
    data = _at(run, "data.path")
    manifest = read_mapping(Path(data) / MANIFEST_FILE) if data else {}
    architecture = read_mapping(about.model / "config.json")["architectures"][0]
    head = head_of(architecture)
    assert head is not None, "publish checks the architecture"
    tables = [_HUB_TABLE.fullmatch(location) for location in _at(run, "chat.table") or []]
    metadata = {
        "license": about.license.lower(),  # as the hub writes SPDX's names
        "library_name": "transformers",
        "pipeline_tag": HEADS[head].pipeline,
        "base_model": about.base,
        "datasets": sorted({found[1] for found in tables if found}),
        "tags": ["protein-language-model", about.family] if about.family else None,
    }
    given = yaml.safe_dump(
        {name: value for name, value in metadata.items() if value}, sort_keys=False
    )
    origin = (
        f", trained from [{about.base}](https://huggingface.co/{about.base})" if about.base else ""
    )
    if (run.get("model") or {}).get("init_from", "unknown") is None:
        origin = ", trained from random weights"
    splits = manifest.get("splits", {}).items()
    unused = {"optim.lr"} if run.get("lora") else set()
    unused |= {"model.mask_fraction"} if head != MASKED_LM else set()
    unused |= {"model.max_residues"} if head == CAUSAL else set()
    settings = [(name, _at(run, name)) for name in SETTINGS if name not in unused]
    settings += [(name, results.get(name)) for name in ("train_residues", "world_size", "classes")]
    tokens = "tokens" if head == CAUSAL else "residues"
    sections = {
        "Use": [
            f"```python\n{_snippet(head, about.repository or 'path/to/this/folder', run)}\n```"
        ],
        "Data": [
            *_sources(manifest.get("sources", ())),
            _table(
                ("split", "records", tokens), [(k, v["records"], v["residues"]) for k, v in splits]
            ),
        ],
        "Training": [_table(("setting", "value"), settings)],
        "Scores": [_by_split(_scores(results)), _by_split(_evaluations(about)), _scorecard(about)],
        "Software": [_table(("", "version"), (results.get("environment") or {}).items())],
    }
    parts = [f"# {_cell(about.repository or folder.name)}"]
    parts += [
        f"{HEADS[head].description} (`{architecture}`, {about.parameters:,} parameters){origin}."
    ]
    for title, texts in sections.items():
        parts += [f"## {title}", *filter(None, texts)] if any(texts) else []
    return f"---\n{given}---\n\n" + "\n\n".join(parts) + "\n"


def _snippet(head: str, source: str, run: Mapping[str, Any]) -> str:
    masked = "<mask>" if head == MASKED_LM else "Q"
    inputs = f'tokenizer("MKTAYIAKQR{masked}ISFVKSHFSRQ", return_tensors="pt")'
    output = "model(**inputs).logits"
    if head == CAUSAL:
        output = "tokenizer.decode(model.generate(**inputs, max_new_tokens=256)[0])"
        if (prompt := _at(run, "chat.prompt")) is not None:
            question = f'{prompt!r}.replace("{{question}}", "...")'
            inputs = f'tokenizer({question}, add_special_tokens=False, return_tensors="pt")'
        else:
            inputs = """tokenizer.apply_chat_template(
    [{"role": "user", "content": "..."}], add_generation_prompt=True, return_dict=True, return_tensors="pt"
)"""
    return f"""from transformers import AutoModel{head}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{source}")
model = AutoModel{head}.from_pretrained("{source}")
inputs = {inputs}
print({output})"""


def _sources(files: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of the sources, and a sentence with their number if it has not all."""
    parts = [_table(("source", "bytes", "SHA-256"), map(_source, files[:MAX_SOURCES]))]
    if len(files) > MAX_SOURCES:
        parts.append(f"The first {MAX_SOURCES} of {len(files):,} source files.")
    return parts


def _source(file: Mapping[str, Any]) -> Sequence[object]:
    """Return the row of a source, without folders of this machine, logins and signatures."""
    name = file["name"]
    shown = without_login(name.partition("?")[0]) if "://" in name else Path(name).name
    return shown, file["bytes"], file["sha256"]


def _scores(results: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the scores at the end of the run, by split."""
    columns: dict[str, dict[str, Any]] = {"validation": {}, "test": {}}
    held_out = "test" if "test_loss" in results else "validation"
    for name, value in results.items():
        prefix, _, rest = name.partition("_")
        if prefix in ("eval", "test"):
            columns["validation" if prefix == "eval" else "test"][rest] = value
        elif found := re.match("(unigram_)?perplexity|(base_)?rouge", name):
            columns[held_out if "rouge" in found[0] else "validation"][name] = value
    return columns


def _evaluations(about: Published) -> dict[str, dict[str, Any]]:
    """Return the scores that ``make evaluate`` wrote for exactly these files, by split."""
    documents = [
        read_mapping(path) for path in sorted(about.model.parent.glob("evaluation-*.json"))
    ]
    return {
        str(found["split"]): {name.removeprefix("eval_"): value for name, value in found.items()}
        for found in documents
        if about.sha256 and found.get("model_sha256") == about.sha256
    }


def _scorecard(about: Published) -> str:
    path = about.model.parent / "scorecard.json"
    found = read_mapping(path)
    is_same = Path(str(found.get("model"))).resolve() == about.model.resolve()
    weights = max(file.stat().st_mtime for file in about.model.glob("*.safetensors"))
    if (
        not is_same or path.stat().st_mtime < weights
    ):  # the scorecard belongs to an earlier training
        return ""
    rows = [(score["name"], score["value"], score["data"]) for score in found["scores"]]
    return _table(("score", "value", "data"), rows)


def _by_split(columns: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table of the numbers among scores."""
    rows: dict[str, dict[str, float]] = {}
    for split, scores in columns.items():
        for name, value in scores.items():
            if type(value) in (int, float) and name not in ("runtime", "samples_per_second"):
                rows.setdefault(name, {})[split] = value
    used = [split for split in columns if any(split in row for row in rows.values())]
    cells = [(name, *(row.get(split, "") for split in used)) for name, row in rows.items()]
    return _table(("score", *used), cells)


def _table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    kept = [[_cell(value) for value in row] for row in rows if None not in row]
    lines = [titles, ["---"] * len(titles), *kept]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) if kept else ""


def _cell(value: object) -> str:
    """Return a value in one line, without effect in Markdown and HTML."""
    if type(value) is int:
        return f"{value:,}"
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    text = f"{value:.5g}" if isinstance(value, float) else " ".join(text.split())
    return re.sub(r"([\\`*_{}\[\]<>|#!~&$])", r"\\\1", text)


def _at(values: Mapping[str, Any], name: str) -> Any:
    """Return ``section.field`` of a run file, None if it is missing."""
    section, _, field = name.partition(".")
    return (values.get(section) or {}).get(field)
