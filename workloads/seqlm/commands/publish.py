"""Write a folder for the Hugging Face hub and push it (``seqlm publish``).

The folder holds the model's files and a model card, README.md. ``publish.repository`` names where it goes.
The model is the run's own, or the folder that ``inference.model`` names.
"""

import filecmp
import json
import math
import shutil
from pathlib import Path

from seqlm.commands.inference import check_model
from seqlm.commands.model_card import CAUSAL, HEADS, Published, head_of, model_card
from seqlm.proteins.families.table import MODEL_FAMILIES, family_of, saved_architectures
from seqlm.proteins.inference.output_file import default_folder
from seqlm.runs.model_names import MAX_BASES, may_be_hub_id
from seqlm.runs.run_file import RunFile
from seqlm.training.checksums import CARD_FILE, CHECKPOINT_FILE, SUMS_FILE, new_folder, verified
from seqlm.training.data.model_folder import check_files
from seqlm.training.strict_yaml import read_mapping, shown
from seqlm.training.tracking.run_log import CONFIG_FILE

MODEL_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "LICENSE*", "NOTICE*")
REFUSED = (401, 403)
"""Status of the hub for a token without permission."""


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
    check_files(model)
    problem = ""
    family = family_of(str(model))
    architecture = next(iter(saved_architectures(model)), "")
    head = head_of(architecture)
    if not model.is_dir():
        problem = "is no folder on this machine; it is on the hub already if it is a hub id"
    elif (model / CHECKPOINT_FILE).exists():
        problem = "is a checkpoint; finish the run, which writes a model folder"
    elif (model / "adapter_config.json").exists():
        problem = (
            "holds adapters only; give the model folder in which they are merged (lora.merge=true)"
        )
    elif head is None or not (family or head == CAUSAL):
        found = shown(architecture) if architecture else "none"
        problem = (
            f"holds the architecture {found}; allowed are ...{', ...'.join(HEADS)} of "
            f"{' and '.join(MODEL_FAMILIES)}, and any ...{CAUSAL}"
        )
    elif not any(model.glob("*.safetensors")):
        problem = "holds no *.safetensors; copy the folder again from its source"
    if problem:
        raise ValueError(f"inference.model: {model} {problem}")


def _check_place(folder: Path, model: Path, *, overwrite: bool) -> None:
    """Raise ValueError if the new folder would replace anything else than a folder of the same model."""
    at = folder.resolve()
    own = model.resolve()
    if own in (at, *at.parents) or at in own.parents:
        raise ValueError(
            f"publish.folder: {folder} overlaps the model {model}; give another folder"
        )
    if not folder.exists():
        return
    if (
        not folder.is_dir()
        or not (folder / CARD_FILE).is_file()
        or not (folder / "config.json").is_file()
    ):
        raise ValueError(
            f"publish.folder: {folder} exists and is no folder of a model; give another one"
        )
    weights = [path.name for path in model.glob("*.safetensors")]
    _, *others = filecmp.cmpfiles(folder, model, ["config.json", *weights], shallow=False)
    known = {path.name for pattern in MODEL_FILES for path in model.glob(pattern)} | {
        CARD_FILE,
        SUMS_FILE,
    }
    added = sorted({path.name for path in folder.iterdir()} - known)
    if (any(others) or added) and not overwrite:
        holds = f"{added[0]}, which the model folder lacks" if added else "another model"
        raise ValueError(
            f"publish.folder: {folder} holds {holds}; give another folder, put files such as NOTICE into the "
            "model folder, or replace the folder with inference.overwrite=true"
        )


def _write(
    folder: Path, model: Path, repository: str | None, license: str, base: str | None
) -> None:
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
                    raise ValueError(
                        f"{model} lacks {len(missing)} weights, such as {min(missing)}"
                    )
        parameters = sum(math.prod(shape) for shape in shapes.values())
        about = Published(
            model, repository, license, family_of(str(model)), base, parameters, source.sha256
        )
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
    except Exception as error:  # the type depends on the HTTP library of the hub's client
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
