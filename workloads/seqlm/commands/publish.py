"""Write a folder for the Hugging Face hub and push it (``seqlm publish``).

The folder holds the model's files and a model card, README.md. ``publish.repository`` names where it goes.
The model is the run's own, or the folder that ``inference.model`` names.

The card is written from the files of the model's run alone. A fact that no file states is left out. Texts
from data and run files are escaped.
"""

import filecmp
import json
import math
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from seqlm.commands.inference import check_model
from seqlm.proteins.families.table import MODEL_FAMILIES, family_of, saved_config
from seqlm.proteins.inference.output_file import default_folder
from seqlm.runs.model_names import MAX_BASES, may_be_hub_id
from seqlm.runs.run_file import RunFile
from seqlm.training.checksums import CARD_FILE, CHECKPOINT_FILE, SUMS_FILE, new_folder, verified
from seqlm.training.data.manifest import MANIFEST_FILE
from seqlm.training.strict_yaml import read_mapping
from seqlm.training.tracking.mirror import without_login
from seqlm.training.tracking.run_log import CONFIG_FILE, RESULTS_FILE

MODEL_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "LICENSE*", "NOTICE*")
REFUSED = (401, 403)
CAUSAL = "ForCausalLM"
HEADS = {
    "ForMaskedLM": ("fill-mask", "Masked language model of proteins"),
    "ForSequenceClassification": ("text-classification", "Model that predicts for whole proteins"),
    "ForTokenClassification": ("token-classification", "Model that predicts for each residue of a protein"),
    CAUSAL: ("text-generation", "Causal language model"),
}
"""The hub's pipeline and a description, by the end of the architecture's name."""
SETTINGS = (
    *("task.kind", "task.label_columns", "model.max_residues", "model.mask_fraction", "train.max_steps"),
    *("train.tokens_per_step", "train.seed", "optim.name", "optim.lr", "optim.schedule"),
    *("optim.warmup_steps", "optim.weight_decay", "lora.rank", "lora.lr", "lora.targets"),
)
"""Fields of the run file that the card states."""
_HUB_TABLE = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)(?:@[\w.-]+)?/.+")


def main(config: RunFile) -> None:
    """Write the folder, and push it if ``publish.repository`` is set.

    Raises:
        ValueError: for a model that cannot be published, a folder in the way, or a hub that refuses.
    """
    check_model(config)
    model = Path(config.inference.model or config.run_dir / "model")
    folder = Path(config.publish.folder or default_folder(config) / "hub")
    _check_model(model)
    base = base_of(model)
    license = config.publish.license or license_of(base)
    if license is None:
        raise ValueError(
            f"publish.license: got null, and the licence of the starting model ({base or 'none'}) is not "
            "known; set an SPDX id, for example publish.license=apache-2.0"
        )
    _check_place(folder, model, overwrite=config.inference.overwrite)
    _write(folder, model, config.publish.repository, license, base)
    print(f"folder  {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    if config.publish.repository is not None:
        print(f"hub     {push(folder, config.publish.repository, private=config.publish.private)}")


def base_of(model: Path) -> str | None:
    """Return the hub id that the training of a model began with, through other runs; None if unknown."""
    for _ in range(MAX_BASES):
        holder = model.parent.parent if model.parent.name == "checkpoints" else model.parent
        start = (read_mapping(holder / CONFIG_FILE).get("model") or {}).get("init_from")
        if not start or not Path(start).is_dir():
            known = str(start or "")
            is_hub_id = may_be_hub_id(known) and not known.startswith("runs/")
            return known.partition("@")[0] if is_hub_id else None
        model = Path(start)
    return None


def license_of(base: str | None) -> str | None:
    """Return the licence of the published model that a training began with; None if it is not known."""
    for family in MODEL_FAMILIES.values():
        if base and base.startswith(family.hub_prefix):
            return family.license
    return None


def _check_model(model: Path) -> None:
    """Raise ValueError if the folder holds no whole model that transformers loads."""
    problem, family = "", family_of(str(model))
    architectures = saved_config(model).get("architectures") or [""]
    if not model.is_dir():
        problem = "is no folder on this machine; it is on the hub already if it is a hub id"
    elif (model / CHECKPOINT_FILE).exists():
        problem = "is a checkpoint; finish the run, which writes a model folder"
    elif (model / "adapter_config.json").exists():
        problem = "holds adapters only; give the model folder in which they are merged (lora.merge=true)"
    elif (head := head_of(architectures[0])) is None or not (family or head == CAUSAL):
        problem = (
            f"holds the architecture {architectures[0] or 'none'}; allowed are ...{', ...'.join(HEADS)} of "
            f"{' and '.join(MODEL_FAMILIES)}, and any ...{CAUSAL}"
        )
    elif not any(model.glob("*.safetensors")):
        problem = "holds no *.safetensors; copy the folder again from its source"
    if problem:
        raise ValueError(f"inference.model: {model} {problem}")


def _check_place(folder: Path, model: Path, *, overwrite: bool) -> None:
    """Raise ValueError if the new folder would replace anything else than a folder of the same model."""
    at, own = folder.resolve(), model.resolve()
    if own in (at, *at.parents) or at in own.parents:
        raise ValueError(f"publish.folder: {folder} overlaps the model {model}; give another folder")
    if not folder.exists():
        return
    if not folder.is_dir() or not (folder / CARD_FILE).is_file() or not (folder / "config.json").is_file():
        raise ValueError(f"publish.folder: {folder} exists and is no folder of a model; give another one")
    weights = [path.name for path in model.glob("*.safetensors")]
    _, *others = filecmp.cmpfiles(folder, model, ["config.json", *weights], shallow=False)
    known = {path.name for pattern in MODEL_FILES for path in model.glob(pattern)} | {CARD_FILE, SUMS_FILE}
    added = sorted({path.name for path in folder.iterdir()} - known)
    if (any(others) or added) and not overwrite:
        holds = f"{added[0]}, which the model folder lacks" if added else "another model"
        raise ValueError(
            f"publish.folder: {folder} holds {holds}; give another folder, put files such as NOTICE into the "
            "model folder, or replace the folder with inference.overwrite=true"
        )


def _write(folder: Path, model: Path, repository: str | None, license: str, base: str | None) -> None:
    from safetensors import safe_open  # here, since the other checks do without it

    folder.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(folder) as partial:
        partial.mkdir()
        with verified(model) as source:
            for path in sorted({path for pattern in MODEL_FILES for path in model.glob(pattern)}):
                shutil.copyfile(path, partial / path.name)
            shapes: dict[str, list[int]] = {}
            for path in sorted(partial.glob("*.safetensors")):
                with safe_open(path, "np") as file:
                    shapes |= {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
            for index in partial.glob("*.safetensors.index.json"):
                if missing := json.loads(index.read_text())["weight_map"].keys() - shapes.keys():
                    raise ValueError(f"{model} lacks {len(missing)} weights, such as {min(missing)}")
        parameters = sum(math.prod(shape) for shape in shapes.values())
        about = Published(model, repository, license, family_of(str(model)), base, parameters, source.sha256)
        (partial / CARD_FILE).write_text(model_card(about), encoding="utf-8")


def push(folder: Path, repository: str, *, private: bool) -> str:
    """Upload the folder; return the address of the repository.

    Raises:
        ValueError: if there is no token, the hub refuses it, or the hub does not answer.
    """
    from huggingface_hub import HfApi, get_token

    again = f"{folder} is complete; then run the same command again"
    if (token := get_token()) is None:
        raise ValueError(
            f"publish.repository: got {repository}, and there is no token of the hub; set HF_TOKEN or run "
            f"hf auth login. {again}"
        )
    api = HfApi(token=token)
    is_public = False
    try:
        url = str(api.create_repo(repository, private=private, exist_ok=True))
        is_public = private and not api.repo_info(repository).private
        # Weights of an earlier model may have other names, and would be loaded with these.
        old = ["*.safetensors", "*.safetensors.index.json", "adapter_config.json"]
        if not is_public:
            api.upload_folder(repo_id=repository, folder_path=folder, delete_patterns=old)
    except Exception as error:  # of whichever library the hub's client speaks HTTP by
        reason = " ".join(str(error).split()).replace(token, "***")[:300]
        status = getattr(getattr(error, "response", None), "status_code", None)
        advice = "check the network and HF_ENDPOINT"
        if status in REFUSED:
            advice = f"give HF_TOKEN, or hf auth login, a token that may write to {repository}"
        raise ValueError(
            f"publish.repository: {repository} could not be pushed ({reason}); {advice}. {again}"
        ) from None
    if is_public:
        raise ValueError(
            f"publish.private: got true, but {url} exists and is public; set publish.private=false, or give "
            "another publish.repository"
        )
    return url


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
    data = _at(run, "data.path")
    manifest = read_mapping(Path(data) / MANIFEST_FILE) if data else {}
    architecture = read_mapping(about.model / "config.json")["architectures"][0]
    head = head_of(architecture)
    assert head is not None, "publish checks the architecture"
    tables = [_HUB_TABLE.fullmatch(location) for location in _at(run, "chat.table") or []]
    metadata = {
        "license": about.license.lower(),  # as the hub writes SPDX's names
        "library_name": "transformers",
        "pipeline_tag": HEADS[head][0],
        "base_model": about.base,
        "datasets": sorted({found[1] for found in tables if found}),
        "tags": ["protein-language-model", about.family] if about.family else None,
    }
    given = yaml.safe_dump({name: value for name, value in metadata.items() if value}, sort_keys=False)
    origin = f", trained from [{about.base}](https://huggingface.co/{about.base})" if about.base else ""
    if (run.get("model") or {}).get("init_from", "unknown") is None:
        origin = ", trained from random weights"
    splits = manifest.get("splits", {}).items()
    unused = {"optim.lr"} if run.get("lora") else set()
    unused |= {"model.mask_fraction"} if head != "ForMaskedLM" else set()
    unused |= {"model.max_residues"} if head == CAUSAL else set()
    settings = [(name, _at(run, name)) for name in SETTINGS if name not in unused]
    settings += [(name, results.get(name)) for name in ("train_residues", "world_size", "classes")]
    tokens = "tokens" if head == CAUSAL else "residues"
    sections = {
        "Use": [f"```python\n{_snippet(head, about.repository or 'path/to/this/folder', run)}\n```"],
        "Data": [
            _table(("source", "bytes", "SHA-256"), map(_source, manifest.get("sources", ()))),
            _table(("split", "records", tokens), [(k, v["records"], v["residues"]) for k, v in splits]),
        ],
        "Training": [_table(("setting", "value"), settings)],
        "Scores": [_by_split(_scores(results)), _by_split(_evaluations(about)), _scorecard(about)],
        "Software": [_table(("", "version"), (results.get("environment") or {}).items())],
    }
    parts = [f"# {_cell(about.repository or folder.name)}"]
    parts += [f"{HEADS[head][1]} (`{architecture}`, {about.parameters:,} parameters){origin}."]
    for title, texts in sections.items():
        parts += [f"## {title}", *filter(None, texts)] if any(texts) else []
    return f"---\n{given}---\n\n" + "\n\n".join(parts) + "\n"


def _snippet(head: str, source: str, run: Mapping[str, Any]) -> str:
    masked = "<mask>" if head == "ForMaskedLM" else "Q"
    inputs, output = (
        f'tokenizer("MKTAYIAKQR{masked}ISFVKSHFSRQ", return_tensors="pt")',
        "model(**inputs).logits",
    )
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
    documents = [read_mapping(path) for path in sorted(about.model.parent.glob("evaluation-*.json"))]
    return {
        str(found["split"]): {name.removeprefix("eval_"): value for name, value in found.items()}
        for found in documents
        if about.sha256 and found.get("model_sha256") == about.sha256
    }


def _scorecard(about: Published) -> str:
    found = read_mapping(path := about.model.parent / "scorecard.json")
    is_same = Path(str(found.get("model"))).resolve() == about.model.resolve()
    weights = max(file.stat().st_mtime for file in about.model.glob("*.safetensors"))
    if not is_same or path.stat().st_mtime < weights:  # of an earlier training
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
