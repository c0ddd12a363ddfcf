"""Plan, on-demand and spot nodes of one partition get jobs in this order from a real Slurm."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from node_setup.node_weights import SHOW, shown_nodes
from tests.cluster.cluster import RESOURCE_CONFIG, Cluster
from tests.cluster.hyperpod import agent
from tests.cluster.hyperpod.platform_files import Member, resource_config
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.patience import wait_until
from tests.cluster.test_limits import reasons
from tests.cluster.test_users import submit

GROUPS = {"reserved": (10, "plan"), "rented": (20, "on_demand"), "workers": (30, "spot")}
"""Weight and feature by group. Without weights, Slurm would take the first worker first, which is spot."""


def shown(cluster: Cluster) -> dict[str, tuple[str, str]]:
    """Return weight and active features of each node."""
    nodes = shown_nodes(cluster.controller.run([*SHOW]).output)
    return {node["NodeName"]: (node["Weight"], node["ActiveFeatures"]) for node in nodes}


@pytest.fixture(scope="module")
def expected(
    cluster: Cluster, lifecycle: Lifecycle, settings: dict[str, Any]
) -> Iterator[dict[str, tuple[str, str]]]:
    """Weights and features of the workers, as if each were in a group of its own."""
    for name, result in lifecycle.first_runs.items():
        assert result.status == 0, f"{name}:\n{result.output}"
    cluster.wait_for_slurm()
    before = shown(cluster)
    changed = copy.deepcopy(settings)
    groups = changed["instance_groups"]
    for name, (weight, feature) in GROUPS.items():
        groups[name] = {**groups["workers"], "weight": weight, "feature": feature}
    names = [machine.hostname for machine in cluster.workers]
    group_of = dict(zip(names, reversed(GROUPS), strict=True))
    members = [
        Member(member.machine, group_of.get(member.machine.hostname, member.group))
        for member in cluster.members
    ]

    def apply(settings: dict[str, Any], members: list[Member]) -> None:
        controller = cluster.controller
        groups = settings["instance_groups"]
        config = resource_config(settings["cluster_name"], groups, members, controller.address)
        controller.write(RESOURCE_CONFIG, config)
        controller.write(f"{lifecycle.folder}/settings.json", json.dumps(settings))
        done = lifecycle.run(controller, step="slurm-partitions")
        assert done.status == 0, done.output

    try:
        apply(changed, members)
        yield {name: (str(GROUPS[group][0]), GROUPS[group][1]) for name, group in group_of.items()}
    finally:
        apply(settings, cluster.members)
    assert shown(cluster) == before


def test_jobs_take_the_plan_first_and_can_exclude_spot(
    cluster: Cluster, expected: dict[str, tuple[str, str]]
) -> None:
    assert shown(cluster).items() >= expected.items()
    spot, rented, reserved = (machine.hostname for machine in cluster.workers)

    def start(*options: str) -> str:
        return submit(cluster.login, "ben", "--exclusive", *options, script="sleep 300")

    def wait_for_node(job: str, node: str) -> None:
        command = ["squeue", "--noheader", f"--jobs={job}", "--format=%N"]
        wait_until(
            lambda: cluster.controller.run(command).output.strip() == node,
            f"job {job} to run on {node}",
            seconds=240,
        )

    jobs = [start()]
    wait_for_node(jobs[0], reserved)
    jobs.append(start())
    wait_for_node(jobs[1], rented)
    jobs.append(start("--constraint=plan|on_demand"))
    jobs.append(start())
    wait_for_node(jobs[3], spot)
    assert reasons(cluster, f"--jobs={jobs[2]}") <= {"PENDING Resources", "PENDING Priority"}
    cluster.controller.run(["scancel", *jobs])
    cluster.wait_for_slurm()


def test_weights_outlast_a_restart(cluster: Cluster, expected: dict[str, tuple[str, str]]) -> None:
    agent.restart_slurmctld(cluster.controller)
    # A start of the service is a look.
    cluster.controller.run(["systemctl", "restart", "partition-options.service"])
    wait_until(
        lambda: shown(cluster).items() >= expected.items(), "the weights to be set", seconds=240
    )
    cluster.wait_for_slurm()
