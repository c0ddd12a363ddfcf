"""Every run file loads, and every mistake in one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from workloads.esm2.config import load_config
from workloads.esm2.model import SHAPES

FOLDER = Path(__file__).parents[3] / "workloads/esm2/configs"
CONFIGS = sorted(FOLDER.glob("*.yaml"))
TASKS = sorted((FOLDER / "finetune").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS + TASKS, ids=lambda path: path.stem)
def test_shipped_run_loads(path: Path) -> None:
    config = load_config(path)
    assert config.name == path.stem
    assert config.packs_per_step * config.train.tokens_per_pack == config.train.tokens_per_step
    # Both make targets change the mode.
    for mode in ("ddp", "fsdp"):
        assert load_config(path, [f"parallel.mode={mode}"]).parallel.mode == mode


def test_all_published_sizes_are_shipped() -> None:
    assert {load_config(path).model.size for path in CONFIGS} == set(SHAPES)


def test_every_kind_of_task_has_an_example() -> None:
    """Pre-training has none, and no adapters."""
    tasks = [load_config(path).task for path in TASKS]
    assert {task.kind for task in tasks if task} == {"binary", "multilabel", "regression", "residue"}
    assert not any(load_config(path).task or load_config(path).lora for path in CONFIGS)


@pytest.fixture
def run_yaml(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text("optim: {lr: 1e-4, warmup_steps: 10}\n")
    return path


def test_defaults_file_and_overrides(run_yaml: Path) -> None:
    config = load_config(run_yaml, ["optim.betas=[0.9, 0.95]", "data.source=a.fasta", "train.compile=on"])
    assert config.optim.lr == 1e-4, "YAML 1.1 reads 1e-4 as text"
    assert config.optim.betas == (0.9, 0.95)
    assert config.data.source == ("a.fasta",)
    assert config.train.compile == "on", "YAML 1.1 reads on as true"
    assert config.to_dict()["optim"]["betas"] == [0.9, 0.95]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.lrr=1", "optim.lrr: no such field; did you mean lr?"),
        ("bogus=1", "bogus: no such field; allowed are name, runs, model"),
        ("optim.lr=fast", "optim.lr: got 'fast'; expected a number"),
        ("optim.lr=2", "optim.lr: got 2.0; allowed above 0, below 1"),
        ("train.max_steps=1.5", "train.max_steps: got 1.5; expected a whole number"),
        ("train.activation_checkpointing=1", "got 1; allowed are true and false"),
        ("model.size=9M", "model.size: got '9M'; allowed are 8M, 35M, 150M, 650M, 3B, 15B"),
        ("optim.betas=[0.9]", "optim.betas: got [0.9]; expected 2 values"),
        ("optim.name", "'optim.name': an override has the form section.field=value"),
        ("train=5", "train: got 5; expected a section of fields"),
        ("train.tokens_per_step=10000", "allowed are multiples of train.tokens_per_pack (16384)"),
        ("train.tokens_per_pack=1000", "at least model.max_residues + 2 = 1024"),
        ("optim.warmup_steps=500000", "must be below train.max_steps (500000)"),
        ("parallel.shard_size=2", "got 2 with parallel.mode=ddp; only fsdp shards"),
        ("data.membership=table.tsv", "give both or neither"),
        ("data.source=[]", "data.source: got an empty list"),
        ("name=../other", "name: got '../other'; use letters, digits"),
        ("data.validation_fraction=0", "the first must be above 0"),
        ("optim.lr=: :", "'optim.lr=: :': the value is not YAML"),
    ],
)
def test_mistake_is_named(run_yaml: Path, override: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        load_config(run_yaml, [override])
    assert message in str(caught.value) and str(run_yaml) in str(caught.value)


def test_empty_file_is_a_run(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("optim:\n")
    assert load_config(path, ["optim.lr=1e-3"]).optim.lr == 1e-3


def test_all_mistakes_at_once(run_yaml: Path) -> None:
    with pytest.raises(ValueError, match=r"3 problem\(s\)") as caught:
        load_config(run_yaml, ["optim.lr=x", "train.max_step=3", "model.size=1B"])
    assert len(str(caught.value).splitlines()) == 4


def test_missing_and_malformed_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no run configuration at .*esm2_8m_sample\.yaml"):
        load_config(tmp_path / "none.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1,\n")
    with pytest.raises(ValueError, match="is not YAML"):
        load_config(broken)
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="is not YAML"):
        load_config(broken)
    broken.write_text("- 1\n")
    with pytest.raises(ValueError, match="must hold sections"):
        load_config(broken)
    with pytest.raises(ValueError, match=r"cannot be read: Is a directory; name a YAML file"):
        load_config(tmp_path)
