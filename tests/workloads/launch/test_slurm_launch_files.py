"""A job's files, the checks of its nodes, and the cause if their results differ."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seqlm.launch import slurm_submit
from seqlm.launch.job_file import read_job
from seqlm.launch.network_check import judge_nodes
from seqlm.launch.node_check import check
from seqlm.launch.slurm_submit import submit
from seqlm.training.tracking.metrics_port import SLURM_COMMENT
from tests.workloads.launch.slurm_stand_ins import REPOSITORY, Slurm


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    slurm = Slurm(tmp_path)
    slurm.job = replace(slurm.job, python=sys.executable)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return slurm


SBATCH = """#!/bin/bash
{ printf '%s\\n' "$@"; env; } >"$(dirname "$0")/../sbatch"
echo "12;cluster"
"""


def test_submitting_leaves_what_the_job_needs(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.program("sbatch", SBATCH)
    monkeypatch.setenv("OF_MINE", "x")
    found = submit("train: {}\n", slurm.job, ["--nodes=2"])
    assert found["job"] == "12" and found["report"] == f"{slurm.job.run_dir}/report.html"
    said = (slurm.folder / "sbatch").read_text()
    assert "--nodes=2\n" in said and f"--output={found['log']}\n" in said and "OF_MINE" not in said
    assert f"--comment={SLURM_COMMENT}\n" in said
    place = (slurm.folder / "work/jobs/12").resolve()
    assert (place / "config.yaml").read_text() == "train: {}\n" and place == Path(
        found["log"]
    ).parent
    assert read_job(place / "job.json") == slurm.job


def test_a_job_that_slurm_refuses_says_why(slurm: Slurm) -> None:
    slurm.program("sbatch", "#!/bin/bash\necho 'sbatch: error: invalid partition' >&2\nexit 1\n")
    with pytest.raises(ValueError, match="Slurm refuses the job: sbatch: error: invalid partition"):
        submit("", slurm.job, [])
    assert not list((slurm.folder / "run/jobs").iterdir())


def test_a_slurm_that_does_not_answer_may_have_the_job(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.program("sbatch", "#!/bin/bash\nexec sleep 60\n")
    monkeypatch.setattr(slurm_submit, "SBATCH_SECONDS", 0.2)
    with pytest.raises(ValueError, match=r"Slurm has not answered for 0\.2 s; squeue says whether"):
        submit("", slurm.job, [])
    assert len(list((slurm.folder / "run/jobs").glob("*/job.json"))) == 1


def test_an_image_that_is_not_there_takes_no_node(slurm: Slurm) -> None:
    with pytest.raises(ValueError, match=r"/fsx/absent.sqsh is not there"):
        submit("", replace(slurm.job, image="/fsx/absent.sqsh"), [])


def test_a_model_that_is_not_there_yet_takes_no_node(slurm: Slurm) -> None:
    job = replace(
        slurm.job, stage="predict", needed=(str(slurm.folder), f"{slurm.folder}/run/model")
    )
    with pytest.raises(
        ValueError, match=r"^\S+/run/model: not there, and predict reads it\. A run"
    ):
        submit("", job, [])
    assert not (slurm.folder / "run/jobs").exists()


def test_a_folder_that_cannot_be_written_is_named(slurm: Slurm) -> None:
    (slurm.folder / "file").touch()
    with pytest.raises(ValueError, match=r"file/run/jobs/.* cannot be written: Not a directory"):
        submit("", replace(slurm.job, run_dir=f"{slurm.folder}/file/run"), [])


def test_a_file_system_without_room_takes_no_job(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_submit, "LEAST_FREE_BYTES", 1 << 60)
    with pytest.raises(ValueError, match=r"run: \d+ MiB are free, too little .* free space"):
        submit("", slurm.job, [])
    assert not list((slurm.folder / "run/jobs").iterdir())


def test_a_job_file_of_other_code_is_refused(slurm: Slurm) -> None:
    path = slurm.job.write(slurm.job_folder)
    path.write_text(json.dumps({**json.loads(path.read_text()), "colour": "red"}))
    with pytest.raises(ValueError, match=r"another version of the code .*colour.* submit again"):
        read_job(path)


def nvidia_smi(slurm: Slurm, body: str) -> None:
    slurm.program("nvidia-smi", f"#!/bin/bash\n{body}\n")


def problems(slurm: Slurm, **changes: Any) -> str:
    sys_class = slurm.folder / "sys"
    return str(
        check(replace(slurm.job, **changes), slurm.job_folder, "node-1", sys_class)["problems"]
    )


def test_a_good_node(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "2")
    nvidia_smi(slurm, "echo 580.95; echo 580.95")
    answer = check(slurm.job, slurm.job_folder, "node-1", slurm.folder / "sys")
    assert answer["problems"] == []
    versions = answer["versions"]
    assert isinstance(versions, dict)
    assert versions["driver"] == "580.95" and versions["torch"].startswith("2.")
    assert not list(slurm.job_folder.glob(".probe-*"))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("echo 580.95", "Slurm gives the job 2 GPUs there, nvidia-smi shows 1"),
        ("echo 'NVML: Driver/library version mismatch'; exit 18", "nvidia-smi fails with 18: NVML"),
    ],
)
def test_gpus_that_are_missing(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, body: str, problem: str
) -> None:
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "2")
    nvidia_smi(slurm, body)
    assert problem in problems(slurm)


def test_other_faults_of_a_node(slurm: Slurm) -> None:
    assert "no EFA device" in problems(slurm, gpus_per_node=0, efa=True)
    assert "/nowhere/python does not run" in problems(
        slurm, gpus_per_node=0, python="/nowhere/python"
    )
    slurm.program("old-python", "#!/bin/bash\necho 'broken' >&2; exit 1\n")
    assert "does not run: broken" in problems(
        slurm, gpus_per_node=0, python=f"{slurm.folder}/bin/old-python"
    )
    slurm.job_folder.rmdir()
    assert "cannot be written to: No such file" in problems(slurm, gpus_per_node=0)


@pytest.mark.parametrize("module", ["slurm_supervisor", "slurm_submit", "node_check"])
def test_the_nodes_own_python_is_enough(module: str) -> None:
    """Nothing but the standard library, and no syntax that Ubuntu 22.04's Python 3.10 lacks."""
    ask = f"""
import ast, sys
import seqlm.launch.{module}
for name, found in list(sys.modules.items()):
    if name.startswith("seqlm") and found.__file__:
        ast.parse(open(found.__file__).read(), feature_version=(3, 10))
        print(name)
"""
    # -S: no installed package is found.
    done = subprocess.run(
        [sys.executable, "-S", "-s", "-c", ask],
        cwd=REPOSITORY / "workloads",
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert f"seqlm.launch.{module}\n" in done.stdout


NODES = ("a", "b", "c")


def answer(node: str, *found: str, **versions: str) -> dict[str, Any]:
    return {"node": node, "problems": list(found), "versions": {"torch": "2.13", **versions}}


@pytest.mark.parametrize(
    ("answers", "bad", "silent", "fatal"),
    [
        ([answer("a"), answer("b"), answer("c")], {}, (), ""),
        ([answer("a"), answer("b", "x", "y"), answer("c")], {"b": "x; y"}, (), ""),
        ([answer("a"), answer("c")], {}, ("b",), ""),
        ([answer(name, "full") for name in NODES], {}, (), "a: full; b: full; c: full"),
        (
            [answer("a"), answer("b", torch="2.10"), answer("c")],
            {"b": "torch 2.10, others have 2.13"},
            (),
            "",
        ),
        (
            [answer("a"), answer("b", torch="2.10")],
            {},
            ("c",),
            "torch is not the same on all nodes: a 2.13, b 2.10",
        ),
        # What is on some nodes alone differs, too.
        (
            [answer("a", driver="1"), answer("b"), answer("c", driver="1")],
            {"b": "driver None, others have 1"},
            (),
            "",
        ),
    ],
    ids=["all well", "one bad", "one silent", "all bad", "one differs", "a tie", "one lacks"],
)
def test_the_node_at_fault(
    answers: list[dict[str, Any]], bad: dict[str, str], silent: tuple[str, ...], fatal: str
) -> None:
    verdict = judge_nodes(NODES, answers)
    assert (verdict.bad, verdict.silent, verdict.fatal) == (bad, silent, fatal)
    assert verdict.is_well == (not bad and not silent and not fatal)


def test_a_job_of_one_node_may_have_a_bad_one() -> None:
    """Another one may be better, so it is no fault of all."""
    assert judge_nodes(["a"], [answer("a", "x")]).bad == {"a": "x"}
