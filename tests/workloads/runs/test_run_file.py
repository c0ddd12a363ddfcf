"""Run files: names of prepared data, documentation of fields, and starts without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from seqlm.commands.inference import check_model
from seqlm.runs.model_names import short_training
from seqlm.runs.run_file import RunFile, load_config
from seqlm.runs.schema import SCHEMA_FILE, fields_text, json_schema

REPOSITORY = Path(__file__).parents[3]
CONFIGS = sorted((REPOSITORY / "workloads/seqlm/configs").rglob("*.yaml"))
SAMPLE = REPOSITORY / "workloads/seqlm/configs/esm2_8m_sample.yaml"
HEAVY = ("torch", "transformers", "numpy", "pyarrow", "matplotlib")


def test_data_path_follows_from_sources_and_settings() -> None:
    def path(*overrides: str) -> str:
        return load_config(SAMPLE, overrides).data.path

    assert path() == "data/sample"
    mine = path("data.source=[my/proteins.fasta.gz]")
    assert mine.startswith("data/proteins-")
    members = ["data.members=[uniref90]", "data.membership=idmapping"]
    others = [["data.seed=1"], ["data.test_fraction=0.1"], ["data.source=[a.fasta]"], members]
    found = [path("data.source=[my/proteins.fasta.gz]", *other) for other in others]
    assert len({mine, *found}) == 1 + len(others)
    assert path("data.source=[my/proteins.fasta.gz]", "name=other", "optim.lr=1e-3") == mine
    assert path("data.path=data/given", "data.seed=1") == "data/given"


def test_tables_of_tasks_have_their_own_data() -> None:
    file = REPOSITORY / "workloads/seqlm/configs/finetune/membrane_sample.yaml"
    plain = load_config(file).data.path
    assert load_config(file, ["task.class_weights=none", "lora=null"]).data.path == plain
    assert load_config(file, ["task.label_columns=[Nucleus]"]).data.path != plain != "data/sample"


def test_the_schema_accepts_every_shipped_run_file_and_is_current() -> None:
    schema = json.loads(SCHEMA_FILE.read_text())
    assert {name: schema[name] for name in ("properties", "required")} == {
        name: value
        for name, value in json_schema(RunFile).items()
        if name in ("properties", "required")
    }, "run make schema"
    assert len(CONFIGS) > 10
    for file in CONFIGS:
        jsonschema.validate(yaml.safe_load(file.read_text()), schema)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"optim": {"learning_rate": 1}}, "learning_rate"),
        ({"train": {"max_steps": "many"}}, "many"),
        ({"model": {"size": "9M"}}, "9M"),
    ],
)
def test_the_schema_refuses_what_the_run_file_refuses(wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(jsonschema.ValidationError, match=reason):
        jsonschema.validate(wrong, json.loads(SCHEMA_FILE.read_text()))


def test_fields_of_a_stage_are_listed_with_defaults_and_meaning() -> None:
    text = fields_text(RunFile, ["optim.lr", "inference"])
    assert "  optim.lr=0.0004\n      Peak learning rate" in text
    assert "  inference.input=" in text and "optim.eps" not in text


STAGES = ("train", "data", "evaluate", "embed", "predict", "variants")
COMMANDS = """
import runpy, sys
for stage, *arguments in {commands}:
    sys.argv = ["seqlm", stage, *arguments]
    status = None
    try:
        runpy.run_module("seqlm", run_name="__main__")
    except SystemExit as end:
        status = end.code
    print("ended", stage, arguments[-1], status, [name for name in {heavy} if name in sys.modules])
"""


def test_help_and_mistakes_need_no_heavy_package() -> None:
    """The test checks imported modules, because times differ between machines. All commands run in one
    process; the dry runs come last, since they may import more.
    """
    fields = {
        "train": "train.max_steps=x",
        "data": "data.seed=x",
        "evaluate": "inference.model=no/such/one",
    }
    sample = ("--config", str(SAMPLE))
    light = [(stage, *sample, "--help") for stage in STAGES]
    light += [
        (stage, *sample, fields.get(stage, "inference.input=[none.fasta]")) for stage in STAGES
    ]
    commands = [*light, *((stage, *sample, "--dry-run") for stage in STAGES)]
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS.format(commands=commands, heavy=HEAVY)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    printed = done.stdout.splitlines()
    ended = [line for line in printed if line.startswith("ended ")]
    assert ended[: len(light)] == [
        f"ended {stage} {last} {0 if last == '--help' else 2} []" for stage, *_, last in light
    ], done.stderr
    for stage in STAGES:
        (place,) = (
            n for n, line in enumerate(printed) if line.startswith(f"ended {stage} --dry-run None")
        )
        said = "dry run: the run file is valid; nothing was started or written"
        assert printed[place - 1].startswith(said), stage


MISTAKES = """
import runpy, sys
for arguments in {commands}:
    sys.argv = ["seqlm", *arguments]
    try:
        runpy.run_module("seqlm", run_name="__main__")
    except SystemExit as end:
        print(end.code, [name for name in ("torch", "transformers") if name in sys.modules])
    print("---", file=sys.stderr)
"""


def test_later_fields_of_a_task_leave_the_names_of_earlier_folders() -> None:
    """The names are those of the version before columns were found by their names."""
    assert load_config("secondary_structure").data.path == "data/secondary_structure-d515282f"
    assert load_config("deeploc_membrane").data.path == "data/deeploc2-5ed588e2"
    masked = load_config("secondary_structure", ["task.mask_columns=[resolved]"])
    assert masked.data.path != "data/secondary_structure-d515282f"


def test_mistakes_are_found_before_torch_is_imported(tmp_path: Path) -> None:
    """All commands run in one process, which must never import torch."""

    def folder(run: str, architecture: str) -> str:
        (tmp_path / run / "model").mkdir(parents=True)
        document = {"model_type": "esm", "architectures": [architecture]}
        (tmp_path / run / "model" / "config.json").write_text(json.dumps(document))
        return f"inference.model={tmp_path / run / 'model'}"

    masked = folder("masked", "EsmForMaskedLM")
    tuned = folder("tuned", "EsmForTokenClassification")
    fasta = tmp_path / "a.fasta"
    table = tmp_path / "a.csv"
    mutations = tmp_path / "m.csv"
    fasta.write_text(">a\nMKTAYIAKQRQISFVKSHFSRQ\n")
    table.write_text("id,chain,place\na,MKTAYIAKQRQISFVKSHFSRQ,x\n")
    mutations.write_text("change\nA4G\n")
    (tmp_path / "masked" / "embeddings.parquet").write_text("mine")
    task = tmp_path / "task.yaml"
    columns = {"kind": "multiclass", "table": [str(table)], "label_columns": ["place"]}
    task.write_text(yaml.safe_dump({"task": columns, "data": {"path": str(tmp_path / "data")}}))
    sample = ["--config", str(SAMPLE)]
    runs = f"runs={tmp_path}"
    source = f"inference.input=[{fasta}]"
    cases = {
        "there is no folder": ["serve", "--model", "no/folder", "--port", "0"],
        "has not finished": ["evaluate", *sample, runs, "model.init_from=null"],
        "no_proteins.fasta": [
            *("evaluate", *sample, masked),
            *("data.source=[no_proteins.fasta]", f"data.path={tmp_path / 'none'}"),
        ],
        "none.fasta": ["train", *sample, runs, "data.source=[none.fasta]"],
        "there is no folder no/model/at": [
            *("train", *sample, runs, "model.init_from=no/model/at/all"),
        ],
        "Name the column in task.sequence_column": [
            *("train", "--config", str(task), runs, "task.split.cluster=auto"),
        ],
        "split": ["train", "--config", str(task), runs, "task.sequence_column=seq"],
        "no column that is known for mutations": [
            *("variants", *sample, masked, source, f"inference.mutations={mutations}"),
        ],
        "no column that is known for sequences": [
            "embed",
            *sample,
            masked,
            f"inference.input=[{table}]",
        ],
        "has nothing to predict": ["predict", *sample, masked, source],
        "predicts no residues": ["variants", *sample, tuned, source],
        "embeddings.parquet exists": ["embed", *sample, masked, source],
    }
    done = subprocess.run(
        [sys.executable, "-c", MISTAKES.format(commands=list(cases.values()))],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["2 []"] * len(cases), done.stderr
    for reason, message in zip(cases, done.stderr.split("---\n"), strict=False):
        assert reason.strip() in message and "Traceback" not in message


def test_a_missing_model_is_refused_by_the_field_that_names_it(tmp_path: Path) -> None:
    for name in ("no/such/folder", "./model", "/none", "model"):
        with pytest.raises(ValueError, match=f"inference.model: there is no folder {name}"):
            check_model(load_config(SAMPLE, [f"inference.model={name}"]))
    check_model(load_config(SAMPLE, ["inference.model=facebook/esm2_t6_8M_UR50D"]))
    with pytest.raises(ValueError, match="the run esm2_8m_sample has not finished"):
        check_model(load_config(SAMPLE, [f"runs={tmp_path}"]))


def test_warns_of_few_steps_also_in_the_base_of_a_base(tmp_path: Path) -> None:
    def run(name: str, steps: int, base: str | None) -> str:
        folder = tmp_path / name
        (folder / "model").mkdir(parents=True)
        document = {"train": {"max_steps": steps}, "model": {"init_from": base}}
        (folder / "config.yaml").write_text(yaml.safe_dump(document))
        return str(folder / "model")

    short = run("short", 200, None)
    tuned = run("tuned", 50, short)
    assert f"{short} was trained from random weights for 200 steps" in str(short_training(tuned))
    assert short_training(run("long", 500_000, None)) is None
    assert short_training(run("hub", 200, "facebook/esm2_t6_8M_UR50D")) is None
    assert short_training(None) is short_training("facebook/esm2_t6_8M_UR50D") is None


def test_help_lists_the_subcommands_and_the_settings_of_the_server() -> None:
    def helped(*arguments: str) -> str:
        command = [sys.executable, "-m", "seqlm", *arguments, "--help"]
        return subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, check=True
        ).stdout

    stages = helped()
    for stage in ("data", "train", "evaluate", "embed", "predict", "variants", "report", "serve"):
        assert f"    {stage} " in stages
    serving = helped("serve")
    assert "port to listen on; default 8080" in serving
    assert "  ESM2_SERVE_ALLOW_NUCLEOTIDES=0\n      1 accepts sequences" in serving
