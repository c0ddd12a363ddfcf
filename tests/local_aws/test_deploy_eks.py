"""`cdk deploy` and `make teardown` of the parts of an EKS cluster that the local AWS has."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml

from config.reading.loader import load_cluster
from config.resource_names import ResourceNames
from tests.local_aws.deployment import (
    ACCOUNT,
    REPOSITORY,
    LocalAws,
    Seen,
    copy_checkout,
    put_chart,
    see,
)

pytestmark = pytest.mark.long

EKS = load_cluster(REPOSITORY / "clusters" / "eks.yaml")
FILE = "clusters/temporary.yaml"
DEPLOY = ("deploy", "--require-approval", "never", "--context", f"cluster={FILE}")
NETWORK, STORAGE, HYPERPOD = (
    f"{EKS.name}-eks-{part}" for part in ("network", "storage", "hyperpod")
)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the small cluster, whose data may go, and a stand-in where `make charts` puts charts."""
    folder = copy_checkout(tmp_path_factory.mktemp("deploy-eks") / "checkout")
    cluster = yaml.safe_load((folder / "clusters" / "eks.yaml").read_text())
    cluster["storage"]["lustre"]["removal"] = "destroy"
    cluster["storage"]["data_bucket"] = {"removal": "destroy"}
    entry = {"principal_arn": f"arn:aws:iam::{ACCOUNT}:role/Admin", "level": "cluster_admin"}
    cluster["kubernetes"] = {**cluster.get("kubernetes", {}), "access": [entry]}
    (folder / FILE).write_text(yaml.safe_dump(cluster))
    put_chart(folder / ".charts")
    return folder


@pytest.fixture(scope="module")
def deployed(aws: LocalAws, checkout: Path) -> Seen:
    """Deploy while a log group of an earlier cluster is left."""
    aws.client("logs", EKS.region).create_log_group(
        logGroupName=ResourceNames(EKS).control_plane_log_group
    )
    command = (
        sys.executable,
        "-m",
        "tools.stacks.deploy",
        "deploy",
        "--cluster",
        FILE,
        "EksStorageStack",
    )
    output = aws.run(*command, "--require-approval", "never", "--no-notices", cwd=checkout)
    return see(aws, EKS.region, output)


@pytest.fixture(scope="module")
def refused(aws: LocalAws, checkout: Path, deployed: Seen) -> Seen:
    output = aws.cdk(*DEPLOY, "EksHyperPodStack", cwd=checkout, succeeds=False)
    return see(aws, EKS.region, output)


@pytest.fixture(scope="module")
def torn_down(aws: LocalAws, checkout: Path, refused: Seen) -> Seen:
    command = (sys.executable, "-m", "tools.stacks.teardown", "--cluster", FILE, "--yes", EKS.name)
    return see(aws, EKS.region, aws.run(*command, cwd=checkout))


def test_network_and_storage_come_up(deployed: Seen) -> None:
    assert {NETWORK, STORAGE} <= deployed.stacks.keys()
    assert deployed.stacks[STORAGE]["LustreFileSystemId"] in deployed.file_systems
    assert deployed.stacks[NETWORK]["VpcId"] in deployed.vpcs


def test_a_log_group_that_reappeared_is_deleted_before_the_deployment(
    aws: LocalAws, deployed: Seen
) -> None:
    name = ResourceNames(EKS).control_plane_log_group
    assert f"deleted log group {name}" in deployed.output
    assert (
        aws.client("logs", EKS.region).describe_log_groups(logGroupNamePrefix=name)["logGroups"]
        == []
    )


def test_what_the_local_aws_lacks_is_refused(refused: Seen) -> None:
    """Not skipped, as moto would, with a deployment that looks whole; by name, before anything is made."""
    (listed,) = re.findall(r"Unrecognized resource types: \[([^]]*)\]", refused.output)[:1]
    named = set(listed.replace("\n", " ").split(", "))
    assert {"AWS::EKS::Cluster", "AWS::EKS::Addon", "AWS::EKS::PodIdentityAssociation"} <= named
    assert {"Custom::AWSCDK-EKS-HelmChart", "Custom::HyperPodNodes"} <= named
    assert HYPERPOD not in refused.stacks
    assert EKS.name not in refused.clusters


def test_teardown_leaves_no_network(deployed: Seen, torn_down: Seen) -> None:
    assert not {NETWORK, STORAGE, HYPERPOD} & torn_down.stacks.keys()
    assert deployed.stacks[NETWORK]["VpcId"] not in torn_down.vpcs
    assert deployed.stacks[STORAGE]["LustreFileSystemId"] not in torn_down.file_systems
