"""The instance's credentials on a real kernel: only root reaches them."""

from __future__ import annotations

import json

import pytest

from node_setup.steps import managed_mlflow
from tests.cluster import aws_services
from tests.cluster.cluster import Cluster, at_once
from tests.cluster.island import METADATA_ADDRESS, METADATA_ADDRESS_6
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.machine import Machine

CURL = (
    "curl",
    "--silent",
    "--show-error",
    "--noproxy",
    "*",
    "--output",
    "/dev/null",
)
SECONDS_FOR_ANSWER = "60"
SECONDS_WITHOUT_ANSWER = "5"
REFUSED = 7
NO_ANSWER = 28
# A namespace that is bridged as Docker bridges containers: what it sends is forwarded, and has no owner.
_CONTAINER = """
ip netns add container
ip link add inside type veth peer name outside
ip link set inside netns container
ip address add 192.168.77.1/24 dev outside
ip link set outside up
ip -n container address add 192.168.77.2/24 dev inside
ip -n container link set inside up
ip -n container route add default via 192.168.77.1
sysctl --quiet --write net.ipv4.ip_forward=1
iptables --table nat --append POSTROUTING --source 192.168.77.0/24 --jump MASQUERADE
"""


@pytest.mark.parametrize("address", [METADATA_ADDRESS, f"[{METADATA_ADDRESS_6}]"])
def test_root_reaches_them_and_users_do_not(
    cluster: Cluster, lifecycle: Lifecycle, address: str
) -> None:
    url = f"http://{address}/latest/meta-data/"

    def statuses(machine: Machine) -> list[int]:
        users = ("root", "ubuntu", "nobody", "ben")
        asking = [*CURL, "--max-time", SECONDS_FOR_ANSWER, url]
        return [machine.run(asking, user=user, check=False).status for user in users]

    assert at_once(statuses, cluster.machines) == [[0, REFUSED, REFUSED, REFUSED]] * len(
        cluster.machines
    )


def test_a_container_of_roots_does_not_reach_them(cluster: Cluster, lifecycle: Lifecycle) -> None:
    worker = cluster.workers[0]
    worker.run(["bash", "-euc", _CONTAINER])
    try:
        container = ("ip", "netns", "exec", "container")
        # The way out is there: the bucket answers.
        worker.run([*container, *CURL, "--max-time", SECONDS_FOR_ANSWER, "http://10.77.0.1:5000/"])
        asked = worker.run(
            [
                *container,
                *CURL,
                "--max-time",
                SECONDS_WITHOUT_ANSWER,
                f"http://{METADATA_ADDRESS}/",
            ],
            check=False,
        )
        assert asked.status == NO_ANSWER
    finally:
        worker.run(["ip", "netns", "delete", "container"])


def test_the_node_acts_with_them(cluster: Cluster, lifecycle: Lifecycle) -> None:
    identity = cluster.login.run(["aws", "sts", "get-caller-identity", "--region", "us-west-2"])
    assert "Account" in identity.output


def test_jobs_have_credentials_of_a_role_of_their_own(
    cluster: Cluster, lifecycle: Lifecycle
) -> None:
    """Jobs on workers get a role of their own, not the node's."""
    for worker in cluster.workers:
        variables = json.loads(worker.run(["cat", managed_mlflow.ENVIRONMENT], user="ben").output)
        assert variables["MLFLOW_TRACKING_URI"] == aws_services.MLFLOW
        url = variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"]
        given = json.loads(
            worker.run(["curl", "--silent", "--fail", "--noproxy", "*", url], user="ben").output
        )
        assert set(given) == {"AccessKeyId", "SecretAccessKey", "Token", "Expiration"}
        assert given["AccessKeyId"] != aws_services.CREDENTIALS["AccessKeyId"]
        with_them = ("env", f"AWS_CONTAINER_CREDENTIALS_FULL_URI={url}")
        told = worker.run(
            [*with_them, "aws", "sts", "get-caller-identity", "--region", "us-west-2"]
        )
        assert ":assumed-role/jobs/" in told.output
    for machine in (cluster.login, cluster.controller):
        assert machine.run(["cat", managed_mlflow.ENVIRONMENT], check=False).status != 0
