"""The network between the nodes of a job: a node that others cannot reach, and the job that measures it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from seqlm.launch.node_agent import CHECK_MEETING_VARIABLE, FIRST_PORT, NUM_PORTS
from tests.cluster.cluster import Cluster
from tests.cluster.machine import Machine
from tests.cluster.patience import wait_until
from tests.cluster.training import HOME, PYTHON, Uninterrupted, log_of, submit, tool, wait_for_end

MEETING_SECONDS = 20
"""Waited for three times: by all nodes, and by each pair with the bad one."""
MEETING_PORTS = f"{FIRST_PORT}:{FIRST_PORT + NUM_PORTS - 1}"


@contextmanager
def cut_off(machine: Machine) -> Iterator[None]:
    """Refuse connections between its processes and those of other machines; Slurm's connections stay."""
    ports = ["--protocol", "tcp", "--destination-port", MEETING_PORTS]
    rules = [
        [chain, *ports, *except_itself]
        for chain, *except_itself in (
            ("INPUT", "!", "--source", machine.address),
            ("OUTPUT", "!", "--destination", machine.address),
        )
    ]
    refuse = ["--jump", "REJECT", "--reject-with", "tcp-reset"]
    for rule in rules:
        machine.run(["iptables", "--append", *rule, *refuse])
    try:
        yield
    finally:
        for rule in rules:
            machine.run(["iptables", "--delete", *rule, *refuse])


def test_a_node_whose_network_fails_is_found_and_left_out(
    cluster: Cluster, home: Path, uninterrupted: Uninterrupted
) -> None:
    """Neither Slurm nor the node alone sees anything wrong.

    While nodes wait for each other, the cores have time for the run that other tests compare with.
    """
    first, bad, third = cluster.workers
    python = home / "impatient-python"
    python.write_text(PYTHON.replace("OMP", f"{CHECK_MEETING_VARIABLE}={MEETING_SECONDS} OMP"))
    python.chmod(0o755)
    with cut_off(bad):
        options = ("train.max_steps=6", f"--python={HOME}/impatient-python")
        job = submit(cluster, "name=network", *options, nodes="2-3")
        log = log_of(cluster, job)
        wait_until(
            lambda: log.exists() and "start 2" in log.read_text(), "the second start", seconds=400
        )
        found = wait_for_end(cluster, job["job"], log)
    said = log.read_text()
    assert "all-reduce over 3 node(s) fails: " in said
    blamed = f"node {bad.hostname} is not fit and is left out from now on: all-reduce fails with "
    assert f"{blamed}{first.hostname} and {third.hostname}, well with others: " in said
    assert "all-reduce over 2 process(es) is right: " in said
    assert found["ExcNodeList"] == bad.hostname and found["NumNodes"] == "2"
    results = json.loads((home / "runs/network/all_results.json").read_text())
    assert results["world_size"] == 2


def test_the_bandwidth_job(cluster: Cluster, home: Path) -> None:
    options = [
        "bandwidth",
        "--nodes=2",
        "--gpus-per-node=0",
        f"--python={HOME}/python",
        "at_least=0.001",
    ]
    job = dict(
        re.findall(
            r"^(\w+) +(.+)$", tool(cluster, "tools.jobs", "submit", *options), flags=re.MULTILINE
        )
    )
    assert re.search(
        r"16 MiB .*\n.*network gloo; .*report.html",
        tool(cluster, "tools.jobs", "tail", job["job"]),
    )
    log = log_of(cluster, job)
    wait_for_end(cluster, job["job"], log)
    assert "all-reduce over 2 node(s), 2 processes: as expected: " in log.read_text()
    printed = tool(cluster, "tools.jobs", "fetch", job["job"], f"--to={HOME}/fetched")
    (fetched,) = (home / "fetched").glob("bandwidth-*")
    assert f"{HOME}/fetched/{fetched.name}/bandwidth.json" in printed
    found = json.loads((fetched / "bandwidth.json").read_text())
    assert found["num_nodes"] == 2 and found["verdict"]["state"] == "as expected"
    assert "<svg" in (fetched / "report.html").read_text()
