"""Folders for the Hugging Face hub: their models, their cards, and how they are pushed."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from safetensors.torch import load_file

from seqlm.commands.evaluate import main as evaluate
from seqlm.commands.publish import base_of, main
from seqlm.language.model_files import write_model
from seqlm.proteins.model.pretrained import load_model, of_config, save_esm
from seqlm.runs.run_file import load_config
from seqlm.training.checksums import write_sums
from tests.workloads.hub_stand_in import hub
from tests.workloads.proteins.tiny_models import tiny_config
from tests.workloads.training.training_runs import train_here, write_run_file

BOTH_FAMILIES = ("test_the_folder_gives_the_logits_of_the_model",)
REPOSITORY = Path(__file__).parents[3]
TOKEN = "hf_token_of_the_test_0123456789"
LICENSE = "publish.license=Apache-2.0"


@pytest.fixture(scope="module")
def trained(prepared: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run file of a finished and evaluated run."""
    folder = tmp_path_factory.mktemp("trained")
    run_file = write_run_file(folder, prepared, tiny_model)
    few = ("train.max_steps=2", "optim.warmup_steps=1")
    train_here(run_file, *few)
    train_here(run_file, *few, f"inference.model={folder}/runs/run/model", stage=evaluate)
    return run_file


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """Run file of a copy of the run, for a test to change."""
    settings = yaml.safe_load(trained.read_text())
    shutil.copytree(trained.parent / "runs", tmp_path / "runs")
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(settings | {"runs": str(tmp_path / "runs")}))
    return tmp_path / "run.yaml"


def publish(run_file: Path, *overrides: str) -> Path:
    config = load_config(run_file, overrides)
    main(config)
    return Path(config.publish.folder or config.run_dir / "hub")


def logits(folder: Path) -> torch.Tensor:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForMaskedLM.from_pretrained(folder, local_files_only=True).eval()
    with torch.no_grad():
        return model(**tokens("MKTAYIAKQRQISFVKSHFSRQ", return_tensors="pt")).logits


def test_the_folder_gives_the_logits_of_the_model(
    tiny_model: Path, family: str, tmp_path: Path
) -> None:
    run_file = tmp_path / "run.yaml"
    run_file.write_text(yaml.safe_dump({"runs": str(tmp_path)}))
    shutil.copytree(tiny_model, tmp_path / "run/model")
    (tmp_path / "run/model/contact_head.json").write_text("{}")
    write_sums(tmp_path / "run/model")
    folder = publish(run_file, LICENSE)
    assert torch.equal(logits(folder), logits(tmp_path / "run/model"))
    assert {path.name for path in (tmp_path / "run/model").iterdir()} < {
        p.name for p in folder.iterdir()
    }
    assert family in ModelCard.load(folder / "README.md").data.tags


def test_the_card_has_the_facts_of_the_run(run: Path, prepared: Path) -> None:
    folder = publish(run, LICENSE, "publish.repository=null")
    card = ModelCard.load(folder / "README.md")
    assert card.data.to_dict() == {
        "license": "apache-2.0",
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "tags": ["protein-language-model", "esm2"],
    }
    run_dir = run.parent / "runs/run"
    results = json.loads((run_dir / "all_results.json").read_text())
    manifest = json.loads((prepared / "manifest.json").read_text())
    evaluation = json.loads((run_dir / "evaluation-validation.json").read_text())
    text = card.text
    train = manifest["splits"]["train"]
    (source,) = manifest["sources"]
    for row in (
        ("proteins.fasta", f"{source['bytes']:,}", source["sha256"]),
        ("train", f"{train['records']:,}", f"{train['residues']:,}"),
        ("train.max\\_steps", "2"),
        ("optim.lr", "0.002"),
        ("train.seed", "0"),
        ("train\\_residues", f"{results['train_residues']:,}"),
        ("perplexity", f"{results['perplexity']:.5g}", f"{results['test_perplexity']:.5g}"),
        ("perplexity", f"{evaluation['perplexity']:.5g}"),
        ("torch", re.sub(r"([~])", r"\\\1", results["environment"]["torch"])),
    ):
        assert f"| {' | '.join(row)} |" in text, row
    assert "None" not in text and "null" not in text and str(run.parent) not in text
    assert "Masked language model of proteins (`EsmForMaskedLM`, 19,374 parameters)." in text


@pytest.mark.parametrize(
    ("head", "pipeline", "setting"),
    [
        ("masked_lm", "fill-mask", {}),
        ("sequence_classifier", "text-classification", {}),
        ("token_classifier", "token-classification", {}),
        ("causal", "text-generation", {"prompt": "<|user|>\n{question}```<|assistant|>\n"}),
        (
            "causal",
            "text-generation",
            {"prompt": None, "table": ["hf://datasets/lab/questions@main/a.csv"]},
        ),
    ],
)
def test_the_snippet_of_the_card_runs(
    head: str, pipeline: str, setting: dict[str, Any], tmp_path: Path
) -> None:
    model = tmp_path / "run/model"
    run_file = tmp_path / "run.yaml"
    if head == "causal":
        write_model(model, ["what is a protein", "a chain of residues"] * 20, 300)
        (tmp_path / "run/config.yaml").write_text(yaml.safe_dump({"chat": setting, "lora": None}))
    else:
        config = tiny_config()
        kind = getattr(of_config(config), head).plain
        save_esm(model, config, kind(config).state_dict(), kind)
    run_file.write_text(yaml.safe_dump({"runs": str(tmp_path)}))
    folder = publish(run_file, LICENSE)
    card = ModelCard.load(folder / "README.md")
    assert card.data.pipeline_tag == pipeline
    assert card.data.datasets == (["lab/questions"] if "table" in setting else None)
    (code,) = re.findall(r"^```python\n(.*?)^```", card.text, re.DOTALL | re.MULTILINE)
    found: dict[str, Any] = {}
    exec(code.replace("path/to/this/folder", str(folder)), found)
    count = sum(math.prod(each.shape) for each in load_file(folder / "model.safetensors").values())
    assert f"{count:,} parameters" in card.text


def test_scores_of_other_weights_stay_out(run: Path) -> None:
    file = run.parent / "runs/run/evaluation-validation.json"
    scores = json.loads(file.read_text())
    assert f"| {scores['proteins']} |" in (publish(run, LICENSE) / "README.md").read_text()
    file.write_text(json.dumps(scores | {"model_sha256": "0" * 64}))
    assert "| proteins |" not in (publish(run, LICENSE) / "README.md").read_text()


def test_texts_of_the_run_have_no_effect_in_the_card(
    run: Path, prepared: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    manifest = json.loads((prepared / "manifest.json").read_text())
    names = [
        "a|b<script>x</script>\n# c.fasta",
        "https://me:hunter2@example.org/x.fasta?signature=secret",
        *(f"part-{number}.fasta" for number in range(60)),
    ]
    manifest["sources"] = [manifest["sources"][0] | {"name": name} for name in names]
    (data / "manifest.json").write_text(json.dumps(manifest))
    file = tmp_path / "runs/run/config.yaml"
    settings = yaml.safe_load(file.read_text())
    settings["data"]["path"] = str(data)
    settings["optim"]["schedule"] = "x |\n---\nlicense: other"
    file.write_text(yaml.safe_dump(settings))
    text = (publish(run, LICENSE) / "README.md").read_text()
    assert ModelCard(text).data.license == "apache-2.0"
    assert (
        "hunter2" not in text and "secret" not in text and "<script>" not in text.replace("\\<", "")
    )
    assert "The first 50 of 62 source files." in text and "part-59.fasta" not in text
    assert "\n# c" not in text and "| optim.schedule | x \\| --- license: other |" in text


def test_the_licence_is_that_of_a_published_starting_model_or_asked_for(run: Path) -> None:
    with pytest.raises(
        ValueError, match=r"publish\.license: got null.*publish\.license=apache-2\.0"
    ):
        publish(run)
    assert not (run.parent / "runs/run/hub").exists()
    earlier = run.parent / "runs/earlier"
    (earlier / "model").mkdir(parents=True)
    for folder, start in (
        (earlier, "facebook/esm2_t6_8M_UR50D"),
        (run.parent / "runs/run", str(earlier / "model")),
    ):
        settings = (
            yaml.safe_load((folder / "config.yaml").read_text())
            if folder != earlier
            else {"model": {}}
        )
        settings["model"]["init_from"] = start
        (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    assert base_of(run.parent / "runs/run/model") == "facebook/esm2_t6_8M_UR50D"
    card = ModelCard.load(publish(run) / "README.md")
    assert (card.data.license, card.data.base_model) == ("mit", "facebook/esm2_t6_8M_UR50D")


def damage(model: Path) -> None:
    data = bytearray((model / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (model / "model.safetensors").write_bytes(data)


def cut(model: Path) -> None:
    (model / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes()[:-9])
    write_sums(model)


def only_adapters(model: Path) -> None:
    (model / "adapter_config.json").write_text("{}")


def names(architectures: Any, model: Path) -> None:
    file = model / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"architectures": architectures}))
    (model / "SHA256SUMS").unlink()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damage, "model.safetensors is damaged: its checksum is wrong"),
        (cut, "model.safetensors cannot be read as a model"),
        (only_adapters, "holds adapters only; give the model folder in which they are merged"),
        (lambda model: (model / "model.safetensors").unlink(), r"holds no \*\.safetensors"),
        (lambda model: (model / "config.json").unlink(), "holds the architecture none"),
        (
            partial(names, ["\x1b[31m" + "E" * 9999]),
            r"the architecture '.x1b.31mE+\.\.\.E+'; allowed",
        ),
        (partial(names, [5]), "holds the architecture none"),
        (partial(names, {"first": "EsmModel"}), "holds the architecture none"),
    ],
)
def test_a_model_that_is_not_whole_is_refused(run: Path, change: Any, message: str) -> None:
    change(run.parent / "runs/run/model")
    with pytest.raises(ValueError, match=message):
        publish(run, LICENSE)
    assert not (run.parent / "runs/run/hub").exists()


def test_a_folder_in_the_way_is_refused(run: Path, tiny_model: Path) -> None:
    run_dir = run.parent / "runs/run"
    publish(run, LICENSE)
    assert publish(run, LICENSE) == run_dir / "hub", "the same model again"
    (run_dir / "hub/README.md").write_text("edited")
    publish(run, LICENSE)
    (run_dir / "hub/NOTICE").write_text("added")
    with pytest.raises(ValueError, match="holds NOTICE, which the model folder lacks"):
        publish(run, LICENSE)
    (run_dir / "model/NOTICE").write_text("added")
    publish(run, LICENSE)
    (run_dir / "hub/README.md").write_text("an edited card does not damage the model")
    load_model(str(run_dir / "hub"))
    other = (f"inference.model={tiny_model}", f"publish.folder={run_dir / 'hub'}")
    with pytest.raises(ValueError, match="holds NOTICE, which the model folder lacks"):
        publish(run, LICENSE, *other)
    publish(run, LICENSE, *other, "inference.overwrite=true")
    with pytest.raises(ValueError, match="holds another model; give another folder"):
        publish(run, LICENSE)
    for folder, message in (
        (run_dir / "checkpoints", "exists and is no folder of a model"),
        (run_dir, "overlaps the model"),
        (run_dir / "model", "overlaps the model"),
        (run_dir / "model/hub", "overlaps the model"),
    ):
        with pytest.raises(ValueError, match=message):
            publish(run, LICENSE, f"publish.folder={folder}", "inference.overwrite=true")


@pytest.mark.parametrize("wrong", ["publish.repository=name", "publish.license='my own'"])
def test_names_that_the_hub_does_not_take_are_reported(run: Path, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong.partition("=")[0]):
        load_config(run, [wrong])


def pushed(run: Path, *overrides: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Push in a process of its own: the hub's client reads its address when it is imported."""
    command = [sys.executable, "-m", "seqlm", "publish", "--config", str(run), LICENSE]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    variables |= {"HF_HOME": str(run.parent / "hf"), "HF_HUB_DISABLE_XET": "1", **environment}
    done = subprocess.run(
        [*command, "publish.repository=lab/proteins", *overrides],
        **{
            "cwd": REPOSITORY,
            "env": variables,
            "capture_output": True,
            "text": True,
            "timeout": 300,
        },
    )
    assert TOKEN not in done.stdout + done.stderr and "Traceback" not in done.stderr
    return done


def test_the_folder_is_pushed_and_the_token_stays_secret(run: Path) -> None:
    with hub(TOKEN) as made:
        made.files = {"model-00001-of-00002.safetensors": b"old", "picture.png": b"kept"}
        done = pushed(run, HF_ENDPOINT=made.url, HF_TOKEN=TOKEN)
        assert done.returncode == 0, done.stderr
        folder = run.parent / "runs/run/hub"
        written = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert made.files == {**written, "picture.png": b"kept"}
        assert list(made.objects.values()) == [written["model.safetensors"]]
        assert made.private == {"lab/proteins": True}
        assert done.stdout.splitlines()[-1] == f"hub     {made.url}/lab/proteins"
        without = {path for _, path, said in made.asked if said != f"Bearer {TOKEN}"}
        assert without - {"/api/agent-harnesses"} == {f"/objects/{next(iter(made.objects))}"}
        assert {said for _, _, said in made.asked} == {f"Bearer {TOKEN}", None}
        made.private["lab/proteins"] = False
        made.files.clear()
        refused = pushed(run, HF_ENDPOINT=made.url, HF_TOKEN=TOKEN)
        assert (
            refused.returncode == 2 and "exists and is public" in refused.stderr and not made.files
        )


@pytest.mark.parametrize("lack", ["token", "right", "network"])
def test_a_push_that_fails_says_what_to_do_in_one_line(run: Path, lack: str) -> None:
    with hub("another token") as made:
        url = "http://127.0.0.1:9" if lack == "network" else made.url
        done = pushed(run, HF_ENDPOINT=url, **({} if lack == "token" else {"HF_TOKEN": TOKEN}))
    assert done.returncode == 2
    advice = {
        "token": "there is no token of the hub; set HF_TOKEN or run hf auth login",
        "right": "a token that may write to lab/proteins",
        "network": "check the network and HF_ENDPOINT",
    }
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: publish.repository: ") and advice[lack] in line
    assert f"{run.parent}/runs/run/hub is complete; then run the same command again" in line
