"""`cdk deploy`, a changed script, `cdk destroy` and `make teardown`, by the real command line.

Each stage deploys over the one before and notes what it then sees; the tests compare the notes.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from config.cluster import NewVpc, SlurmCluster
from config.loader import load_cluster
from tests.local_aws.deployment import REPOSITORY, LocalAws, Seen, copy_checkout, see

SMALL = load_cluster(REPOSITORY / "clusters" / "slurm.yaml")
LARGE = load_cluster(REPOSITORY / "clusters" / "slurm-p5.yaml")
NEIGHBOUR_NAME = "esm2-neighbour"
SCRIPTS = REPOSITORY / "lifecycle" / "slurm"
CHANGED_SCRIPT = "on_init_complete.sh"
DEPLOY = ("deploy", "SlurmHyperPodStack", "--require-approval", "never")
LEFT_BY_DESTROY = ("FSx for Lustre", "NAT gateway", "S3 buckets")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with one more cluster file: the small cluster again, under another name."""
    folder = copy_checkout(tmp_path_factory.mktemp("deploy") / "checkout")
    text = (folder / "clusters" / "slurm.yaml").read_text()
    renamed = text.replace(f"name: {SMALL.name}\n", f"name: {NEIGHBOUR_NAME}\n")
    (folder / "clusters" / "neighbour.yaml").write_text(renamed)
    return folder


@pytest.fixture(scope="module")
def large(aws: LocalAws, checkout: Path) -> Seen:
    output = aws.cdk(*DEPLOY, "--context", "cluster=clusters/slurm-p5.yaml", cwd=checkout)
    return see(aws, LARGE.region, output)


@pytest.fixture(scope="module")
def deployed(aws: LocalAws, checkout: Path) -> Seen:
    return see(aws, SMALL.region, aws.cdk(*DEPLOY, cwd=checkout))


@pytest.fixture(scope="module")
def beside(aws: LocalAws, checkout: Path, deployed: Seen) -> Seen:
    output = aws.cdk(*DEPLOY, "--context", "cluster=clusters/neighbour.yaml", cwd=checkout)
    return see(aws, SMALL.region, output)


@pytest.fixture(scope="module")
def changed(aws: LocalAws, checkout: Path, beside: Seen) -> Seen:
    with (checkout / "lifecycle" / "slurm" / CHANGED_SCRIPT).open("a") as script:
        script.write("echo one line more\n")
    return see(aws, SMALL.region, aws.cdk(*DEPLOY, cwd=checkout))


@pytest.fixture(scope="module")
def destroyed(aws: LocalAws, checkout: Path, changed: Seen) -> Seen:
    return see(aws, SMALL.region, aws.cdk("destroy", "SlurmHyperPodStack", "--force", cwd=checkout))


def stack_names(cluster: SlurmCluster) -> set[str]:
    return {f"{cluster.name}-slurm-{part}" for part in ("network", "storage", "hyperpod")}


def outputs(seen: Seen, cluster: SlurmCluster) -> dict[str, str]:
    return seen.stacks[f"{cluster.name}-slurm-hyperpod"]


def lifecycle_objects(seen: Seen, source: str) -> dict[str, bytes]:
    """Contents by name, of what is stored below ``source``."""
    return {uri.removeprefix(source): body for uri, body in seen.objects.items() if uri.startswith(source)}


@pytest.mark.parametrize(("stage", "cluster"), [("deployed", SMALL), ("large", LARGE)])
def test_deploy_makes_the_cluster_of_the_file(
    stage: str, cluster: SlurmCluster, request: pytest.FixtureRequest
) -> None:
    seen: Seen = request.getfixturevalue(stage)
    assert stack_names(cluster) <= seen.stacks.keys()
    description = seen.clusters[cluster.name]
    assert description["ClusterStatus"] == "InService"
    nodes = [(node["InstanceGroupName"], node["InstanceType"]) for node in seen.nodes[cluster.name]]
    assert sorted(nodes) == sorted(
        (group.name, group.instance_type)
        for group in cluster.instance_groups
        for _ in range(group.num_instances)
    )
    types = {
        group["InstanceGroupName"]: group["SlurmConfig"]["NodeType"]
        for group in description["InstanceGroups"]
    }
    words = {"controller": "Controller", "login": "Login", "worker": "Compute"}
    assert types == {group.name: words[group.role] for group in cluster.instance_groups}


@pytest.mark.parametrize(("stage", "cluster"), [("deployed", SMALL), ("large", LARGE)])
def test_nodes_find_their_scripts_where_the_cluster_says(
    stage: str, cluster: SlurmCluster, request: pytest.FixtureRequest
) -> None:
    seen: Seen = request.getfixturevalue(stage)
    configs = [group["LifeCycleConfig"] for group in seen.clusters[cluster.name]["InstanceGroups"]]
    (source,) = {config["SourceS3Uri"] for config in configs}
    assert source == outputs(seen, cluster)["LifecycleSourceS3Uri"]
    stored = lifecycle_objects(seen, source)
    scripts = {path.name: path.read_bytes() for path in SCRIPTS.iterdir() if path.is_file()}
    assert {name: stored[name] for name in scripts} == scripts
    assert stored.keys() - scripts.keys() == {"settings.env"}
    assert cluster.storage.lustre.mount_path in stored["settings.env"].decode()
    assert {config["OnInitComplete"] for config in configs} <= scripts.keys()


def test_file_system_is_mounted_and_linked_to_the_data_bucket(aws: LocalAws, deployed: Seen) -> None:
    shown = outputs(deployed, SMALL)
    fsx = aws.client("fsx", SMALL.region)
    (file_system,) = fsx.describe_file_systems(FileSystemIds=[shown["LustreFileSystemId"]])["FileSystems"]
    assert file_system["StorageCapacity"] == SMALL.storage.lustre.capacity_gib
    for group in deployed.clusters[SMALL.name]["InstanceGroups"]:
        (mount,) = [c["FsxLustreConfig"] for c in group["InstanceStorageConfigs"] if "FsxLustreConfig" in c]
        assert mount == {
            "DnsName": file_system["DNSName"],
            "MountName": file_system["LustreConfiguration"]["MountName"],
            "MountPath": SMALL.storage.lustre.mount_path,
        }
    (link,) = [
        item
        for item in fsx.describe_data_repository_associations()["Associations"]
        if item["FileSystemId"] == file_system["FileSystemId"]
    ]
    assert link["DataRepositoryPath"].rstrip("/") == f"s3://{shown['DataBucketName']}"


def test_subnets_lie_in_the_zone_of_the_file(aws: LocalAws, deployed: Seen) -> None:
    assert isinstance(SMALL.network, NewVpc)
    subnets = deployed.clusters[SMALL.name]["VpcConfig"]["Subnets"]
    described = aws.client("ec2", SMALL.region).describe_subnets(SubnetIds=subnets)["Subnets"]
    assert [subnet["AvailabilityZoneId"] for subnet in described] == SMALL.network.availability_zone_ids[:1]
    assert [subnet["MapPublicIpOnLaunch"] for subnet in described] == [False]


def test_two_clusters_of_one_region_share_nothing(deployed: Seen, beside: Seen) -> None:
    assert beside.clusters.keys() == {SMALL.name, NEIGHBOUR_NAME}
    assert beside.clusters[SMALL.name] == deployed.clusters[SMALL.name]
    first, second = (outputs(beside, SMALL), beside.stacks[f"{NEIGHBOUR_NAME}-slurm-hyperpod"])
    same = {name for name in first if first[name] == second[name]}
    assert same <= {"BillsUntilTeardown", "ConnectCommand", "ApplyLifecycleCommand"}
    assert len(beside.file_systems) == len(beside.vpcs) == 2


def test_changed_script_goes_to_a_new_prefix(deployed: Seen, changed: Seen) -> None:
    earlier, later = (outputs(seen, SMALL)["LifecycleSourceS3Uri"] for seen in (deployed, changed))
    assert earlier != later
    groups = changed.clusters[SMALL.name]["InstanceGroups"]
    assert {group["LifeCycleConfig"]["SourceS3Uri"] for group in groups} == {later}
    assert lifecycle_objects(changed, earlier) == lifecycle_objects(deployed, earlier)
    before, after = lifecycle_objects(changed, earlier), lifecycle_objects(changed, later)
    assert after == before | {CHANGED_SCRIPT: before[CHANGED_SCRIPT] + b"echo one line more\n"}


def test_changed_script_replaces_no_node_and_says_how_to_run_it(deployed: Seen, changed: Seen) -> None:
    assert changed.nodes[SMALL.name] == deployed.nodes[SMALL.name]
    assert changed.file_systems >= deployed.file_systems
    assert re.search(r"ApplyLifecycleCommand = make apply-lifecycle\b", changed.output)


def test_destroy_ends_the_cluster_and_keeps_its_data(changed: Seen, destroyed: Seen) -> None:
    assert changed.clusters.keys() - destroyed.clusters.keys() == {SMALL.name}
    assert changed.stacks.keys() - destroyed.stacks.keys() == {f"{SMALL.name}-slurm-hyperpod"}
    assert destroyed.file_systems == changed.file_systems
    assert destroyed.vpcs == changed.vpcs
    assert destroyed.objects == changed.objects


def test_destroy_says_what_still_bills(destroyed: Seen) -> None:
    (line,) = [line for line in destroyed.output.splitlines() if "still bills" in line]
    assert line.startswith(SMALL.name)
    assert [item for item in LEFT_BY_DESTROY if item not in line] == []
