"""Commands on a cluster of 1,000 nodes and 500 users: they read all pages and print at most two screens."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import botocore.endpoint
import pytest
import yaml
from botocore.client import BaseClient

from config.reading.loader import load_cluster
from config.resource_names import stack_names
from tests.local_aws.deployment import REPOSITORY, LocalAws
from tests.local_aws.hyperpod_cluster import SETUP_LOG_TAG
from tests.local_aws.template_stacks import REGION, Resources, Stacks
from tests.tools.nodes.node_sessions import NodeSessions
from tests.tools.nodes.sleeping import only_sleep
from tools.cost import __main__ as cost
from tools.jobs import __main__ as jobs
from tools.jobs.slurm import jobs as slurm_jobs
from tools.nodes import head_node, logs
from tools.preflight import __main__ as preflight
from tools.preflight import planned
from tools.stacks import teardown
from tools.usage import __main__ as usage
from tools.usage.slurm_accounting import FIELDS

pytestmark = pytest.mark.long

NUM_NODES, NUM_USERS = 1_000, 500
NUM_FAILED = 30
NUM_ROLES = 110
"""Roles of the cluster's stack, so that its resources and events are on several pages."""
TWO_SCREENS = 100
NUM_JOBS = 5_000
NODES_PER_PAGE = 100
STREAMS_PER_PAGE = 50
STREAMS_PER_CALL = 100
RESOURCES_PER_PAGE = 100
NAME = "large"
GROUPS = {"controller": 1, "workers": NUM_NODES - 1}
NODE_TYPES = {"controller": "Controller", "workers": "Compute"}
NOBODY = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Deny", "Principal": "*", "Action": "sts:AssumeRole"}],
}
PROGRAMS = {
    "getent": "echo user0:x:2001:2000::/nonexistent:/bin/bash",
    # Without the user's rights, and with these programs in place of those of the image.
    "runuser": 'while [[ "$1" != bash ]]; do shift; done; exec "$@"',
    "squeue": f"echo JOBID; seq {NUM_JOBS}",
    "scontrol": "echo 'AccountingStorageTRES   = cpu,node,gres/gpu'",
    "sacctmgr": "echo 'PrivateData            = none'",
    "sacct": f"""
        for word; do [[ "$word" != --delimiter=* ]] || mark="${{word#--delimiter=}}"; done
        seq {NUM_JOBS} | awk -v mark="$mark" -v users={NUM_USERS} '{{
            print $1, $1, "user" $1 % users, "research", "dev", "COMPLETED", "2026-11-02T10:00:00",
                "2026-11-02T11:00:00", 1, "cpu=32,gres/gpu=1,node=1", "ip-10-0-0-1", "train"
        }}' OFS="$mark"
    """,
}
"""Stand-ins on the head node. Users take turns at jobs of an hour on one node."""
ROLE = {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": NOBODY}}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cluster file, as JSON, which is YAML."""
    document = yaml.safe_load((REPOSITORY / "clusters" / "slurm.yaml").read_text())
    document["name"] = NAME
    document["region"] = REGION
    document["network"] = {**document["network"], "availability_zone_ids": ["euw1-az1"]}
    for group in document["instance_groups"]:
        group["num_instances"] = GROUPS[group["name"]]
    document["access"] = {
        "groups": [{"name": "research", "gid": 2000}],
        "users": [
            {"name": f"user{number}", "uid": 2001 + number, "group": "research"}
            for number in range(NUM_USERS)
        ],
    }
    path: Path = tmp_path_factory.mktemp("large") / "large.yaml"
    path.write_text(json.dumps(document))
    return path


def network() -> Resources:
    subnet = {"VpcId": {"Ref": "Vpc"}, "CidrBlock": "10.0.0.0/20", "AvailabilityZoneId": "euw1-az1"}
    group = {"VpcId": {"Ref": "Vpc"}, "GroupDescription": "of the cluster"}
    return {
        "Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.0.0.0/16"}},
        "Subnet": {"Type": "AWS::EC2::Subnet", "Properties": subnet},
        "Group": {"Type": "AWS::EC2::SecurityGroup", "Properties": group},
    }


def hyperpod(outputs: dict[str, str]) -> Resources:
    groups = [
        {
            "InstanceGroupName": name,
            "InstanceType": "ml.g5.8xlarge",
            "InstanceCount": count,
            "ExecutionRole": {"Fn::GetAtt": ["Role0", "Arn"]},
            "SlurmConfig": {"NodeType": NODE_TYPES[name]},
        }
        for name, count in GROUPS.items()
    ]
    properties = {
        "ClusterName": NAME,
        "InstanceGroups": groups,
        "VpcConfig": {"SecurityGroupIds": [outputs["Group"]], "Subnets": [outputs["Subnet"]]},
        "Tags": [{"Key": SETUP_LOG_TAG, "Value": str(NUM_FAILED)}],
    }
    roles = {f"Role{number}": ROLE for number in range(NUM_ROLES)}
    return {**roles, "Cluster": {"Type": "AWS::SageMaker::Cluster", "Properties": properties}}


@pytest.fixture(scope="module")
def deployed(empty_aws: LocalAws, file: Path) -> LocalAws:
    """The stacks of the cluster."""
    stacks = Stacks(empty_aws)
    names = stack_names(load_cluster(file))
    exported = {name: {"Value": {"Ref": name}} for name in ("Group", "Subnet")}
    assert stacks.deploy(names.network, network(), outputs=exported) == "CREATE_COMPLETE"
    [stack] = stacks.cloudformation.describe_stacks(StackName=names.network)["Stacks"]
    outputs = {item["OutputKey"]: item["OutputValue"] for item in stack["Outputs"]}
    status = stacks.deploy(names.hyperpod, hyperpod(outputs))
    assert status == "CREATE_COMPLETE", stacks.reasons(names.hyperpod)
    return empty_aws


Printed = tuple[list[str], Counter[str]]
"""Lines that a command prints, and the numbers of its calls by operation."""
Run = Callable[..., Printed]


@pytest.fixture
def run(
    deployed: LocalAws,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Return a function that runs a command in this process."""
    calls: Counter[str] = Counter()
    call = BaseClient._make_api_call

    def counting(client: BaseClient, operation: str, parameters: Any) -> Any:
        calls[operation] += 1
        return call(client, operation, parameters)

    for name, value in deployed.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(BaseClient, "_make_api_call", counting)

    def run_command(module: Any, *arguments: str, command: str = "") -> Printed:
        words = ["program", *filter(None, [command]), "--cluster", str(file), *arguments]
        monkeypatch.setattr(sys, "argv", words)
        calls.clear()
        module.main()
        return capsys.readouterr().out.splitlines(), calls.copy()

    return run_command


def test_logs_are_counts_and_the_first_failed_nodes(run: Run) -> None:
    lines, calls = run(logs)
    done = NUM_NODES - NUM_FAILED
    assert lines[0] == f"{NUM_NODES} node(s): {done} done, {NUM_FAILED} failed"
    assert len(lines) <= TWO_SCREENS
    assert calls["ListClusterNodes"] == NUM_NODES / NODES_PER_PAGE
    assert calls["DescribeLogStreams"] == NUM_NODES / STREAMS_PER_PAGE
    assert calls["FilterLogEvents"] == NUM_NODES / STREAMS_PER_CALL


@pytest.fixture
def head_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the scripts of sessions on this machine, with stand-ins for the head node's programs."""
    sessions = NodeSessions(tmp_path / "sessions")
    for name, text in PROGRAMS.items():
        program = sessions.folder / "bin" / name
        program.write_text(f"#!/bin/bash\n{text}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", sessions.path)
    for module in (slurm_jobs, head_node):
        monkeypatch.setattr(module, "slurm_is_here", lambda: False)


def test_status_finds_the_head_node_among_all_and_lists_the_newest_jobs(
    run: Run, head_programs: None
) -> None:
    lines, calls = run(jobs, "--user", "user0", command="status")
    assert any(line.startswith("and 4940 more jobs") for line in lines)
    assert len(lines) <= TWO_SCREENS
    # Once for the head node, and once for the images of all nodes.
    assert calls["ListClusterNodes"] == 2 * NUM_NODES / NODES_PER_PAGE


def test_usage_has_the_largest_entries_and_its_table_has_all(
    run: Run, head_programs: None, tmp_path: Path
) -> None:
    assert FIELDS[:5] == ("JobIDRaw", "JobID", "User", "Account", "Partition"), "as sacct prints"
    table = tmp_path / "usage.csv"
    dates = ("--since", "2026-11-02", "--until", "2026-11-03")
    lines, calls = run(usage, *dates, "--csv", str(table))
    assert any(line.startswith(f"all jobs  {NUM_JOBS} ") for line in lines)
    assert any(line.startswith(f"{NUM_USERS - 14} others") for line in lines)
    assert len(lines) <= TWO_SCREENS
    assert calls["ListClusterNodes"] == NUM_NODES / NODES_PER_PAGE
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert (len(rows), len({row["user"] for row in rows})) == (NUM_JOBS, NUM_USERS)
    assert {float(row["gpu_hours"]) for row in rows} == {1.0}


def test_preflight_has_a_line_per_group(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests of the local AWS synthesize stacks, which takes seconds.
    monkeypatch.setattr(planned, "synthesize", lambda cluster: planned.Synthesis({}, []))
    # The local AWS does not know all quotas, and botocore tries again.
    monkeypatch.setattr(botocore.endpoint, "time", only_sleep(lambda seconds: None))
    lines, calls = run(preflight)
    assert 10 < len(lines) <= TWO_SCREENS
    assert sum("workers" in line for line in lines) == 1, "a line per group, not per node"
    assert max(calls.values()) <= NUM_NODES / NODES_PER_PAGE


def test_cost_calls_nothing(run: Run) -> None:
    lines, calls = run(cost)
    assert len(lines) <= TWO_SCREENS and any(f"{NUM_NODES - 1}" in line for line in lines)
    assert not calls


def test_teardown_reads_all_resources_and_deletes_them(
    run: Run, deployed: LocalAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs last, because it ends the cluster."""
    monkeypatch.setattr(teardown, "POLL_SECONDS", 0.0)
    lines, calls = run(teardown, "--yes", NAME)
    assert f"  {NAME}-slurm-hyperpod ({NUM_ROLES + 1} resources)" in lines
    assert calls["ListStackResources"] >= 1 + NUM_ROLES // RESOURCES_PER_PAGE
    assert len(lines) <= TWO_SCREENS
    clusters = deployed.client("sagemaker", REGION).list_clusters()["ClusterSummaries"]
    assert NAME not in {cluster["ClusterName"] for cluster in clusters}
