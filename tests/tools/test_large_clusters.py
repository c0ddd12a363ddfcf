"""Commands for operators print at most two screens for a cluster of 1,000 nodes and 500 users.

The tests of logs and status on EKS are in ``nodes/test_logs.py`` and ``jobs/kubernetes/test_eks_jobs.py``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.slurm_cluster import SlurmCluster
from tests.tools.accounts import empty_account
from tests.tools.cluster_files import CLUSTERS
from tests.tools.preflight.report import findings
from tests.tools.stacks.teardown_account import HYPERPOD, Account, everything
from tools.cost import __main__ as cost
from tools.stacks import teardown
from tools.stacks.stack_contents import read_stack

NUM_NODES, NUM_USERS = 1000, 500
TWO_SCREENS = 100


def large_document() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((CLUSTERS / "slurm-p5.yaml").read_text())
    document["network"]["private_prefix_length"] = 17
    (workers,) = (group for group in document["instance_groups"] if group["role"] == "worker")
    workers["num_instances"] = NUM_NODES
    first = document["access"]["users"][0]
    document["access"]["users"] = [
        {**first, "name": f"user{number}", "uid": 2001 + number, "admin": False}
        for number in range(NUM_USERS)
    ]
    return document


def test_preflight_of_a_large_cluster_fits_on_two_screens() -> None:
    cluster = SlurmCluster.model_validate(large_document())
    found = findings(empty_account(cluster), cluster)
    lines = [line for each in found for line in (*each.message.splitlines(), each.action) if line]
    assert len(found) > 10
    assert len(lines) <= TWO_SCREENS


def test_cost_of_a_large_cluster_fits_on_two_screens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "large.yaml"
    file.write_text(json.dumps(large_document()))
    monkeypatch.setattr(sys, "argv", ["cost", "--cluster", str(file)])
    assert cost.main() == 0
    output = capsys.readouterr().out
    assert f"{NUM_NODES:,}" in output or str(NUM_NODES) in output
    assert len(output.splitlines()) <= TWO_SCREENS


def test_teardown_of_many_resources_fits_on_two_screens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stack with 400 resources; each one's deletion is two events, which are read to the last page."""
    monkeypatch.setattr(teardown, "POLL_SECONDS", 0.0)
    templates = everything(policy="Delete")
    for number in range(400):
        role = {"Type": "AWS::IAM::Role", "Properties": {}}
        templates[HYPERPOD]["Resources"][f"Role{number}"] = role
    account = Account(templates)
    cloudformation = account.aws.session.client("cloudformation")
    stack = read_stack(cloudformation, HYPERPOD)
    assert stack is not None and len(stack.resources) > 400
    teardown.delete_stack(cloudformation, stack)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 20
    assert lines[-1] == f"  and {len(stack.resources) - 8} more"
