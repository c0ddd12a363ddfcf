"""make image TARGET=slurm: build and push if need be, then a job on a worker, by a real session's command."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from botocore.session import get_session

from tests.docker.import_worker import DIGEST, NAME, REFERENCE, SHA, Worker
from tests.tools import answering_aws
from tests.tools.cluster_files import shipped, with_group
from tests.tools.images import registries
from tests.tools.images.container_engines import Engines
from tests.tools.images.image_sources import git, make_repository
from tests.tools.images.registries import Registry, WholeFindings
from tests.tools.nodes.node_sessions import NodeSessions
from tools.command_line import run_command
from tools.images import build, image_registry, import_image
from tools.images.import_image import ImportJob, Place, find_place, run_import
from tools.nodes.head_node import HeadNode

ROOT = Path(__file__).parents[3]
START = ("aws", "ssm", "start-session", "--target", "x", "--region", "us-west-2")
SRUN = """#!/bin/bash
echo "$*" >>{folder}/srun-calls
[[ ! -e {folder}/srun-refuses ]] || {{ echo "srun: error: Invalid account" >&2; exit 1; }}
until [[ ! -e {folder}/hold ]]; do sleep 0.05; done
while [[ $1 != bash ]]; do shift; done
export {variables}
exec "$@"
"""
SINFO = "#!/bin/bash\ncat {folder}/states\n"
OPTIONS = [
    *(
        "--job-name=import-image",
        "--dependency=singleton",
        "--partition=gpu",
        "--nodes=1",
        "--ntasks=1",
    ),
    *("--cpus-per-task=4", "--time=60"),
]


class Head:
    """A head node behind a session, with Slurm's programs and one worker."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sessions = NodeSessions(folder / "aws")
        self.worker = Worker(folder / "worker")
        self.folder = folder
        variables = " ".join(f"{name}='{value}'" for name, value in self.worker.environment.items())
        self._program("srun", SRUN.format(folder=folder, variables=variables))
        self._program("sinfo", SINFO.format(folder=folder))
        self._program("squeue", "#!/bin/bash\n")
        self.set("states", "idle\nalloc\n")
        monkeypatch.setenv("PATH", self.sessions.path)
        self.said: list[str] = []

    def _program(self, name: str, text: str) -> None:
        path = self.sessions.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def set(self, what: str, text: str = "") -> None:
        (self.folder / what).write_text(text)

    def run(self, *, start: tuple[str, ...] = START) -> None:
        job = ImportJob(Place("gpu", 4), REFERENCE, str(self.worker.file))
        run_import(HeadNode("controller-1", start), job, self.said.append)

    @property
    def srun_calls(self) -> list[str]:
        log = self.folder / "srun-calls"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Head:
    return Head(tmp_path, monkeypatch)


def test_worker_makes_the_file(head: Head) -> None:
    head.run()
    assert head.worker.files == [NAME]
    (call,) = head.srun_calls
    assert call.split()[: len(OPTIONS)] == OPTIONS
    assert not re.search(r"gpus|gres|exclusive", call)
    assert f"imports esm2-slurm/training:{SHA}" in head.said[0]
    assert head.said[-1].endswith(f" in {head.worker.file}")
    # In a session's command, of which AWS takes so many characters.
    sent = next(call for call in head.sessions.calls if "--parameters" in call)
    (command,) = json.loads(sent[sent.index("--parameters") + 1])["command"]
    value = get_session().get_service_model("ssm").shape_for("SessionManagerParameterValue")
    assert len(command) < value.metadata["max"] / 2


def test_a_file_that_is_there_takes_no_node(head: Head) -> None:
    head.run()
    head.set("states", "drain\n")
    head.run()
    assert len(head.srun_calls) == 1
    assert head.said[-1] == f"{head.worker.file} is there already"


def test_on_the_head_node_itself_without_a_session(head: Head) -> None:
    head.run(start=())
    assert head.worker.files == [NAME]
    assert not (head.sessions.folder / "calls").exists()


@pytest.mark.parametrize("states", ["", "drain\n", "down*\nidle*\nidle$\n"])
def test_no_worker_is_waited_for_that_is_not_up(head: Head, states: str) -> None:
    head.set("states", states)
    with pytest.raises(ValueError, match=r"controller-1: .* was not made \(status 1\)"):
        head.run()
    assert "no worker of partition gpu is up" in head.said[-1]
    assert not head.srun_calls


def test_what_slurm_refuses_is_said(head: Head) -> None:
    head.set("srun-refuses")
    with pytest.raises(ValueError, match="the lines above say why"):
        head.run()
    assert "srun: error: Invalid account" in head.said


def test_what_the_worker_refuses_is_said(head: Head) -> None:
    head.worker.set("digest", "sha256:" + "f" * 64)
    with pytest.raises(ValueError, match="the lines above say why"):
        head.run()
    assert any(f"not sha256:{DIGEST}" in line for line in head.said)
    assert head.worker.files == []


def test_a_file_that_only_the_worker_sees_is_no_success(head: Head) -> None:
    """The head node has not mounted the worker's file system."""
    head._program("srun", "#!/bin/bash\ntrue\n")
    with pytest.raises(ValueError, match="was not made"):
        head.run()
    assert "does not see it" in head.said[-1]


def test_a_broken_session_does_not_end_the_import(head: Head) -> None:
    """The terminal hangs up in the middle, as that of a session that has broken does."""
    head.set("hold")
    program = f"""
from tests.docker.import_worker import REFERENCE
from tools.nodes.head_node import HeadNode
from tools.images.import_image import ImportJob, Place, run_import
run_import(HeadNode("c", {START!r}), ImportJob(Place("gpu", 4), REFERENCE, {str(head.worker.file)!r}), print)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env=head.sessions.environment(),
        cwd=ROOT,
        start_new_session=True,
    )
    wait_for(lambda: head.srun_calls)
    os.killpg(process.pid, 9)
    process.wait(timeout=60)
    time.sleep(1)  # output for a terminal that is gone
    (head.folder / "hold").unlink()
    wait_for(head.worker.file.exists)


def test_a_session_that_breaks_says_what_to_do(head: Head) -> None:
    head.sessions.set("breaks")
    with pytest.raises(
        ValueError, match="Run the same command again: it waits for an import that still runs"
    ):
        head.run()


def wait_for(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engines:
    return Engines(tmp_path, monkeypatch)


@pytest.fixture
def registry(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setattr(answering_aws, "SecondPages", WholeFindings)
    made = Registry(engines)
    monkeypatch.setattr(image_registry, "open_session", lambda region, profile: made.aws.session)
    return made


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[ImportJob]:
    """Request of the import; another test covers the head node."""
    found: list[ImportJob] = []
    head = HeadNode("controller-1", START)
    monkeypatch.setattr(import_image, "find_head_node", lambda cluster, profile: head)
    monkeypatch.setattr(import_image, "run_import", lambda head, job, say: found.append(job))
    return found


@pytest.fixture
def sha(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Image of the checked-out commit."""
    repository = make_repository(tmp_path)
    monkeypatch.setattr(build, "REPOSITORY", repository)
    return git(repository, "rev-parse", "HEAD")


def make_image(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(
        sys, "argv", ["import_image", "--cluster", "clusters/slurm.yaml", *arguments]
    )
    with pytest.raises(SystemExit) as stopped:
        run_command(import_image.main)
    return stopped.value.code


def file_of(digest: str, folder: str = "/fsx/images") -> str:
    return f"{folder}/{registries.NAME.replace('/', '+')}+{digest.removeprefix('sha256:')}.sqsh"


def test_image_is_built_pushed_and_imported(
    engines: Engines,
    registry: Registry,
    jobs: list[ImportJob],
    sha: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    engines.install("buildah")
    engines.have_no_image()
    assert make_image(monkeypatch) == 0
    assert engines.verbs() == ["inspect", "build", "inspect", "login", "tag", "push", "logout"]
    reference = f"{registries.REGISTRY}/{registries.NAME}:{sha}@{registries.DIGEST}"
    file = file_of(registries.DIGEST)
    assert jobs == [ImportJob(Place("gpu", 4), reference, file)]
    printed = capfd.readouterr()
    assert printed.out == f"{file}\n"
    assert f"next: make train-ddp TARGET=slurm IMAGE={file}" in printed.err
    assert "image scan: CRITICAL 1, HIGH 2" in printed.err


def test_image_that_was_pushed_is_not_built(
    engines: Engines,
    registry: Registry,
    jobs: list[ImportJob],
    sha: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Also where there is no engine."""
    registry.pushed.append(sha)
    assert make_image(monkeypatch, "--folder", "/fsx/ada/images") == 0
    assert not engines.calls
    assert [job.file for job in jobs] == [file_of(registries.DIGEST, "/fsx/ada/images")]
    assert "is there already: not built again" in capfd.readouterr().err


def test_without_an_image_and_an_engine_it_says_what_to_do(
    registry: Registry,
    jobs: list[ImportJob],
    sha: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert make_image(monkeypatch) == 2
    message = capsys.readouterr().err
    assert f":{sha} is not in the registry yet, and cannot be built here: install docker" in message
    assert "`make image push` on another machine" in message
    assert not jobs


def test_a_reference_needs_neither_registry_nor_commit(
    jobs: list[ImportJob], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(import_image, "read_revision", lambda repository: pytest.fail("asked git"))
    assert make_image(monkeypatch, "--reference", REFERENCE) == 0
    assert jobs == [ImportJob(Place("gpu", 4), REFERENCE, f"/fsx/images/{NAME}")]
    assert capsys.readouterr().out == f"/fsx/images/{NAME}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--folder", "/home/ada"], "--folder: got /home/ada; nodes share /fsx"),
        (["--folder", "/fsx/../etc"], "--folder: got /fsx/../etc; nodes share /fsx"),
        (["--folder", "/fsx/my images"], "allowed are letters, digits"),
        (["--partition", "cpu"], "--partition: got cpu; the cluster file has gpu"),
        (
            ["--reference", f"registry/name:{SHA}"],
            "it must be <registry>/<repository>:<tag>@sha256:",
        ),
        (
            ["--reference", f"registry/name@sha256:{DIGEST}"],
            "it must be <registry>/<repository>:<tag>@",
        ),
    ],
)
def test_reports_mistakes_before_any_request(
    arguments: list[str],
    message: str,
    jobs: list[ImportJob],
    sha: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert make_image(monkeypatch, *arguments) == 2
    assert message in capsys.readouterr().err
    assert not jobs


def test_uncommitted_is_never_imported(
    tmp_path: Path, jobs: list[ImportJob], sha: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "repository/workloads/new.py").write_text("")
    assert make_image(monkeypatch) == 2
    assert not jobs


def test_ctrl_c_says_that_the_import_continues(
    jobs: list[ImportJob], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(import_image, "run_import", interrupt)
    assert make_image(monkeypatch, "--reference", REFERENCE) == 130
    printed = capsys.readouterr()
    assert "scancel --name=import-image" in printed.err and not printed.out


def test_small_workers_give_what_they_have() -> None:
    cluster = shipped("slurm")
    (workers,) = (group.name for group in cluster.instance_groups if group.role == "worker")
    assert find_place(with_group(cluster, workers, instance_type="ml.t3.large"), None) == ("gpu", 2)
    assert find_place(cluster, "gpu") == ("gpu", 4)


@pytest.mark.parametrize(
    ("target", "command"),
    [
        (
            "slurm",
            r"^\S+ -m tools\.images\.import_image --cluster clusters/slurm\.yaml +--folder /fsx/x$",
        ),
        ("local", r"^\S+ -m tools\.images\.build +--folder /fsx/x$"),
        (
            "slurm FRAMEWORK=bionemo",
            r"import_image --cluster \S+ --framework bionemo --folder /fsx/x$",
        ),
    ],
)
def test_make_picks_the_tool(target: str, command: str) -> None:
    said = make("--dry-run", "image", *f"TARGET={target}".split(), "ARGS=--folder /fsx/x")
    assert re.search(command, said.stdout, flags=re.MULTILINE), said.stdout + said.stderr


@pytest.mark.parametrize("target", ["report", "bench"])
def test_make_refuses_a_target_that_is_of_this_machine(target: str) -> None:
    done = make("--dry-run", target, "TARGET=slurm")
    assert done.returncode and f"TARGET=slurm: {target} runs only on this machine" in done.stderr


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
