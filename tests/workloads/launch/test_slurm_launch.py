"""The job's supervisor against stand-ins of Slurm's programs: what it does after each kind of ending."""

from __future__ import annotations

import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seqlm.launch.slurm_attempts import State, read_state
from seqlm.training.command_line import OTHER_ENDED
from tests.workloads.launch.slurm_stand_ins import BATCH_FILE, Slurm, answers


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    return Slurm(tmp_path)


def crash(node: str, status: int = 1, **record: Any) -> dict[str, Any]:
    return {"status": status, "endings": {node: {"status": status, **record}}}


def test_a_run_that_ends_well(slurm: Slurm) -> None:
    status, output = slurm.run({"status": 0})
    assert status == 0, output
    assert f"done: {slurm.job.run_dir}" in output
    (words,) = slurm.train_steps
    assert {"--nodes=2", "--ntasks-per-node=1", "--kill-on-bad-exit=1"} <= set(words)
    assert words[-3:] == ["0.1", "train", "node-1,node-2"] and not slurm.said_to("scontrol")
    # Port at which the metrics of job 7 are scraped.
    assert {"ESM2_JOB_ID=7", "ESM2_METRICS_PORT=10007"} <= set(words)


def test_a_node_that_fails_its_check_is_named_and_excluded(slurm: Slurm) -> None:
    slurm.answer(answers(node_2=["Slurm gives the job 8 GPUs there, nvidia-smi shows 7"]))
    status, output = slurm.run()
    assert status == 0
    assert (
        "node node-2 is not fit and is left out from now on: Slurm gives the job 8 GPUs" in output
    )
    # Changed while the requeued job cannot have started again.
    assert slurm.said_to("scontrol") == [
        ["requeue", "7"],
        ["update", "JobId=7", "ExcNodeList=node-2"],
    ]
    assert not slurm.train_steps


def test_a_node_that_was_replaced_is_excluded_no_more(slurm: Slurm) -> None:
    """Slurm has forgotten its name, and would take none of the list."""
    State(excluded=("node-0",)).write(slurm.job_folder)
    slurm.answer(answers(node_2=["/fsx is not mounted"]))
    assert slurm.run()[0] == 0
    assert slurm.said_to("scontrol")[-1] == ["update", "JobId=7", "ExcNodeList=node-2"]


def test_where_no_other_node_is_left_the_job_waits(slurm: Slurm) -> None:
    """In the queue it would be stuck if the node comes back under its old name."""
    slurm.job = replace(slurm.job, min_nodes=2)
    State(excluded=("node-9",)).write(slurm.job_folder)
    slurm.answer(answers(node_2=["/fsx is not mounted"]))
    status, output = slurm.run()
    assert status == 0
    assert (
        "without node-2, node-9 too few nodes are left in partition gpu: it starts again in 30 min"
        in output
    )
    assert slurm.said_to("scontrol")[-1] == [
        "update",
        "JobId=7",
        "ExcNodeList=",
        "StartTime=now+30minutes",
    ]
    slurm.answer(answers())
    assert slurm.run({"status": 0})[0] == 0
    assert read_state(slurm.job_folder).excluded == ("node-9",)


def test_what_is_wrong_everywhere_ends_the_job(slurm: Slurm) -> None:
    slurm.answer(answers(node_1=["/fsx is full"], node_2=["/fsx is full"]))
    status, output = slurm.run()
    assert status == 2 and "cannot be put down to a single node" in output
    assert not slurm.said_to("scontrol")


def test_a_node_without_an_answer_is_not_excluded(slurm: Slurm) -> None:
    """Slurm marks it down itself; its name may be gone before the job starts again."""
    slurm.answer(answers()[:1])
    assert "node node-2 does not answer" in slurm.run()[1]
    assert slurm.said_to("scontrol") == [["requeue", "7"]]


def test_requeues_without_progress_are_bounded(slurm: Slurm) -> None:
    slurm.answer(answers()[:1])
    State(requeues=5).write(slurm.job_folder)
    status, output = slurm.run()
    assert status == 1 and "requeued 5 times without progress since step 0; given up" in output
    assert not slurm.said_to("scontrol")


def test_crashes_are_tried_again_and_bounded(slurm: Slurm) -> None:
    first = crash("node-2", 1, rank=9, message="MemoryError: too large", seconds=1.0)
    status, output = slurm.run(first, crash("node-1", 7), crash("node-1", 7))
    assert status == 7
    assert len(slurm.train_steps) == 3
    assert "crash 1 of 3 since step 0: node-2, process 9: status 1\nMemoryError" in output
    assert (
        output.count("given up; the first of these crashes was node-2, process 9: status 1\nMemory")
        == 1
    )


def test_crashes_count_anew_after_a_checkpoint(slurm: Slurm) -> None:
    progress = {"checkpoint": f"{slurm.job.run_dir}/checkpoints/step-00000010"}
    status, output = slurm.run(
        crash("node-1"), crash("node-1"), crash("node-1") | progress, {"status": 0}
    )
    assert status == 0, output
    assert "crash 2 of 3 since step 0" in output and "crash 1 of 3 since step 10" in output


def test_parts_are_the_progress_of_inference(slurm: Slurm) -> None:
    """A long table takes many time limits, and has no checkpoints."""
    output = slurm.folder / "run/predictions.csv"
    slurm.job = replace(slurm.job, stage="predict", data_manifest="", output=str(output))
    parts = output.with_name("predictions.csv.parts")
    parts.mkdir()
    (parts / "000000-ab.parquet").touch()
    (parts / ".000001-cd.parquet-17").touch()
    State(requeues=5, crashes=2).write(slurm.job_folder)
    process = slurm.start({"status": 0, "wait": True, "endings": {"node-1": {"status": 143}}})
    wait_for(slurm.folder / "started", process)
    process.send_signal(signal.SIGUSR1)
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    assert "ended on SIGUSR1; parts that are written: 1\n" in said
    assert "requeue 1 since part 1: the time limit is near" in said
    (words,) = slurm.train_steps
    assert words[-3:] == ["0.1", "predict", "node-1,node-2"]
    status, said = slurm.run(crash("node-1"), {"status": 0})
    assert status == 0 and "crash 1 of 3 since part 1" in said and f"done: {output}\n" in said


def test_a_crash_beside_a_lost_node_is_not_counted(slurm: Slurm) -> None:
    """The node goes while the step runs."""
    process = slurm.start(crash("node-1") | {"wait": True})
    wait_for(slurm.folder / "started", process)
    slurm.answer(answers()[:1])
    (slurm.folder / "stopped").touch()
    output, _ = process.communicate(timeout=240)
    assert slurm.said_to("scontrol") == [["requeue", "7"]]
    assert "crash" not in output and read_state(slurm.job_folder).crashes == 0


def test_a_killed_torchrun_is_named(slurm: Slurm) -> None:
    """The other node's was ended by Slurm because of it."""
    ended = {"status": 137, "endings": {"node-1": {"status": 143}}}
    broken = {
        "status": 137,
        "endings": {"node-1": {"status": 1, "message": "Connection closed by peer"}},
    }
    status, output = slurm.run(ended, broken, {"status": 0})
    assert status == 0, output
    for told in (
        "crash 1 of 3 since step 0: the step ended with 137",
        "crash 2 of 3 since step 0: node-1, process 0: status 1\nConnection closed by peer",
    ):
        assert f"{told}\nno word from torchrun of node-2\n" in output


def hang(node: str, **found: Any) -> dict[str, Any]:
    """One process of two stands still, the other one waits for it."""
    usual = {
        "state": "S",
        "silent_seconds": 301.0,
        "doing": "training",
        "place": "somewhere",
        "waits": True,
    }
    processes = [
        usual | {"node": name, "rank": rank} for rank, name in enumerate(("node-1", "node-2"))
    ]
    endings = {p["node"]: {"hung": [p | found if p["node"] == node else p]} for p in processes}
    return {"status": 1, "endings": endings}


def test_reports_a_hang_and_requeues_the_job(slurm: Slurm) -> None:
    status, output = slurm.run(hang("node-2", state="T", waits=False, place="load (loader.py:3)"))
    assert status == 0 and slurm.said_to("scontrol") == [["requeue", "7"]], output
    assert (
        "to blame is node-2, process 1, it was stopped by a signal; state T, training, load (loader.py:3)"
        in output
    )
    assert (
        "requeue 1 since step 0: it hung" in output
        and f"stacks: {slurm.job_folder}/stacks/0.1" in output
    )
    state = read_state(slurm.job_folder)
    assert (state.suspects, state.excluded, state.crashes) == (("node-2",), (), 0)


def test_a_node_that_hangs_again_is_excluded(slurm: Slurm) -> None:
    slurm.run(hang("node-2", waits=False))
    status, output = slurm.run(hang("node-2", waits=False))
    assert status == 0 and "node node-2 is left out from now on: it was to blame before" in output
    assert ["update", "JobId=7", "ExcNodeList=node-2"] in slurm.said_to("scontrol")


def test_a_hang_after_a_checkpoint_is_a_first_one(slurm: Slurm) -> None:
    slurm.run(hang("node-2", waits=False))
    progress = {"checkpoint": f"{slurm.job.run_dir}/checkpoints/step-00000010"}
    slurm.run(hang("node-2", waits=False) | progress)
    assert not read_state(slurm.job_folder).excluded and read_state(slurm.job_folder).suspects == (
        "node-2",
    )


def test_a_hang_of_all_is_nobodys(slurm: Slurm) -> None:
    status, output = slurm.run(hang("node-2"))
    assert status == 0 and "no process stands out: network or GPU may be the cause" in output
    assert not read_state(slurm.job_folder).suspects


def test_a_killed_process_counts_before_connections_that_break(slurm: Slurm) -> None:
    endings = {
        "node-1": {
            "status": 1,
            "seconds": 1.0,
            "message": "RuntimeError: Connection reset by peer",
        },
        "node-2": {"status": 137, "seconds": 2.0, "rank": 9},
    }
    status, output = slurm.run({"status": 1, "endings": endings}, {"status": 0})
    assert status == 0 and "crash 1 of 3 since step 0: node-2, process 9: status 137" in output


def test_an_error_counts_before_connections_that_break(slurm: Slurm) -> None:
    endings = {
        "node-1": {"status": 1, "seconds": 1.0, "message": f"error: {OTHER_ENDED}"},
        "node-2": {"status": 1, "seconds": 2.0, "message": "KeyError: 'weight'"},
    }
    status, output = slurm.run({"status": 1, "endings": endings}, {"status": 0})
    assert status == 0
    assert "crash 1 of 3 since step 0: node-2, process 0: status 1\nKeyError" in output


def test_a_mistake_of_the_users_is_not_tried_again(slurm: Slurm) -> None:
    """Other nodes' tasks were killed because of it, and say so with an earlier clock."""
    endings = {
        "node-1": {"status": 137, "seconds": 1.0},
        "node-2": {
            "status": 2,
            "seconds": 2.0,
            "message": "error: train.seed: checkpoint 0, now 5",
        },
    }
    status, output = slurm.run({"status": 137, "endings": endings})
    assert status == 2 and len(slurm.train_steps) == 1
    assert "checkpoint 0, now 5" in output


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 240
    while not path.exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("number", "last_call", "status"),
    [(signal.SIGUSR1, ["scontrol", "requeue", "7"], 0), (signal.SIGUSR2, ["scancel", "7"], 143)],
    ids=["time limit", "make cancel"],
)
def test_asked_to_stop_it_saves_first(
    slurm: Slurm, number: signal.Signals, last_call: list[str], status: int
) -> None:
    told = {"status": 143, "message": "stopped by SIGTERM: step 7 is saved"}
    saved = {"status": 0, "wait": True, "endings": {"node-1": told, "node-2": {"status": 143}}}
    process = slurm.start(saved)
    wait_for(slurm.folder / "started", process)
    process.send_signal(number)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == status, output
    assert "saved on" in output
    assert ["scancel", "--quiet", "--signal=TERM", "7"] in slurm.calls and slurm.calls[
        -1
    ] == last_call
    assert read_state(slurm.job_folder).crashes == 0


def test_cancelled_and_at_the_time_limit_at_once_it_does_not_start_again(slurm: Slurm) -> None:
    process = slurm.start({"status": 0, "wait": True, "endings": {"node-1": {"status": 143}}})
    wait_for(slurm.folder / "started", process)
    process.send_signal(signal.SIGUSR2)
    process.send_signal(signal.SIGUSR1)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 143, output
    assert not slurm.said_to("scontrol") and slurm.calls[-1] == ["scancel", "7"]


def test_cancelled_while_it_was_requeued_it_ends_at_once(slurm: Slurm) -> None:
    (slurm.job_folder / "cancelled").touch()
    status, output = slurm.run()
    assert status == 143 and output.endswith("cancelled\n"), output
    assert not slurm.said_to("srun") and slurm.calls[-1] == ["scancel", "7"]


def test_processes_that_had_to_be_killed_have_not_saved(slurm: Slurm) -> None:
    """torchrun's status is the same."""
    process = slurm.start({"status": 0, "wait": True, "endings": {"node-1": {"status": 143}}})
    wait_for(slurm.folder / "started", process)
    process.send_signal(signal.SIGUSR1)
    output, _ = process.communicate(timeout=240)
    assert "ended on SIGUSR1; the newest checkpoint is of step 0" in output and "done" not in output
    assert slurm.said_to("scontrol") == [["requeue", "7"]]


def test_data_are_prepared_first_on_one_node_where_they_are_missing(slurm: Slurm) -> None:
    Path(slurm.job.data_manifest).unlink()
    assert slurm.run({"status": 0}, {"status": 0})[0] == 0
    data = next(words for words in slurm.said_to("srun") if {"seqlm", "data"} <= {*words})
    assert "--nodes=1" in data and "name=run" in data
    assert len(slurm.train_steps) == 1


@pytest.mark.parametrize("plugins", ["", "--auto-resume=[0|1]"])
def test_auto_resume_where_srun_has_it(slurm: Slurm, plugins: str) -> None:
    (slurm.folder / "help").write_text(plugins)
    assert slurm.run({"status": 0})[0] == 0
    assert ("--auto-resume=1" in slurm.train_steps[0]) == bool(plugins)


def test_a_container_where_an_image_is_given(slurm: Slurm) -> None:
    slurm.job = replace(slurm.job, image="/fsx/esm2.sqsh", python="python3", efa=True)
    status, output = slurm.run()
    assert status == 2 and "pyxis is missing" in output
    (slurm.folder / "help").write_text("--container-image=[USER@]...\n")
    assert slurm.run({"status": 0})[0] == 0
    words = slurm.train_steps[0]
    assert {"--container-image=/fsx/esm2.sqsh", "--container-mounts=/fsx:/fsx"} <= set(words)
    # By env, behind the container's own variables.
    assert f"HF_HOME={slurm.job.work_folder}/huggingface" in words, (
        "a container's own home is gone with it"
    )
    assert words.index("NCCL_NET_PLUGIN=ofi") > words.index("env") < words.index("python3")


def test_no_setting_of_a_network_without_efa(slurm: Slurm) -> None:
    assert slurm.run({"status": 0})[0] == 0
    assert not [word for word in slurm.train_steps[0] if word.startswith(("NCCL_", "FI_", "LD_"))]


def test_reports_missing_code(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", str(BATCH_FILE), "/nowhere", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 1 and "is the shared file system mounted?" in done.stderr


def test_stopped_while_it_prepares_data_it_is_not_done(slurm: Slurm) -> None:
    Path(slurm.job.data_manifest).unlink()
    process = slurm.start({"status": 0, "wait": True})
    wait_for(slurm.folder / "started", process)
    process.send_signal(signal.SIGUSR1)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0 and "done" not in output and not slurm.train_steps
    assert slurm.said_to("scontrol") == [["requeue", "7"]]


def test_reports_a_requeue_that_slurm_refuses(slurm: Slurm) -> None:
    """Someone has cancelled the job, which looks like lost nodes."""
    program = slurm.folder / "bin" / "scontrol"
    program.write_text(program.read_text() + 'sys.exit(words[0] == "requeue")\n')
    slurm.answer([])
    status, output = slurm.run()
    assert status == 1 and "Slurm does not requeue it" in output
