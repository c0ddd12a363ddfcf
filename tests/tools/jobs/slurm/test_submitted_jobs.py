"""make status, tail, cancel and fetch on a machine of the cluster, with stand-ins of Slurm's programs."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from seqlm.launch.job_file import JOB_FILE, read_job
from seqlm.launch.slurm_attempts import progress
from seqlm.launch.slurm_step import run_environment, stage_arguments
from tests.tools.json_documents import RunJson
from tools.jobs import __main__ as command
from tools.jobs.slurm import jobs

Run = Callable[..., tuple[int, str]]
RECORDED = Path(__file__).parents[1] / "recorded/slurm_job.json"
"""Record of a job that commit a69db5705423 submitted."""
SQUEUE = """#!/bin/bash
[[ "$*" == *--user=* ]] && { cat "$(dirname "$0")/queue"; exit; }
cat "$(dirname "$0")/state" 2>/dev/null && exit
cat "$(dirname "$0")/failure" >&2
exit 1
"""
GONE, DOWN = (
    f"slurm_load_jobs error: {why}" for why in ("Invalid job id specified", "Connection refused")
)
SCANCEL = """#!/bin/bash
echo "scancel $*"
"""


class Place:
    """A user's folder with jobs, and the programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "esm2"
        self.bin = folder / "bin"
        self.bin.mkdir()
        (self.folder / "jobs").mkdir(parents=True)
        for name, text in (("sbatch", "#!/bin/sh\n"), ("squeue", SQUEUE), ("scancel", SCANCEL)):
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)
        self.fails_with(GONE)
        self.queue(0)

    def queue(self, num_jobs: int) -> None:
        """Let the user have jobs in Slurm's queue."""
        jobs = [f"{number} name PENDING" for number in range(num_jobs)]
        (self.bin / "queue").write_text("\n".join(["JOBID NAME STATE", *jobs, ""]))

    def add(self, job: str, run: str, *, seconds: int) -> Path:
        """A job with a log; returns the run's folder. ``seconds`` order the jobs."""
        place = self.folder / "runs" / run / "jobs" / f"of-{job}"
        place.mkdir(parents=True)
        (place / "job.log").write_text(f"[now] log of {job}\n")
        link = self.folder / "jobs" / job
        link.symlink_to(place)
        os.utime(link, (seconds, seconds), follow_symlinks=False)
        return place.parents[1]

    def state(self, state: str) -> None:
        (self.bin / "state").write_text(f"{state}\n" if state else "")

    def hurries(self) -> None:
        """No wait of the program's takes long."""
        (self.bin / "sleep").write_text("#!/bin/sh\nexec /bin/sleep 0.1\n")
        (self.bin / "sleep").chmod(0o755)

    def fails_with(self, said: str) -> None:
        """Answer of squeue for a job without a state."""
        (self.bin / "failure").write_text(f"{said}\n")


QUEUE = """\
     JOBID                           NAME        STATE         TIME  NODES NODELIST(REASON)
        12                      train-new      RUNNING         1:02      2 ip-[1-2]
        13                        embed-x      PENDING         0:00      1 (Resources, node is down)
and 1 more jobs: squeue --user=$USER
"""
"""Answer of Slurm 23.11 to squeue with the format of ``jobs_on_cluster.sh``, and the program's own line."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place(tmp_path)
    monkeypatch.setenv("PATH", f"{place.bin}:{os.environ['PATH']}")
    monkeypatch.setenv("USER", "ada")
    return place


@pytest.fixture
def run(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    def typed(*arguments: str) -> tuple[int, str]:
        to = str(tmp_path / "fetched")
        monkeypatch.setattr(
            sys, "argv", ["jobs", *arguments, "--folder", str(place.folder), "--to", to]
        )
        status = command.main()
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return typed


def test_status_shows_the_queue_and_how_far_runs_are(place: Place, run: Run) -> None:
    first = place.add("7", "old", seconds=100)
    place.add("12", "new", seconds=200)
    (first / "metrics.jsonl").write_text(
        '{"kind": "train", "step": 5}\n{"kind": "event", "step": 5}\n'
    )
    place.state("RUNNING")
    (place.folder / "jobs" / "13").symlink_to(place.folder / "removed")
    status, said = run("status")
    assert status == 0 and said.startswith("JOBID NAME STATE\n")
    assert said.index("job 12  run new  RUNNING") < said.index("job 7  run old")
    assert (
        '  metrics  {"kind": "train", "step": 5}' in said and "  log      [now] log of 12" in said
    )


def test_status_as_json(place: Place, run_json: RunJson) -> None:
    first = place.add("7", "old", seconds=100)
    place.add("12", "new", seconds=200)
    (first / "metrics.jsonl").write_text('{"kind": "train", "step": 5}\n')
    (place.bin / "queue").write_text(QUEUE)
    result = run_json(command.main, "status", "--folder", str(place.folder))["result"]
    running, waiting = result["jobs"]
    assert (running["job"], running["name"], running["where"]) == ("12", "train-new", "ip-[1-2]")
    assert (waiting["state"], waiting["where"]) == ("PENDING", "(Resources, node is down)")
    newest, oldest = result["runs"]
    assert (newest["job"], newest["run"], newest["metrics"]) == ("12", "new", None)
    assert json.loads(oldest["metrics"])["step"] == 5 and oldest["log"] == "[now] log of 7"


def test_a_failure_of_slurm_as_json(place: Place, run_json: RunJson) -> None:
    (place.bin / "squeue").write_text(f"#!/bin/sh\necho 'squeue: error: {DOWN}' >&2\nexit 1\n")
    document = run_json(command.main, "status", "--folder", str(place.folder))
    assert document["exit_status"] == 1
    assert document["error"] == f"squeue: error: {DOWN}"
    assert document["result"]["jobs"] is None


def test_warnings_of_slurm_are_no_jobs(place: Place, run_json: RunJson) -> None:
    warning = "squeue: warning: a plugin is missing here now"
    (place.bin / "queue").write_text(f"{warning}\n{QUEUE}")
    result = run_json(command.main, "status", "--folder", str(place.folder))["result"]
    assert [job["job"] for job in result["jobs"]] == ["12", "13"]


def test_status_of_many_jobs_fits_on_two_screens(place: Place, run: Run) -> None:
    place.queue(60)
    assert len(run("status")[1].splitlines()) == 61
    place.queue(5000)
    lines = run("status")[1].splitlines()
    assert len(lines) == 62 and lines[-1] == "and 4940 more jobs: squeue --user=$USER"


def test_tail_shows_the_last_job_and_ends_with_it(place: Place, run: Run) -> None:
    place.add("7", "old", seconds=100)
    place.add("12", "new", seconds=200)
    status, said = run("tail")
    assert status == 0 and "log of 12" in said and "log of 7" not in said


def test_tail_waits_for_a_job_to_begin(place: Place, run: Run) -> None:
    log = place.add("12", "new", seconds=200) / "jobs/of-12/job.log"
    log.unlink()
    place.state("PENDING")
    place.hurries()

    def begin_and_end() -> None:
        log.write_text("begun\n")
        time.sleep(1)
        place.state("")

    timer = threading.Timer(0.5, begin_and_end)
    timer.start()
    status, said = run("tail")
    timer.join()
    assert (status, said.splitlines()[1:]) == (0, ["the job has not begun: PENDING", "begun"])


def test_tail_ends_with_a_job_that_never_began(place: Place, run: Run) -> None:
    (place.add("12", "new", seconds=200) / "jobs/of-12/job.log").unlink()
    place.hurries()
    status, said = run("tail")
    assert status == 0 and said.endswith("the job has ended without having begun\n")


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("RUNNING", "scancel --batch --signal=USR2 12\njob 12 saves"),
        ("PENDING", "scancel 12\njob 12 was not running and is cancelled"),
        ("", "job 12 is not in the queue any more"),
    ],
)
def test_cancel_lets_a_running_job_save(place: Place, run: Run, state: str, said: str) -> None:
    place.add("12", "new", seconds=200)
    place.state(state)
    status, output = run("cancel", "12")
    assert status == 0 and output.startswith(said)
    # The next start, if there is one, knows.
    assert [path.name for path in place.folder.rglob("cancelled")] == ["cancelled"] * (
        state == "RUNNING"
    )


def test_cancel_as_json(place: Place, run_json: RunJson) -> None:
    place.add("12", "new", seconds=200)
    place.state("PENDING")
    document = run_json(command.main, "cancel", "12", "--folder", str(place.folder))
    assert "job 12 was not running and is cancelled" in document["result"]["lines"]
    unknown = run_json(command.main, "cancel", "99", "--folder", str(place.folder))
    assert unknown["exit_status"] == 2
    assert unknown["error"].startswith("no job 99 was submitted from ")
    unnamed = run_json(command.main, "cancel", "--folder", str(place.folder))
    assert unnamed["exit_status"] == 2 and "name the job" in unnamed["error"]


def test_a_job_that_slurm_has_forgotten_is_not_in_the_queue(place: Place, run: Run) -> None:
    place.add("12", "new", seconds=200)
    assert run("cancel", "12") == (0, "job 12 is not in the queue any more\n")


def test_a_slurm_that_does_not_answer_is_no_end_of_a_job(place: Place, run: Run) -> None:
    place.add("12", "new", seconds=200)
    place.fails_with(DOWN)
    status, said = run("cancel", "12")
    assert status == 1 and said == f"error: Slurm does not say how job 12 is: {DOWN}\n"


def test_cancel_wants_to_know_which(place: Place, run: Run) -> None:
    with pytest.raises(ValueError, match="cancel: name the job"):
        run("cancel")


@pytest.mark.parametrize("what", ["tail", "cancel", "fetch"])
def test_refuses_an_unknown_job(place: Place, run: Run, what: str) -> None:
    if what == "fetch":
        with pytest.raises(
            ValueError, match=r"^no job 99 was submitted from .*make status lists them"
        ):
            run(what, "99")
    else:
        status, said = run(what, "99")
        assert status == 2 and "error: no job 99 was submitted" in said


def test_fetch_brings_report_results_model_and_tables(
    place: Place, run: Run, tmp_path: Path
) -> None:
    run_dir = place.add("12", "new", seconds=200)
    contents = {"report.html": "<svg>", "all_results.json": "{}", "metrics.jsonl": "{}\n"}
    contents |= {
        "predictions.csv": "id\n",
        "predictions.csv.json": "{}",
        "a.parquet": "",
        "a.rejects.csv": "",
    }
    for name, text in contents.items():
        (run_dir / name).write_text(text)
    (run_dir / "model").mkdir()
    (run_dir / "model" / "model.safetensors").write_bytes(os.urandom(300_000))
    (run_dir / "adapter").mkdir()
    (run_dir / "adapter" / "adapter_config.json").write_text("{}")
    (run_dir / "checkpoints").mkdir()
    (run_dir / ".predictions.csv-7").touch()
    (run_dir / "b.parquet.parts").mkdir()
    status, said = run("fetch", "12")
    assert status == 0 and str(tmp_path / "fetched/new/report.html") in said
    fetched = tmp_path / "fetched/new"
    assert {name: (fetched / name).read_text() for name in contents} == contents
    weights = "model/model.safetensors"
    assert (fetched / weights).read_bytes() == (run_dir / weights).read_bytes()
    assert {path.name for path in fetched.iterdir()} == {*contents, "model", "adapter"}


def test_files_that_grow_meanwhile_are_fetched(place: Place, run: Run, tmp_path: Path) -> None:
    """tar ends with status 1 then."""
    (place.add("12", "new", seconds=200) / "metrics.jsonl").write_text("{}\n")
    tar = shutil.which("tar")
    (place.bin / "tar").write_text(f'#!/bin/bash\n{tar} "$@"\nexit 1\n')
    (place.bin / "tar").chmod(0o755)
    assert run("fetch", "12")[0] == 0
    assert (tmp_path / "fetched/new/metrics.jsonl").read_text() == "{}\n"


def test_what_is_too_large_for_a_session_is_named(
    place: Place, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(jobs, "LARGEST_MIB", 0)
    run_dir = place.add("12", "new", seconds=200)
    (run_dir / "report.html").write_text("<svg>")
    (run_dir / "model").mkdir()
    (run_dir / "model" / "model.safetensors").write_bytes(os.urandom(3_000_000))
    (run_dir / "embeddings.parquet").write_bytes(os.urandom(1_500_000))
    status, said = run("fetch")
    assert status == 0 and f"not fetched: {run_dir}/model, 3 MiB" in said
    assert f"not fetched: {run_dir}/embeddings.parquet, 2 MiB" in said
    assert [path.name for path in (tmp_path / "fetched/new").iterdir()] == ["report.html"]


def test_fetch_as_json(
    place: Place, run_json: RunJson, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(jobs, "LARGEST_MIB", 0)
    run_dir = place.add("12", "new", seconds=200)
    (run_dir / "report.html").write_text("<svg>")
    (run_dir / "embeddings.parquet").write_bytes(os.urandom(1_500_000))
    options = ("--folder", str(place.folder), "--to", str(tmp_path))
    result = run_json(command.main, "fetch", "12", *options)["result"]
    assert (result["folder"], result["files"]) == (str(tmp_path / "new"), ["report.html"])
    assert result["left"] == [f"{run_dir}/embeddings.parquet, 2 MiB"]


def test_a_run_without_results_says_so(place: Place, run: Run) -> None:
    place.add("12", "new", seconds=200)
    with pytest.raises(ValueError, match="has no report and no results yet"):
        run("fetch")


def test_a_job_that_an_earlier_version_submitted_is_followed(
    place: Place, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = place.add("12", "esm2_8m_sample", seconds=100)
    folder = run_dir / "jobs/of-12"
    (folder / JOB_FILE).write_text(RECORDED.read_text())
    (run_dir / "metrics.jsonl").write_text('{"kind": "train", "step": 5}\n')
    assert "job 12  run esm2_8m_sample" in run("status")[1]
    assert "log of 12" in run("tail")[1]
    assert "job 12 is not in the queue any more" in run("cancel", "12")[1]
    assert run("fetch", "12")[0] == 0
    assert (tmp_path / "fetched/esm2_8m_sample/metrics.jsonl").exists()
    # The supervisor and the processes of a job read the same record.
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    job = read_job(folder / JOB_FILE)
    assert stage_arguments(job, folder)[-1] == "name=esm2_8m_sample"
    assert run_environment(job)["PYTHONPATH"] == "/fsx/ben/esm2/code/0123456789abcdef/workloads"
    assert progress(job) == 0
