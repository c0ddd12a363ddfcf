"""Studio beside a real Slurm: partitions asked for through a queue, and Slurm published for login spaces."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from config.loader import load_cluster
from config.node_settings import node_settings
from config.slurm_cluster import SlurmCluster
from config.studio import STUDIO_GID, STUDIO_UID
from tests.cluster.artifact_bucket import ArtifactBucket
from tests.cluster.cluster import Cluster
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.patience import wait_until

STUDIO = {
    "partitions": "per_profile",
    "partition_removal": "destroy",
    "profiles": [
        {"name": "ada", "cluster_user": "ada", "login_space": True},
        {"name": "ben", "cluster_user": "ben"},
    ],
}
DOMAIN = "d-0123456789ab"


@dataclass(frozen=True)
class Studio:
    """A domain's queues, and what answers them."""

    bucket: ArtifactBucket
    requests: str
    acknowledgements: str
    secret: str

    def ask(self, action: str, profile: str, uids: list[int]) -> dict[str, Any]:
        """What is acknowledged of a request."""
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

        wait_until(answered, f"an acknowledgement of {action} {profile}", seconds=90)
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
        made("secretsmanager", "create-secret", "--name", "login", "--secret-string", "{}", "--query", "ARN"),
    )
    deployment = {
        "requests_url": studio.requests,
        "acknowledgements_url": studio.acknowledgements,
        "login_secret": studio.secret,
    }
    # The aws command's Python may be in a home of this computer's.
    for name in ("login", "partitions"):
        override = f"/etc/systemd/system/studio-{name}.service.d/python.conf"
        cluster.controller.write(override, "[Service]\nProtectHome=read-only\n")
    done = Lifecycle(bucket.publish(node_settings(studied), studio=deployment)).run(cluster.controller)
    assert done.status == 0, done.output
    assert "WARNING: nothing is published" not in done.output
    yield studio
    done = Lifecycle(bucket.publish(settings)).run(cluster.controller)
    assert done.status == 0, done.output


def test_a_partition_is_studios_and_its_users(cluster: Cluster, studio: Studio) -> None:
    assert studio.ask("make", "ben", [2002]) == {"action": "make", "profile": "ben", "domain": DOMAIN}
    folder = cluster.shared / "studio/users/ben"
    assert (folder.stat().st_uid, folder.stat().st_gid) == (STUDIO_UID, STUDIO_GID)
    worker = cluster.workers[0]
    worker.run(["touch", "/fsx/studio/users/ben/from-the-cluster"], user="ben")
    denied = worker.run(["ls", "/fsx/studio/users/ben"], user="ada", check=False)
    assert "Permission denied" in denied.output
    from_space = ["setpriv", f"--reuid={STUDIO_UID}", f"--regid={STUDIO_GID}", "--clear-groups", "bash", "-c"]
    worker.run(
        [*from_space, "echo more >>/fsx/studio/users/ben/from-the-cluster; mkdir /fsx/studio/users/ben/runs"]
    )
    worker.run(["touch", "/fsx/studio/users/ben/runs/log"], user="ben")


def test_the_service_can_do_nothing_else(cluster: Cluster, studio: Studio) -> None:
    """What it asks for of the kernel is all that it has."""
    shown = cluster.controller.run(["systemctl", "show", "--property=MainPID", "studio-partitions"]).output
    status = cluster.controller.read(f"/proc/{shown.strip().removeprefix('MainPID=')}/status")
    # CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER.
    assert f"CapBnd:\t{0b1011:016x}" in status


def test_a_partition_goes_with_its_profile(cluster: Cluster, studio: Studio) -> None:
    studio.ask("make", "guest", [])
    kept = cluster.shared / "studio/users/guest"
    assert kept.is_dir()
    assert studio.ask("remove", "guest", [])["action"] == "remove"
    assert not kept.exists()
