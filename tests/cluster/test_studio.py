"""Studio beside a real Slurm: partitions asked for through a queue, jobs of spaces of both kinds.

Spaces are a machine without Slurm, and the controller itself, where a stand-in for Systems Manager runs what
the session's document says.
"""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from config.node_settings import node_settings
from config.reading.loader import load_cluster
from config.slurm_cluster import SlurmCluster
from config.studio import STUDIO_GID, STUDIO_UID
from config.studio_people import PARAMETER, cluster_users, partition_uids, session_document
from tests.cluster.artifact_bucket import AWS_PROGRAM, ArtifactBucket
from tests.cluster.bundle import REPOSITORY
from tests.cluster.cluster import Cluster
from tests.cluster.island import Island
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.machine import Machine
from tests.cluster.patience import wait_until
from tests.cluster.test_users import ended

STUDIO = {
    "partitions": "per_profile",
    "partition_removal": "destroy",
    "profiles": [
        {"name": "ada", "cluster_user": "ada", "login_space": True},
        {"name": "ben", "cluster_user": "ben"},
    ],
}
DOMAIN = "d-0123456789ab"
FILE_SYSTEM = "fs-0123456789abcdef0"
MOUNT = f"/mnt/custom-file-systems/fsx_lustre/{FILE_SYSTEM}"
SCRIPTS = REPOSITORY / "lifecycle" / "studio"
SPACE_NUMBER = 90
SPACE_USER = "sagemaker-user"
"""In a real space the user has another number, which is 200001 outside of its container."""
AT_HOME = {"HOME": "/home/sagemaker-user"}
# The space's image knows nothing of Slurm and munge.
_FORGET = """
rm -rf /opt/slurm /etc/slurm /usr/lib/x86_64-linux-gnu/slurm-wlm /usr/lib/x86_64-linux-gnu/slurm
rm -f /usr/lib/x86_64-linux-gnu/lib{munge,slurm}* /usr/sbin/munged /usr/bin/munge
rm -f /usr/bin/{sacct,salloc,sbatch,scancel,scontrol,sinfo,sprio,squeue,srun,sshare}
echo "127.0.1.1 $(hostname)" >>/etc/hosts
echo 'sagemaker-user ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/space
echo 'sagemaker-user:x:200001:1001::/home/sagemaker-user:/bin/bash' >>/etc/passwd
echo 'sagemaker-user:*:20000:0:99999:7:::' >>/etc/shadow
mkdir /home/sagemaker-user
chown 200001:1001 /home/sagemaker-user
chmod 711 /root
"""
# Systems Manager, as far as a session of a document goes; SageMaker, as far as the controller is to be found.
_AWS = """#!/bin/bash
case "$1 $2" in
    "sagemaker describe-cluster") echo '{"ClusterArn": "arn:aws:sagemaker:us-west-2:1:cluster/abc"}' ;;
    "sagemaker list-cluster-nodes") echo '{"ClusterNodeSummaries": [{"InstanceGroupName": "controller",
        "InstanceId": "i-1", "InstanceStatus": {"Status": "Running"}}]}' ;;
    "ssm start-session")
        [[ "$*" == *"sagemaker-cluster:abc_controller-i-1"* ]] || exit 9
        [[ "$*" == *"--document-name esm2-test-studio-ben"* ]] || exit 9
        python3 /tmp/space/session.py "${@: -1}" ;;
    *) exit 8 ;;
esac
"""
_SESSION = """
import json, re, subprocess, sys
document = json.load(open("/tmp/space/document.json"))
[request] = json.loads(sys.argv[1])["request"]
assert re.search(document["parameters"]["request"]["allowedPattern"], request)
command = document["properties"]["linux"]["commands"].replace("{{ request }}", request)
print("\\nStarting session with SessionId: ada-1\\r")
# The agent's variables, which are systemd's.
path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
subprocess.run(["sh", "-c", command], env={"PATH": path})
print("\\r\\n\\r\\nExiting session with sessionId: ada-1.\\r\\n")
"""


@dataclass(frozen=True)
class Studio:
    """A domain's queues, and what answers them."""

    bucket: ArtifactBucket
    requests: str
    acknowledgements: str
    secret: str

    def ask(self, action: str, profile: str, uids: list[int]) -> dict[str, Any]:
        """Acknowledgement of a request."""
        body = {"action": action, "profile": profile, "domain": DOMAIN, "uids": uids}
        self._sqs(
            *("send-message", "--queue-url", self.requests, "--message-body", json.dumps(body)),
            *("--message-group-id", profile, "--message-deduplication-id", uuid.uuid4().hex),
        )
        found: list[dict[str, Any]] = []

        def answered() -> bool:
            url = ("--queue-url", self.acknowledgements)
            said = self._sqs("receive-message", *url, "--wait-time-seconds", "2")
            for message in json.loads(said or "{}").get("Messages", []):
                found.append(json.loads(message["Body"]))
                self._sqs("delete-message", *url, "--receipt-handle", message["ReceiptHandle"])
            return bool(found)

        wait_until(answered, f"an acknowledgement of {action} {profile}", seconds=240)
        return found[0]

    def _sqs(self, *arguments: str) -> str:
        return self.bucket.aws("sqs", *arguments, "--output", "json")


@pytest.fixture(scope="module")
def studied() -> SlurmCluster:
    """The cluster's file with Studio in it."""
    cluster = load_cluster(Path(__file__).with_name("cluster.yaml"))
    assert isinstance(cluster, SlurmCluster)
    return SlurmCluster.model_validate({**cluster.model_dump(), "studio": STUDIO})


@pytest.fixture(scope="module")
def studio(
    cluster: Cluster,
    lifecycle: Lifecycle,
    bucket: ArtifactBucket,
    studied: SlurmCluster,
    settings: dict[str, Any],
) -> Iterator[Studio]:
    """The scripts have run on the controller with Studio switched on; at the end, switched off again."""

    def made(*arguments: str) -> str:
        return bucket.aws(*arguments, "--output", "text").strip()

    query = ("--query", "QueueUrl")
    fifo = ("--attributes", "FifoQueue=true")
    studio = Studio(
        bucket,
        made("sqs", "create-queue", "--queue-name", "requests.fifo", *fifo, *query),
        made("sqs", "create-queue", "--queue-name", "acknowledgements", *query),
        made(
            "secretsmanager",
            "create-secret",
            "--name",
            "login",
            "--secret-string",
            "{}",
            "--query",
            "ARN",
        ),
    )
    deployment = {
        "requests_url": studio.requests,
        "acknowledgements_url": studio.acknowledgements,
        "login_secret": studio.secret,
    }
    done = Lifecycle(bucket.publish(node_settings(studied), studio=deployment)).run(
        cluster.controller
    )
    assert done.status == 0, done.output
    assert "WARNING: nothing is published" not in done.output
    yield studio
    # Unless the last test has done it.
    if (
        cluster.controller.run(
            ["systemctl", "cat", "studio-partitions.service"], check=False
        ).status
        == 0
    ):
        done = Lifecycle(bucket.publish(settings)).run(cluster.controller)
        assert done.status == 0, done.output


@pytest.fixture(scope="module")
def space(
    island: Island, folder: Path, cluster: Cluster, studio: Studio, studied: SlurmCluster
) -> Iterator[Machine]:
    """A space of ada's that has been started."""
    user = cluster_users(studied)["ada"]
    assert studio.ask("make", "ada", partition_uids(studied)["ada"])["profile"] == "ada"
    machine = Machine(island, SPACE_NUMBER, image=Path("image"), console=folder / "space.log")
    if REPOSITORY.is_relative_to("/tmp"):
        machine.bind(REPOSITORY, str(REPOSITORY))
    machine.bind(AWS_PROGRAM.parents[1], str(AWS_PROGRAM.parents[1]))
    machine.bind(island.inner_folder / "fsx/studio/users/ada", MOUNT)
    machine.boot()
    try:
        machine.wait_until_up()
        machine.run(["bash", "-c", _FORGET])
        machine.write(
            "/opt/ml/metadata/resource-metadata.json", json.dumps({"UserProfileName": "ada"})
        )
        person = {**asdict(user), "document": "none", "login_secret": studio.secret}
        files = write_files(machine, space_settings("ada", person))
        machine.run(["chown", "-R", "sagemaker-user", files])
        machine.run(["python3", f"{files}/set_up_space.py"], user=SPACE_USER, environment=AT_HOME)
        yield machine
    finally:
        machine.kill()


def space_settings(profile: str, person: dict[str, Any]) -> dict[str, Any]:
    return {
        "scheduler": "slurm",
        "cluster_name": "esm2-test",
        "region": "us-west-2",
        "file_system_id": FILE_SYSTEM,
        "lustre_mount_path": "/fsx",
        "partitions": "per_profile",
        "mlflow_tracking_uri": None,
        "controller_group": "controller",
        "profiles": {profile: person},
    }


def write_files(
    machine: Machine, settings: dict[str, Any], files: str = "/tmp/cluster-set-up"
) -> str:
    """Download as a space does at its start."""
    for file in SCRIPTS.iterdir():
        if file.is_file():
            machine.write(f"{files}/{file.name}", file.read_text())
    machine.write(f"{files}/settings.json", json.dumps(settings))
    return files


def in_space(space: Machine, command: str) -> str:
    """Commands run as the space's user, in the partition as SageMaker mounts it."""
    return space.run(
        ["bash", "-c", f"cd {MOUNT} && {command}"], user=SPACE_USER, environment=AT_HOME
    ).output


def test_a_partition_is_studios_and_its_users(cluster: Cluster, studio: Studio) -> None:
    assert studio.ask("make", "ben", [2002]) == {
        "action": "make",
        "profile": "ben",
        "domain": DOMAIN,
    }
    folder = cluster.shared / "studio/users/ben"
    assert (folder.stat().st_uid, folder.stat().st_gid) == (STUDIO_UID, STUDIO_GID)
    worker = cluster.workers[0]
    worker.run(["touch", "/fsx/studio/users/ben/from-the-cluster"], user="ben")
    denied = worker.run(["ls", "/fsx/studio/users/ben"], user="ada", check=False)
    assert "Permission denied" in denied.output
    from_space = [
        "setpriv",
        f"--reuid={STUDIO_UID}",
        f"--regid={STUDIO_GID}",
        "--clear-groups",
        "bash",
        "-c",
    ]
    worker.run(
        [*from_space, "cd /fsx/studio/users/ben && echo more >>from-the-cluster && mkdir runs"]
    )
    worker.run(["touch", "/fsx/studio/users/ben/runs/log"], user="ben")


def test_the_service_can_do_nothing_else(cluster: Cluster, studio: Studio) -> None:
    """The service has only the capabilities that its unit lists."""
    shown = cluster.controller.run(
        ["systemctl", "show", "--property=MainPID", "studio-partitions"]
    ).output
    status = cluster.controller.read(f"/proc/{shown.strip().removeprefix('MainPID=')}/status")
    # CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER.
    assert f"CapBnd:\t{0b1011:016x}" in status


def test_a_partition_goes_with_its_profile(cluster: Cluster, studio: Studio) -> None:
    studio.ask("make", "guest", [])
    kept = cluster.shared / "studio/users/guest"
    assert kept.is_dir()
    assert studio.ask("remove", "guest", [])["action"] == "remove"
    assert not kept.exists()


def test_a_login_space_submits_a_job_as_its_user(cluster: Cluster, space: Machine) -> None:
    script = "#!/bin/bash\\n#SBATCH --output=%%j.out\\nid --user --name; hostname; pwd\\n"
    in_space(space, f"printf '{script}' >job.sh")
    job = in_space(space, "sbatch --parsable --partition=gpu job.sh").strip()
    found = ended(cluster, job)
    assert (found["user"], found["account"], found["state"]) == ("ada", "esm2", "COMPLETED")
    out = in_space(space, f"cat {job}.out").split()
    assert out[0] == "ada" and out[2] == "/fsx/studio/users/ada"
    assert out[1] in {worker.hostname for worker in cluster.workers}


def test_a_login_space_has_the_controllers_slurm(cluster: Cluster, space: Machine) -> None:
    version = cluster.controller.run(["sinfo", "--version"]).output
    assert in_space(space, "sinfo --version") == version
    assert "gpu" in in_space(space, "sinfo --noheader")
    # A person's own folder is no place for jobs.
    home = (
        "cd && printf '#!/bin/bash\\ntrue\\n' >mine.sh && sbatch --parsable --partition=gpu mine.sh"
    )
    job = in_space(space, home).strip()
    shown = cluster.controller.run(["scontrol", "show", "job", job]).output
    assert "WorkDir=/fsx/studio/users/ada" in shown
    assert "sacct" in in_space(space, "command -v sacct")
    # The database hears of jobs some seconds later.
    listed = "sacct --allocations --noheader --parsable2 --format=JobID --starttime=now-1hour"
    wait_until(
        lambda: job in in_space(space, listed).split(),
        f"job {job} in sacct of the space",
        seconds=240,
    )


def test_munges_key_is_for_root_alone(space: Machine) -> None:
    denied = space.run(["cat", "/etc/munge/munge.key"], user=SPACE_USER, check=False)
    assert "Permission denied" in denied.output
    found = space.run(
        [
            "grep",
            "-rl",
            f"--exclude-dir={REPOSITORY.name}",
            "munge_key",
            "/tmp",
            "/home",
            "/var/log",
        ],
        check=False,
    ).output
    assert {Path(line).name.split(".")[0] for line in found.split()} <= {"slurm_login"}


def test_other_spaces_submit_through_systems_manager(
    cluster: Cluster, studio: Studio, studied: SlurmCluster
) -> None:
    controller = cluster.controller
    studio.ask("make", "ben", [2002])
    user = cluster_users(studied)["ben"]
    person = {**asdict(user), "document": "esm2-test-studio-ben", "login_secret": None}
    controller.write("/tmp/space/aws", _AWS, mode=0o755)
    controller.write("/tmp/space/session.py", _SESSION)
    controller.write("/tmp/space/session-manager-plugin", "#!/bin/sh\n", mode=0o755)
    controller.write("/tmp/space/document.json", json.dumps(session_document(studied, "ben")))
    assert (
        f"{{{{ {PARAMETER} }}}}"
        in session_document(studied, "ben")["properties"]["linux"]["commands"]
    )
    files = write_files(controller, space_settings("ben", person), "/tmp/space/files")
    root = "/tmp/space/root"
    folder = f"/tmp/space/root{MOUNT}"
    controller.run(
        [
            "mkdir",
            "--parents",
            f"{root}/mnt/custom-file-systems/fsx_lustre",
            f"{root}/fsx/studio/users",
        ]
    )
    controller.run(["ln", "--symbolic", "/fsx/studio/users/ben", folder])
    metadata = json.dumps({"UserProfileName": "Ben"})
    controller.write(f"{root}/opt/ml/metadata/resource-metadata.json", metadata)
    environment = {
        "PATH": "/tmp/space:/usr/bin:/bin",
        "HOME": "/root",
        "SPACE_ROOT": root,
    }
    in_a_space = partial(controller.run, environment=environment)
    in_a_space(["python3", f"{files}/set_up_space.py"])
    # It starts the program where a space has it.
    command = f"python3 {root}/usr/local/lib/cluster/slurm_session.py"
    script = '#!/bin/bash\nid --user --name; pwd; echo "$1"\n'
    controller.write("/tmp/space/home/job.sh", script)
    words = shlex.quote("it's $(id)")
    said = in_a_space(
        ["bash", "-c", f"cd /tmp/space/home && {command} sbatch --parsable -p gpu job.sh {words}"]
    )
    job = said.output.strip()
    found = ended(cluster, job)
    assert (found["user"], found["state"]) == ("ben", "COMPLETED")
    out = cluster.shared / f"studio/users/ben/slurm-{job}.out"
    assert out.read_text().splitlines() == ["ben", "/fsx/studio/users/ben", "it's $(id)"]
    refused = in_a_space(
        ["bash", "-c", f"{command} sbatch --partition=nowhere --wrap=true"], check=False
    )
    assert refused.status == 1 and "invalid partition" in refused.output


def test_it_is_taken_back_when_the_file_no_longer_has_it(
    cluster: Cluster, studio: Studio, bucket: ArtifactBucket, settings: dict[str, Any]
) -> None:
    done = Lifecycle(bucket.publish(settings)).run(cluster.controller)
    assert done.status == 0, done.output
    for unit in ("studio-partitions.service", "studio-login.timer", "studio-login.service"):
        assert f"{unit}: removed" in done.output
    assert (cluster.shared / "studio/users/ben").is_dir()
