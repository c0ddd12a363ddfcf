"""Every run file loads, and every mistake in one is named."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from seqlm.proteins.families.esm2.facts import ESM2
from seqlm.runs.run_file import load_config
from seqlm.training.config import LoraConfig
from seqlm.training.strict_yaml import shown

FOLDER = Path(__file__).parents[3] / "workloads/seqlm/configs"
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
    assert {load_config(path).model.size for path in CONFIGS} == set(ESM2.sizes)


def test_every_kind_of_task_has_an_example() -> None:
    """Pre-training has none, and no adapters."""
    tasks = [load_config(path).task for path in TASKS]
    assert {task.kind for task in tasks if task} == {
        "binary",
        "multilabel",
        "regression",
        "residue",
    }
    assert not any(load_config(path).task or load_config(path).lora for path in CONFIGS)


@pytest.fixture
def run_yaml(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text("optim: {lr: 1e-4, warmup_steps: 10}\n")
    return path


def test_defaults_file_and_overrides(run_yaml: Path) -> None:
    config = load_config(
        run_yaml, ["optim.betas=[0.9, 0.95]", "data.source=a.fasta", "train.compile=on"]
    )
    assert config.optim.lr == 1e-4, "YAML 1.1 reads 1e-4 as text"
    assert config.optim.betas == (0.9, 0.95)
    assert config.data.source == ("a.fasta",)
    assert config.train.compile == "on", "YAML 1.1 reads on as true"
    assert config.to_dict()["optim"]["betas"] == [0.9, 0.95]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.lrr=1", "optim.lrr: no such field; did you mean lr?"),
        ("learning_rate=1", "learning_rate: no such field; did you mean optim.lr?"),
        ("bogus=1", "bogus: no such field; allowed are name, runs, model"),
        ("optim.lr=fast", "optim.lr: got 'fast'; expected a finite number"),
        ("optim.lr=2", "optim.lr: got 2.0; allowed above 0, below 1"),
        ("train.max_steps=1.5", "train.max_steps: got 1.5; expected a whole number"),
        ("train.activation_checkpointing=1", "got 1; allowed are true and false"),
        ("model.size=9M", "model.size: got '9M'; allowed are 8M, 35M, 150M, 650M, 3B, 15B"),
        ("optim.betas=[0.9]", "optim.betas: got [0.9]; expected 2 values"),
        ("optim.name", "'optim.name': an override has the form section.field=value"),
        ("train=5", "train: expected a section (mapping) or null, got 5"),
        ("train.tokens_per_step=10000", "allowed are multiples of train.tokens_per_pack (16384)"),
        ("train.tokens_per_pack=1000", "at least model.max_residues + 2 = 1024"),
        ("optim.warmup_steps=500000", "must be below train.max_steps (500000)"),
        ("parallel.shard_size=2", "got 2 with parallel.mode=ddp; only fsdp shards"),
        ("data.membership=table.tsv", "give both or neither"),
        ("data.source=[]", "data.source: got an empty list"),
        ("name=../other", "name: got '../other'; use letters, digits"),
        ("data.validation_fraction=0", "the first must be above 0"),
        ("optim.lr=: :", "'optim.lr=: :': not YAML: line 1, column 1"),
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
    with pytest.raises(ValueError, match=r"there is no run file .*esm2_8m_sample\.yaml"):
        load_config(tmp_path / "none.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1,\n")
    with pytest.raises(ValueError, match=r"not YAML: line 2, column 1: while parsing a flow node"):
        load_config(broken)
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="byte 0 is not UTF-8"):
        load_config(broken)
    broken.write_text("- 1\n")
    with pytest.raises(ValueError, match="must hold sections"):
        load_config(broken)
    with pytest.raises(ValueError, match=r"cannot be read: Is a directory; name a YAML file"):
        load_config(tmp_path)


LORA = FOLDER / "finetune/membrane_sample.yaml"


@pytest.mark.parametrize("value", ["false", "no", "off", "0", "''", "[]", "5", "some", "[rank]"])
@pytest.mark.parametrize("section", ["lora", "train", "bionemo", "chat", "task.split"])
def test_only_null_leaves_a_section_out(section: str, value: str) -> None:
    with pytest.raises(
        ValueError, match=rf"{section}: expected a section \(mapping\) or null, got "
    ):
        load_config(LORA, [f"{section}={value}"])


def test_null_and_an_empty_section() -> None:
    assert load_config(LORA).lora != LoraConfig()
    assert load_config(LORA, ["lora=null"]).lora is None
    assert load_config(LORA, ["lora={}"]).lora == LoraConfig()
    assert load_config(LORA, ["bionemo=null"]).bionemo is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data: {path: a}\ndata: {path: b}\n", "line 2: got 'data' again after line 1; remove one"),
        ("data: {path: a, path: b}\n", "line 1: got 'path' again"),
        ("train: {max_steps: 010}\n", "train.max_steps: got '010'; expected a whole number"),
        ("train: {max_steps: 0x10}\n", "train.max_steps: got '0x10'; expected a whole number"),
        ("train: {max_steps: 1_0}\n", "train.max_steps: got '1_0'; expected a whole number"),
        ("train: {max_steps: 1:30}\n", "train.max_steps: got '1:30'; expected a whole number"),
        ("train: {max_steps: '12'}\n", "train.max_steps: got '12'; expected a whole number"),
        ("train: {max_steps: true}\n", "train.max_steps: got True; expected a whole number"),
        (
            "train: {seed: 99999999999999999999999}\n",
            "train.seed: got '99999999999999999999999'; expected",
        ),
        ("train: {activation_checkpointing: yes}\n", "got 'yes'; allowed are true and false"),
        ("train: {activation_checkpointing: on}\n", "got 'on'; allowed are true and false"),
        ("optim: {lr: 1_0}\n", "optim.lr: got '1_0'; expected a finite number"),
        ("optim: {lr: 1:30}\n", "optim.lr: got '1:30'; expected a finite number"),
        ("optim: {lr: 010}\n", "optim.lr: got '010'; expected a finite number"),
        ("optim: {lr: true}\n", "optim.lr: got True; expected a finite number"),
        (
            "optim: {weight_decay: .inf}\n",
            "optim.weight_decay: got '.inf'; expected a finite number",
        ),
        (
            "optim: {weight_decay: .nan}\n",
            "optim.weight_decay: got '.nan'; expected a finite number",
        ),
        ("optim: {weight_decay: inf}\n", "optim.weight_decay: got 'inf'; expected a finite number"),
        (
            "optim: {weight_decay: 1e999}\n",
            "optim.weight_decay: got '1e999'; expected a finite number",
        ),
        ("data: {source: {a: b}}\n", "data.source: got {'a': 'b'}; expected a list"),
        ("data: {source: [{a: b}]}\n", "data.source: got [{'a': 'b'}]; expected text"),
        ("data: {source: null}\n", "data.source: got None; expected a list"),
        (
            "data: {source: [true]}\n",
            "data.source: got [True]; expected text; put words such as true",
        ),
        ('data: {path: "a\\0b"}\n', "data.path: got 'a\\x00b'; expected text without NUL"),
        (
            'data: {path: "\\ud800"}\n',
            "data.path: got '\\ud800'; expected text without NUL and surrogates",
        ),
        ('"\\e[31m": 1\n', "\\x1b[31m: no such field"),
        ("name: " + "a" * 300 + "\n", "aaa'; use at most 200 bytes"),
        ("a: &x [1]\nname: *x\n", "line 2: got the alias *x; write the value itself"),
        (
            "name: !!python/object:os.system a\n",
            "line 1: got the tag 'tag:yaml.org,2002:python/object:os.sys",
        ),
        ("name: !!str 5\n", "line 1: got the tag 'tag:yaml.org,2002:str'; remove it"),
        ("? [a]\n: b\n", "line 1: got a list or mapping as a key; expected text"),
        (
            "a: 1\n--- \nb: 2\n",
            "not YAML: line 2, column 1: expected a single document in the stream",
        ),
        ("name: \x1b\n", "not YAML: unacceptable character #x001b"),
        ("data: " + "[" * 3000 + "\n", "line 1: more than 16 levels of nesting"),
        ("name: " + "[" * 3000 + "]" * 3000 + "\n", "line 1: more than 16 levels of nesting"),
        ("{a: " * 3000, "line 1: more than 16 levels of nesting"),
    ],
)
def test_surprises_of_yaml_are_refused(tmp_path: Path, text: str, message: str) -> None:
    """In a file; and as an override, if the text is one section of one line."""
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ValueError) as caught:
        load_config(path)
    assert message in str(caught.value) and str(path) in str(caught.value)
    section, _, value = text.strip().partition(": ")
    if section in ("train", "optim", "data") and "\n" not in value and "line 1: got" not in message:
        path.write_text("train:\n")
        with pytest.raises(ValueError) as caught:
            load_config(path, [f"{section}={value}"])
        assert message in str(caught.value)


def test_an_alias_bomb_ends_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bomb.yaml"
    lines = [
        f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9 if n else ['lol'] * 9)}]" for n in range(10)
    ]
    path.write_text("\n".join([*lines, "name: *x9\n"]))
    with pytest.raises(ValueError, match=r"line 2: got the alias \*x0") as caught:
        load_config(path)
    assert len(str(caught.value)) < 300


def test_long_values_are_shortened(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("data: {path: [" + "[a, b], " * 2_000 + "]}\n")
    with pytest.raises(ValueError) as caught:
        load_config(path)
    assert len(str(caught.value)) < 400
    assert len(shown("x" * 10_000)) <= 100 and shown("a\x1bb") == r"'a\x1bb'"


def test_values_that_stay_text(run_yaml: Path) -> None:
    """Values that YAML 1.1 reads as numbers, booleans or dates are text, as in cluster files."""
    config = load_config(
        run_yaml, ["data.path=010", "data.source=[on, 1:30, 2026-08-30, 0x10, 7, 1.5]"]
    )
    assert config.data.path == "010"
    assert config.data.source == ("on", "1:30", "2026-08-30", "0x10", "7", "1.5")


@pytest.mark.parametrize(
    "text",
    [
        "on",
        "010",
        "1:30",
        "1e5",
        "1.5e3",
        "1.5e+3",
        "1_0",
        "-.5",
        ".5",
        "1.",
        "~",
        "",
        "null",
        "2026-08-30",
    ],
)
def test_the_recorded_configuration_reads_back(tmp_path: Path, run_yaml: Path, text: str) -> None:
    """A run records its configuration by PyYAML, which quotes what its own loader would misread."""
    config = load_config(run_yaml)
    config = dataclasses.replace(
        config, data=dataclasses.replace(config.data, source=(text,), path=text or "x")
    )
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config.to_dict(), sort_keys=False))
    assert load_config(path) == config
