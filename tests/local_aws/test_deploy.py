"""Deployments, a changed script, a switched-off feature, `destroy` and `teardown`, by the real command lines.

Each stage deploys over the one before and notes what it then sees; the tests compare the notes.
"""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime
from pathlib import Path

import boto3
import pytest
import yaml

from config.cluster import NewVpc
from config.node_settings import node_settings_text
from config.reading.loader import load_cluster
from config.slurm_cluster import SlurmCluster
from node_setup.settings import Deployment, read_section
from tests.local_aws.deployment import (
    ACCOUNT,
    REPOSITORY,
    LocalAws,
    Seen,
    assert_accepted,
    copy_checkout,
    objects_below,
    see,
)
from tests.local_aws.hyperpod_cluster import FIRST_RELEASE, NEWEST_RELEASE
from tests.local_aws.refusals import ABSENT_SERVICE, ABSENT_ZONE, EVENT, NO_CAPACITY_TYPE
from tools.preflight.network import check_endpoint_zones
from tools.preflight.read_only_aws import ReadOnlyAws

pytestmark = pytest.mark.long

SMALL = load_cluster(REPOSITORY / "clusters" / "slurm.yaml")
NEIGHBOUR = "esm2-neighbour"
NEIGHBOUR_DOCUMENT = yaml.safe_load((REPOSITORY / "clusters" / "slurm.yaml").read_text()) | {
    "name": NEIGHBOUR,
    "network": {
        "vpc": "new",
        "availability_zone_ids": [ABSENT_ZONE, "usw2-az1"],
        "interface_endpoints": True,
        "endpoint_zones": {"ssmmessages": "usw2-az1"},
    },
    "storage": {
        "lustre": {"capacity_gib": 1200, "throughput_mbps_per_tib": 250, "removal": "destroy"},
        "data_bucket": {"removal": "destroy"},
    },
    "accounting_database": {
        "instance_class": "db.m6g.large",
        "multi_az": True,
        "removal": "destroy",
    },
    "mlflow": {"kind": "tracking_server", "size": "small"},
}
SCARCE = {
    "name": "scarce",
    "role": "worker",
    "instance_type": NO_CAPACITY_TYPE,
    "num_instances": 1,
    "capacity": "spot",
}
FLEXIBLE = {
    "name": "flexible",
    "role": "worker",
    "partition": "flexible",
    "instance_types": [NO_CAPACITY_TYPE, "ml.p5e.48xlarge"],
    "num_instances": 2,
    "scheduled_update": "cron(0 3 ? * SUN *)",
    "rolling_update": {"max_nodes": 1, "wait_seconds": 60},
}
NEIGHBOUR_DOCUMENT["instance_groups"] += [{**SCARCE, "partition": "scarce"}, FLEXIBLE]
"""One more cluster of the region, with what the small one lacks, whose data may go."""
LARGE = SlurmCluster.model_validate(NEIGHBOUR_DOCUMENT)
NEIGHBOUR_FILE = "clusters/neighbour.yaml"
MOVED_FILE = "clusters/moved.yaml"
ONE_ZONE_FILE = "clusters/one_zone.yaml"
AGAIN_FILE = "clusters/again.yaml"
CHANGED_SCRIPT = "on_init_complete.sh"
DEPLOY = ("deploy", "SlurmHyperPodStack", "--require-approval", "never", "--context")
TOOL = (sys.executable, "-m", "tools.stacks.deploy")
SMALL_FILE = "cluster=clusters/slurm.yaml"
PARTS = ("network", "storage", "hyperpod")
LEFT_BY_DESTROY = ("FSx for Lustre", "NAT gateway", "S3 buckets")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with three more cluster files.

    They are the neighbour's, the neighbour's with all endpoints in its first zone, and one that moves the
    small cluster.
    """
    folder = copy_checkout(tmp_path_factory.mktemp("deploy") / "checkout")
    (folder / NEIGHBOUR_FILE).write_text(yaml.safe_dump(NEIGHBOUR_DOCUMENT))
    network = {
        key: value
        for key, value in NEIGHBOUR_DOCUMENT["network"].items()
        if key != "endpoint_zones"
    }
    (folder / ONE_ZONE_FILE).write_text(yaml.safe_dump(NEIGHBOUR_DOCUMENT | {"network": network}))
    assert isinstance(SMALL.network, NewVpc)
    (zone,) = SMALL.network.availability_zone_ids
    text = (folder / "clusters" / "slurm.yaml").read_text()
    (folder / MOVED_FILE).write_text(text.replace(zone, "usw2-az1"))
    return folder


@pytest.fixture(scope="module")
def scripts(checkout: Path) -> dict[str, bytes]:
    """Templates before the change."""
    folder = checkout / "lifecycle" / "slurm"
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }


@pytest.fixture(scope="module")
def deployed(aws: LocalAws, checkout: Path) -> Seen:
    options = ("SlurmHyperPodStack", "--require-approval", "never", "--no-notices")
    output = aws.run(*TOOL, "deploy", "--cluster", "clusters/slurm.yaml", *options, cwd=checkout)
    return see(aws, SMALL.region, output)


@pytest.fixture(scope="module")
def refused(aws: LocalAws, checkout: Path, deployed: Seen) -> Seen:
    """Deploy the neighbour with an endpoint in a zone that lacks the service."""
    options = (*DEPLOY, f"cluster={ONE_ZONE_FILE}")
    return see(aws, SMALL.region, aws.cdk(*options, cwd=checkout, succeeds=False))


@pytest.fixture(scope="module")
def beside(aws: LocalAws, checkout: Path, refused: Seen) -> Seen:
    output = aws.cdk(*DEPLOY, f"cluster={NEIGHBOUR_FILE}", cwd=checkout)
    return see(aws, SMALL.region, output)


@pytest.fixture(scope="module")
def changed(aws: LocalAws, checkout: Path, beside: Seen, scripts: dict[str, bytes]) -> Seen:
    with (checkout / "lifecycle" / "slurm" / CHANGED_SCRIPT).open("a") as script:
        script.write("echo one line more\n")
    return see(aws, SMALL.region, aws.cdk(*DEPLOY, SMALL_FILE, cwd=checkout))


@pytest.fixture(scope="module")
def switched_off(aws: LocalAws, checkout: Path, changed: Seen) -> Seen:
    """Deploy the neighbour without MLflow, whose address the cluster's stack imports from storage."""
    document = {key: value for key, value in NEIGHBOUR_DOCUMENT.items() if key != "mlflow"}
    (checkout / NEIGHBOUR_FILE).write_text(yaml.safe_dump(document))
    options = ("--all", "--require-approval", "never", "--no-notices")
    output = aws.run(*TOOL, "deploy", "--cluster", NEIGHBOUR_FILE, *options, cwd=checkout)
    return see(aws, SMALL.region, output)


@pytest.fixture(scope="module")
def compared(aws: LocalAws, checkout: Path, switched_off: Seen) -> tuple[str, str]:
    """Return the output of `make diff` for the deployed file, and for one that moves it to another zone."""
    diff = (sys.executable, "-m", "tools.stacks.diff", "--cluster")
    same = aws.run(*diff, "clusters/slurm.yaml", cwd=checkout)
    return same, aws.run(*diff, MOVED_FILE, cwd=checkout, succeeds=False)


@pytest.fixture(scope="module")
def destroyed(aws: LocalAws, checkout: Path, changed: Seen, compared: tuple[str, str]) -> Seen:
    command = (
        *TOOL,
        "destroy",
        "--cluster",
        "clusters/slurm.yaml",
        "SlurmHyperPodStack",
        "--force",
    )
    return see(aws, SMALL.region, aws.run(*command, cwd=checkout))


def teardown(aws: LocalAws, checkout: Path, file: str, name: str) -> Seen:
    command = (sys.executable, "-m", "tools.stacks.teardown", "--cluster", file, "--yes", name)
    return see(aws, SMALL.region, aws.run(*command, cwd=checkout))


@pytest.fixture(scope="module")
def torn_down(aws: LocalAws, checkout: Path, destroyed: Seen) -> Seen:
    return teardown(aws, checkout, "clusters/slurm.yaml", SMALL.name)


@pytest.fixture(scope="module")
def thrown_away(aws: LocalAws, checkout: Path, torn_down: Seen) -> Seen:
    return teardown(aws, checkout, NEIGHBOUR_FILE, NEIGHBOUR)


@pytest.fixture(scope="module")
def again(aws: LocalAws, checkout: Path, torn_down: Seen, thrown_away: Seen) -> Seen:
    """Deploy the small cluster with the storage that the teardown kept, as the teardown's output says."""
    document = yaml.safe_load((checkout / "clusters" / "slurm.yaml").read_text())
    fields = re.findall(r"to use it again: storage\.(\w+)\.existing: (.+)", torn_down.output)
    for section, existing in fields:
        document["storage"].setdefault(section, {})["existing"] = yaml.safe_load(existing)
    (checkout / AGAIN_FILE).write_text(yaml.safe_dump(document))
    options = ("SlurmHyperPodStack", "--require-approval", "never", "--no-notices")
    output = aws.run(*TOOL, "deploy", "--cluster", AGAIN_FILE, *options, cwd=checkout)
    return see(aws, SMALL.region, output)


def stack_name(cluster_name: str, part: str) -> str:
    return f"{cluster_name}-slurm-{part}"


def outputs(seen: Seen, cluster: SlurmCluster) -> dict[str, str]:
    return seen.stacks[stack_name(cluster.name, "hyperpod")]


def current(seen: Seen, entry: str) -> str:
    """Return the version that new nodes run."""
    folder = entry.rpartition("/")[0]
    return objects_below(seen, folder)["current"].decode()


@pytest.mark.parametrize(("stage", "cluster"), [("deployed", SMALL), ("beside", LARGE)])
def test_deploy_makes_the_cluster_of_the_file(
    stage: str, cluster: SlurmCluster, request: pytest.FixtureRequest
) -> None:
    seen: Seen = request.getfixturevalue(stage)
    assert {stack_name(cluster.name, part) for part in PARTS} <= seen.stacks.keys()
    description = seen.clusters[cluster.name]
    assert description["ClusterStatus"] == "InService"
    nodes = [(node["InstanceGroupName"], node["InstanceType"]) for node in seen.nodes[cluster.name]]
    assert sorted(nodes) == sorted(
        (group.name, available[0])
        for group in cluster.instance_groups
        if (available := [name for name in group.types if name != NO_CAPACITY_TYPE])
        for _ in range(group.num_instances)
    )
    types = {
        group["InstanceGroupName"]: group["SlurmConfig"]["NodeType"]
        for group in description["InstanceGroups"]
    }
    words = {"controller": "Controller", "login": "Login", "worker": "Compute"}
    assert types == {group.name: words[group.role] for group in cluster.instance_groups}


def test_the_service_gets_the_capacity_and_the_updates_of_groups(beside: Seen) -> None:
    groups = {
        group["InstanceGroupName"]: group for group in beside.clusters[NEIGHBOUR]["InstanceGroups"]
    }
    assert groups["scarce"]["CapacityRequirements"] == {"Spot": {}}
    assert groups["flexible"]["InstanceRequirements"]["DesiredInstanceTypes"] == [
        NO_CAPACITY_TYPE,
        "ml.p5e.48xlarge",
    ]
    one_node = {"Type": "INSTANCE_COUNT", "Value": 1}
    assert groups["flexible"]["ScheduledUpdateConfig"] == {
        "ScheduleExpression": "cron(0 3 ? * SUN *)",
        "DeploymentConfig": {
            "RollingUpdatePolicy": {
                "MaximumBatchSize": one_node,
                "RollbackMaximumBatchSize": one_node,
            },
            "WaitIntervalInSeconds": 60,
        },
    }


@pytest.mark.parametrize(("stage", "cluster"), [("deployed", SMALL), ("beside", LARGE)])
def test_nodes_find_their_scripts_where_the_cluster_says(
    stage: str, cluster: SlurmCluster, scripts: dict[str, bytes], request: pytest.FixtureRequest
) -> None:
    seen: Seen = request.getfixturevalue(stage)
    configs = [group["LifeCycleConfig"] for group in seen.clusters[cluster.name]["InstanceGroups"]]
    (entry,) = {config["SourceS3Uri"] for config in configs}
    assert {config["OnInitComplete"] for config in configs} == objects_below(seen, entry).keys()
    source = outputs(seen, cluster)["LifecycleSourceS3Uri"]
    assert current(seen, entry) == source
    stored = objects_below(seen, source)
    assert {name: stored[name] for name in scripts} == scripts
    assert stored.keys() - scripts.keys() == {"settings.json", "deployment.json"}
    assert stored["settings.json"].decode() == node_settings_text(cluster)


@pytest.mark.parametrize(("stage", "cluster"), [("deployed", SMALL), ("beside", LARGE)])
def test_nodes_get_values_that_only_the_deployment_knows(
    stage: str, cluster: SlurmCluster, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    seen: Seen = request.getfixturevalue(stage)
    shown = outputs(seen, cluster)
    path = tmp_path / "deployment.json"
    path.write_bytes(objects_below(seen, shown["LifecycleSourceS3Uri"])["deployment.json"])
    told = read_section(path, Deployment)
    assert told.artifact_bucket == f"sagemaker-{cluster.name}-{ACCOUNT}-{cluster.region}"
    assert "seqlm/training/train.py" in objects_below(seen, told.workload_s3_uri)
    assert told.remote_write_url == shown["PrometheusRemoteWriteUrl"]
    assert (told.mlflow is not None) is (cluster.mlflow is not None)
    if told.mlflow:
        server = (
            f"arn:aws:sagemaker:{cluster.region}:{ACCOUNT}:mlflow-tracking-server/{cluster.name}"
        )
        assert told.mlflow.tracking_uri == server
        assert told.mlflow.role_arn.startswith(f"arn:aws:iam::{ACCOUNT}:role/")


def test_file_system_is_mounted_and_linked_to_the_data_bucket(
    aws: LocalAws, deployed: Seen
) -> None:
    shown = outputs(deployed, SMALL)
    fsx = aws.client("fsx", SMALL.region)
    (file_system,) = fsx.describe_file_systems(FileSystemIds=[shown["LustreFileSystemId"]])[
        "FileSystems"
    ]
    assert file_system["StorageCapacity"] == SMALL.storage.lustre.capacity_gib
    for group in deployed.clusters[SMALL.name]["InstanceGroups"]:
        (mount,) = [
            c["FsxLustreConfig"] for c in group["InstanceStorageConfigs"] if "FsxLustreConfig" in c
        ]
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
    assert [
        subnet["AvailabilityZoneId"] for subnet in described
    ] == SMALL.network.availability_zone_ids[:1]
    assert [subnet["MapPublicIpOnLaunch"] for subnet in described] == [False]


def test_accounting_database_is_where_the_cluster_says(aws: LocalAws, beside: Seen) -> None:
    wired = beside.clusters[LARGE.name]["Orchestrator"]["Slurm"]["AccountingDatabase"]
    (database,) = aws.client("rds", LARGE.region).describe_db_instances()["DBInstances"]
    endpoint = database["Endpoint"]
    assert (wired["Endpoint"], wired["Port"]) == (endpoint["Address"], endpoint["Port"])
    secrets = aws.client("secretsmanager", LARGE.region)
    secret = json.loads(secrets.get_secret_value(SecretId=wired["SecretArn"])["SecretString"])
    assert secret["username"] == database["MasterUsername"]
    assert (secret["host"], secret["port"]) == (endpoint["Address"], endpoint["Port"])


def test_connect_lists_the_nodes(aws: LocalAws, checkout: Path, deployed: Seen) -> None:
    command = (
        sys.executable,
        "-m",
        "tools.nodes.connect",
        "--cluster",
        "clusters/slurm.yaml",
        "--list",
    )
    listed = aws.run(*command, cwd=checkout)
    assert [
        node["InstanceId"]
        for node in deployed.nodes[SMALL.name]
        if node["InstanceId"] not in listed
    ] == []


def test_the_controller_is_rebooted(aws: LocalAws, checkout: Path, deployed: Seen) -> None:
    """No session is needed, because no jobs run there."""
    command = ("-m", "tools.nodes.actions", "reboot", "controller-1", "--yes", "--cluster")
    said = aws.run(sys.executable, *command, "clusters/slurm.yaml", cwd=checkout)
    (controller,) = (
        node["InstanceId"]
        for node in deployed.nodes[SMALL.name]
        if node["InstanceGroupName"] == "controller"
    )
    assert f"controller-1 ({controller}): reboot has begun" in said


def test_the_controller_gets_a_newer_image(aws: LocalAws, checkout: Path, deployed: Seen) -> None:
    """No session is needed, because no jobs run there. The second update finds what the first has done."""
    command = ("-m", "tools.nodes.patch", "controller", "--all-at-once", "--yes", "--cluster")
    before, after = (
        aws.run(sys.executable, *command, "clusters/slurm.yaml", cwd=checkout) for _ in range(2)
    )
    assert f"controller: 1 node(s) with release {FIRST_RELEASE}, UpdateAvailable\n" in before
    assert f"controller: 1 node(s) with release {NEWEST_RELEASE}, UpToDate\n" in after
    assert "the queue of jobs is lost" in before


def test_two_clusters_of_one_region_share_nothing(deployed: Seen, beside: Seen) -> None:
    assert beside.clusters.keys() == {SMALL.name, NEIGHBOUR}
    assert beside.clusters[SMALL.name] == deployed.clusters[SMALL.name]
    first = outputs(beside, SMALL)
    second = beside.stacks[stack_name(NEIGHBOUR, "hyperpod")]
    same = {name for name in first if first[name] == second[name]}
    assert same <= {"BillsUntilTeardown", "ConnectCommand", "ApplyLifecycleCommand"}
    assert len(beside.file_systems) == len(beside.vpcs) == 2


def test_changed_script_goes_to_a_new_prefix(deployed: Seen, changed: Seen) -> None:
    earlier, later = (outputs(seen, SMALL)["LifecycleSourceS3Uri"] for seen in (deployed, changed))
    assert earlier != later
    (entry,) = {
        group["LifeCycleConfig"]["SourceS3Uri"]
        for group in changed.clusters[SMALL.name]["InstanceGroups"]
    }
    assert (current(deployed, entry), current(changed, entry)) == (earlier, later)
    assert changed.clusters[SMALL.name] == deployed.clusters[SMALL.name]
    assert objects_below(changed, earlier) == objects_below(deployed, earlier)
    before = objects_below(changed, earlier)
    after = objects_below(changed, later)
    assert after == before | {CHANGED_SCRIPT: before[CHANGED_SCRIPT] + b"echo one line more\n"}


def started(seen: Seen) -> list[tuple[str, datetime]]:
    """Ids of the small cluster's nodes, with the times of their starts."""
    return [(node["InstanceId"], node["LaunchTime"]) for node in seen.nodes[SMALL.name]]


def test_changed_script_replaces_no_node_and_says_how_to_run_it(
    deployed: Seen, changed: Seen
) -> None:
    assert started(changed) == started(deployed)
    assert changed.file_systems >= deployed.file_systems
    assert re.search(r"ApplyLifecycleCommand = make apply-lifecycle\b", changed.output)


def test_diff_of_what_is_deployed_is_empty(compared: tuple[str, str]) -> None:
    same, _ = compared
    assert same.count("There were no differences") == len(PARTS)
    assert "survive this change" in same


def test_diff_warns_of_what_a_move_would_replace(compared: tuple[str, str]) -> None:
    _, moved = compared
    assert "usw2-az1" in moved
    warnings = [line for line in moved.splitlines() if line.startswith("!!! WARNING")]
    assert any("file system" in line for line in warnings) and any(
        "cluster" in line for line in warnings
    )


def test_deploy_ends_with_the_groups_of_nodes(deployed: Seen) -> None:
    table, activity = deployed.output[deployed.output.rindex("group ") :].split("\n\n", 1)
    header, *rows = table.splitlines()
    assert header.split() == ["group", "wanted", "running"]
    counts = {group.name: str(group.num_instances) for group in SMALL.instance_groups}
    assert {row.split()[0]: row.split()[1:] for row in rows} == {
        name: [n, n] for name, n in counts.items()
    }
    assert re.search(r"^newest operations:\n  \S+ \S+  Scaling  Done$", activity, re.MULTILINE)


def test_preflight_names_the_zone_of_an_endpoint_that_a_deployment_would_refuse(
    aws: LocalAws, checkout: Path, refused: Seen, beside: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"{ABSENT_SERVICE} does not support the availability zone" in refused.output
    assert stack_name(NEIGHBOUR, "storage") not in refused.stacks
    for name, value in aws.environment.items():
        monkeypatch.setenv(name, value)
    reader = ReadOnlyAws(boto3.Session(region_name=SMALL.region))
    (finding,) = check_endpoint_zones(reader, load_cluster(checkout / ONE_ZONE_FILE))
    assert finding.action == "set network.endpoint_zones to {ssmmessages: usw2-az1}"
    (fine,) = check_endpoint_zones(reader, LARGE)
    assert fine.level == "OK"


def test_nodes_that_never_start_are_reported_with_their_events(switched_off: Seen) -> None:
    assert f"{EVENT} for {NO_CAPACITY_TYPE}" in switched_off.output
    assert "missing nodes: scarce (0 of 1). HyperPod keeps trying." in switched_off.output


def test_a_feature_is_switched_off_in_one_deployment(beside: Seen, switched_off: Seen) -> None:
    """CloudFormation refuses to remove a value that another stack still imports."""
    assert "SlurmHyperPodStack comes first: it stops using values" in switched_off.output
    storage = stack_name(NEIGHBOUR, "storage")
    assert beside.stacks[storage].keys() > switched_off.stacks[storage].keys()
    assert switched_off.clusters[NEIGHBOUR]["ClusterStatus"] == "InService"
    assert beside.nodes[NEIGHBOUR] == switched_off.nodes[NEIGHBOUR]


def test_destroy_ends_the_cluster_and_keeps_its_data(switched_off: Seen, destroyed: Seen) -> None:
    assert switched_off.clusters.keys() - destroyed.clusters.keys() == {SMALL.name}
    assert switched_off.stacks.keys() - destroyed.stacks.keys() == {
        stack_name(SMALL.name, "hyperpod")
    }
    assert destroyed.file_systems == switched_off.file_systems
    assert destroyed.vpcs == switched_off.vpcs
    assert destroyed.objects == switched_off.objects


def test_destroy_says_what_still_bills(destroyed: Seen) -> None:
    (line,) = [
        line
        for line in destroyed.output.splitlines()
        if line.startswith(f"{SMALL.name}: once deployed, billed until")
    ]
    assert "`make teardown`" in line
    assert [item for item in LEFT_BY_DESTROY if item not in line] == []


def test_teardown_names_what_it_keeps(changed: Seen, destroyed: Seen, torn_down: Seen) -> None:
    assert destroyed.stacks.keys() - torn_down.stacks.keys() == {stack_name(SMALL.name, "storage")}
    assert torn_down.file_systems == destroyed.file_systems
    shown = outputs(changed, SMALL)
    kept = torn_down.output.split("Kept in the account")[-1]
    assert [
        name for name in (shown["LustreFileSystemId"], shown["DataBucketName"]) if name not in kept
    ] == []


def test_teardown_frees_the_name_of_the_artifact_bucket(changed: Seen, torn_down: Seen) -> None:
    name = outputs(changed, SMALL)["ArtifactBucketName"]
    assert any(uri.startswith(f"s3://{name}/") for uri in changed.objects)
    assert not any(uri.startswith(f"s3://{name}/") for uri in torn_down.objects)
    assert name not in torn_down.output.split("Kept in the account")[-1]


def test_teardown_leaves_the_network_that_is_still_in_use(destroyed: Seen, torn_down: Seen) -> None:
    network = stack_name(SMALL.name, "network")
    assert network in torn_down.stacks
    assert torn_down.vpcs == destroyed.vpcs
    assert f"Stack {network} stays" in torn_down.output


def test_teardown_deletes_all_of_a_cluster_whose_data_may_go(
    torn_down: Seen, thrown_away: Seen
) -> None:
    assert torn_down.stacks.keys() - thrown_away.stacks.keys() == {
        stack_name(NEIGHBOUR, part) for part in PARTS
    }
    assert thrown_away.clusters == {}
    assert len(torn_down.file_systems - thrown_away.file_systems) == 1
    assert len(torn_down.vpcs - thrown_away.vpcs) == 1
    deleted = re.findall(
        r"^  DELETE_COMPLETE +(\S+) \(AWS::CloudFormation::Stack\)", thrown_away.output, re.M
    )
    assert deleted == [stack_name(NEIGHBOUR, part) for part in reversed(PARTS)]


def test_a_new_deployment_finds_the_storage_that_was_kept(
    changed: Seen, torn_down: Seen, again: Seen
) -> None:
    before = outputs(changed, SMALL)
    after = outputs(again, SMALL)
    kept = ("LustreFileSystemId", "LustreMountName", "DataBucketName")
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert again.file_systems <= torn_down.file_systems
    mounts = [
        config["FsxLustreConfig"]
        for seen in (changed, again)
        for config in seen.clusters[SMALL.name]["InstanceGroups"][0]["InstanceStorageConfigs"]
        if "FsxLustreConfig" in config
    ]
    assert mounts[0] == mounts[1]


def test_the_rules_of_the_cdk_accept_each_file(checkout: Path, again: Seen) -> None:
    """The neighbour's file has lost MLflow meanwhile."""
    files = (NEIGHBOUR_FILE, ONE_ZONE_FILE, MOVED_FILE, AGAIN_FILE)
    assert_accepted(LARGE, *(load_cluster(checkout / file) for file in files))
