"""Commands of the README: the targets exist, and the first commands work as described."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from urllib.request import Request, urlopen

import pyarrow.parquet as pq
import pytest
from transformers import AutoModelForMaskedLM, AutoTokenizer

from config.cluster_files import DEFAULT_CLUSTER_FILE
from config.reading.loader import load_cluster
from seqlm.runs.run_file import load_config
from tests.one_core import one_core
from tests.workloads.proteins.tiny_models import save_tiny_model
from tests.workloads.training.training_runs import free_port
from tools.make_variables import TARGETS, find_problem

REPOSITORY = Path(__file__).parents[1]
README = REPOSITORY / "README.md"
DEFAULT_RUN = "esm2_8m_sample"


def readme_commands() -> list[str]:
    """Lines of the README's bash blocks, continuation lines joined, comments and environment left out."""
    blocks = re.findall(r"```bash\n(.*?)```", README.read_text(), flags=re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.partition("  #")[0].strip() for line in lines if line.strip()]


def make(*arguments: str, timeout_seconds: int = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
    )


def test_readme_has_commands() -> None:
    assert {"make train-ddp", "make cost", "make teardown"} <= set(readme_commands())


@pytest.mark.parametrize(
    "command", [line for line in readme_commands() if line.startswith("make ")]
)
def test_readme_command_is_valid(command: str) -> None:
    """make knows the target, and the run file and overrides that the line gives are accepted."""
    arguments = shlex.split(command)[1:]
    dry = make("--dry-run", *arguments)
    assert dry.returncode == 0, dry.stderr
    variables = dict(
        argument.split("=", 1) for argument in arguments if re.match(r"[A-Z]+=", argument)
    )
    overrides = [word for word in variables.get("ARGS", "").split() if not word.startswith("-")]
    if all("=" in word for word in overrides):
        load_config(variables.get("CONFIG", DEFAULT_RUN), overrides)
    load_cluster(REPOSITORY / variables.get("CLUSTER", DEFAULT_CLUSTER_FILE))


def test_other_readme_commands_name_what_exists() -> None:
    for command in readme_commands():
        for word in shlex.split(command):
            if word.startswith(("workloads/", "benchmarks/", "clusters/", "docs/")):
                assert (REPOSITORY / word).exists(), command


def test_help_lists_every_target() -> None:
    listed = make("help").stdout
    for target in TARGETS:
        assert f"make {target} " in listed
    lines = listed.splitlines()
    assert max(map(len, lines)) <= 80
    readers = [line.partition(":")[0] for before, line in pairwise(lines) if not before]
    assert readers[:3] == ["Biologist", "Platform engineer", "Developer"]


def documented_commands() -> list[str]:
    """Return commands of all documents that set a variable, with words in place of placeholders."""
    found: set[str] = set()
    for path in (README, *sorted((REPOSITORY / "docs").glob("*.md"))):
        text = path.read_text().replace("\\\n", " ")
        lines = [
            line.strip()
            for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
            for line in block.splitlines()
        ]
        lines += re.findall(r"`(make [^`\n]+)`", text)
        found |= {
            line.partition(" #")[0] for line in lines if re.match(r"make [a-z].*[A-Z]+=", line)
        }
    return sorted(found)


@pytest.mark.parametrize("command", documented_commands())
def test_documents_set_no_variable_that_is_not_read(command: str) -> None:
    """Ask what make asks; other tests show that it does, and a make for each would take as long as they."""
    words = [re.sub(r"[<>$()]", "", word) for word in shlex.split(command.replace("...", "x"))[1:]]
    given = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    goals = [word for word in words if re.match(r"[a-z]", word)]
    assert goals
    problem = find_problem(goals, given.get("TARGET", "local"), given, {})
    assert problem is None or "does not read" not in problem.reason


@pytest.mark.parametrize(
    ("command", "variable", "read"),
    [
        ("evaluate CLUSTER=x", "CLUSTER=x", "ARGS CONFIG TARGET RUN MODEL PYTHON VENV"),
        ("train-ddp CONFG=x", "CONFG=x", "ARGS CONFIG TARGET MODEL PYTHON VENV"),
        ("report CONFIG=x", "CONFIG=x", "RUN PYTHON VENV"),
        ("synth ARGS=x", "ARGS=x", "CLUSTER ENDPOINT PYTHON VENV"),
        ("preflight NODES=2", "NODES=2", "ARGS CLUSTER PYTHON VENV"),
        ("status RUN=x", "RUN=x", "ARGS CLUSTER TARGET PYTHON VENV"),
        ("image push MODEL=x", "MODEL=x", "ARGS CLUSTER TARGET FRAMEWORK PYTHON VENV"),
        ("X=1", "X=1", "PYTHON VENV"),
    ],
)
def test_a_variable_that_is_not_read_is_refused_in_one_line(
    command: str, variable: str, read: str
) -> None:
    refused = make("--dry-run", *command.split())
    assert refused.returncode == 2 and refused.stdout == ""
    (line,) = refused.stderr.splitlines()
    goals = " ".join(word for word in command.split() if "=" not in word) or "help"
    assert f"{variable}: make {goals} does not read {variable[:-2]}; it reads {read}." in line


@pytest.mark.parametrize(
    ("goal", "variables", "said"),
    [
        ("train-ddp", {"RUN": "runs/mine"}, "RUN=runs/mine: make train-ddp does not read RUN;"),
        ("report", {"CONFIG": "mine.yaml"}, "CONFIG=mine.yaml: make report does not read CONFIG;"),
    ],
)
def test_a_variable_of_the_environment_that_is_not_read_is_refused(
    goal: str, variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    refused = make("--dry-run", goal)
    assert refused.returncode == 2 and said in refused.stderr


def test_a_missing_run_is_one_line_with_the_existing_ones() -> None:
    refused = make("evaluate", "RUN=runs/missing")
    assert (
        refused.returncode == 2
        and "RUN: runs/missing has no config.yaml; runs here: " in refused.stderr
    )
    assert "MODEL, RUN: give one" in make("--dry-run", "serve", "RUN=runs/a", "MODEL=b").stderr


def test_variables_are_checked_before_the_environment_exists(tmp_path: Path) -> None:
    """Use any python3. Without one, check nothing."""
    for program in ("awk", "bash", "make"):
        found = shutil.which(program)
        assert found is not None
        (tmp_path / program).symlink_to(found)
    command = ["make", "help", "VENV=/nonexistent", "X=1"]
    environment = {"PATH": str(tmp_path)}

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=REPOSITORY, env=environment, capture_output=True, text=True
        )

    unchecked = run()
    assert unchecked.returncode == 0, unchecked.stderr
    (tmp_path / "python3").symlink_to(sys.executable)
    assert "X=1: make help does not read X; it reads PYTHON VENV." in run().stderr


def test_an_activated_environment_does_not_hide_the_users_aws_command() -> None:
    """Version 1 is for tests alone, and no document activates the environment."""
    packages = re.findall(r"^([\w-]+)", (REPOSITORY / "requirements.txt").read_text(), re.MULTILINE)
    assert "boto3" in packages and "awscli" not in packages
    assert "pip uninstall" in make("--dry-run", "--always-make", "env").stdout
    for path in (README, *sorted((REPOSITORY / "docs").glob("*.md"))):
        assert not re.search(r"bin/activate", path.read_text()), path


def test_braces_in_args_stay_one_word(tmp_path: Path) -> None:
    makefile = tmp_path / "Makefile"
    makefile.write_text(f"include {REPOSITORY}/Makefile\nshow-words:\n\t@printf '<%s>' $(ARGS)\n")
    shown = make("-f", str(makefile), "show-words", "ARGS=task.split={column:fold,test:[4]} a=b")
    assert shown.stdout == "<task.split={column:fold,test:[4]}><a=b>"


def test_missing_python_is_one_line() -> None:
    refused = make("env", "PYTHON=python3.11-that-is-not-there", "VENV=/nonexistent/venv")
    messages = [line for line in refused.stderr.splitlines() if not line.startswith("make:")]
    assert refused.returncode != 0 and len(messages) == 1
    assert "is missing: install Python 3.11" in messages[0]


def test_mistake_is_one_message() -> None:
    refused = make("train-ddp", "ARGS=optim.lr=fast")
    assert refused.returncode != 0
    assert "optim.lr: got 'fast'; expected a finite number" in refused.stderr
    assert "Traceback" not in refused.stderr


def write_labelled_table(path: Path) -> None:
    """Write labelled proteins with columns that are found by their names."""
    splits = ("train", "train", "train", "validation", "test")
    rows = [
        (f"P{n}", "MKVLAGGW" * (n % 7 + 1) + "ACDEFGHIKL"[n % 10], n % 2, splits[n % 5])
        for n in range(60)
    ]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("id", "sequence", "label", "split"), *rows])


def done(*arguments: str) -> str:
    """Return the output of a target that succeeds, on one core: launchers start a process for each."""
    with one_core():
        ended = make(*arguments, timeout_seconds=300)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    return ended.stdout


def test_train_fine_tune_embed_and_serve(tmp_path: Path) -> None:
    """Each target as the README shows it, but short, of a tiny model and in the test's own folders."""
    save_tiny_model(tmp_path / "tiny")
    runs = f"runs={tmp_path}/runs tracking.mlflow_uri=file:{tmp_path}/mlruns"
    tiny = f"{runs} data.path={tmp_path}/sample model.init_from={tmp_path}/tiny optim.lr=1e-2"
    short = "optim.warmup_steps=5 train.max_steps=40 train.eval_every_steps=20 train.eval_packs=2 "
    short += "data.validation_fraction=0.02 data.test_fraction=0.02"
    small = "train.tokens_per_pack=1024 train.tokens_per_step=2048 train.precision=fp32"
    told = done("train-ddp", f"ARGS={tiny} {short} {small}")
    run_dir = tmp_path / "runs" / "esm2_8m_sample"
    assert str(run_dir / "report.html") in told
    files = next(
        line for line in told.splitlines() if line.startswith(f"files   {run_dir}: ")
    ).split(": ")[1]
    assert files.startswith(
        "model/, checkpoints/, config.yaml, metrics.jsonl, all_results.json, report.html"
    )
    results = json.loads((run_dir / "all_results.json").read_text())
    # 33 tokens are equally likely in the beginning. So short a run learns the composition of proteins.
    assert results["perplexity"] < 1.1 * results["unigram_perplexity"] < 22
    assert results["test_perplexity"] < 1.1 * results["unigram_perplexity"]
    assert results["fill"] > 0.95 and results["world_size"] == 1  # make test-all starts several
    assert "<svg" in (run_dir / "report.html").read_text()
    model = run_dir / "model"
    AutoTokenizer.from_pretrained(model)
    assert AutoModelForMaskedLM.from_pretrained(model).config.hidden_size == 32

    write_labelled_table(tmp_path / "table.csv")
    tuned = f"{runs} data.path={tmp_path}/labelled model.init_from={model} name=tuned {small}"
    few = f"task.table=[{tmp_path}/table.csv] train.max_steps=4 optim.warmup_steps=1 tracking.mlflow=false"
    told = done("finetune-lora", f"ARGS={tuned} {few}")
    assert str(tmp_path / "runs/tuned/report.html") in told
    assert (tmp_path / "runs/tuned/adapter/adapter_model.safetensors").exists()

    fasta = tmp_path / "own.fasta"
    table = tmp_path / "own.parquet"
    fasta.write_text(">P1\nMKVLAGGW\n>P2\nMSTNPKPQRK\n")
    inference = f"inference.input=[{fasta}] inference.model={model} inference.output={table}"
    done("embed", f"ARGS={runs} {inference}")
    assert [len(vector) for vector in pq.read_table(table)["embedding"].to_pylist()] == [32, 32]
    assert served(model) == [32, 32]


def served(model: Path) -> list[int]:
    """Sizes of two proteins' embeddings, by a model that ``make serve`` answers with."""
    port = free_port()
    command = ["make", "serve", f"MODEL={model}", f"ARGS=--port {port}"]
    server = subprocess.Popen(command, cwd=REPOSITORY, start_new_session=True)
    try:
        deadline = time.monotonic() + 240
        while True:
            assert server.poll() is None and time.monotonic() < deadline
            try:
                with urlopen(f"http://127.0.0.1:{port}/ping", timeout=30):
                    break
            except OSError:
                time.sleep(0.1)
        body = json.dumps({"proteins": ["MKVLAGGW", "MSTNPKPQRK"]}).encode()
        asked = Request(
            f"http://127.0.0.1:{port}/invocations", body, {"Content-Type": "application/json"}
        )
        with urlopen(asked, timeout=60) as answer:
            return [len(found["embedding"]) for found in json.load(answer)["predictions"]]
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=240)
