"""Preflight reports each error of a real synthesis as one line, on both schedulers."""

from __future__ import annotations

from typing import Any

import pytest

from config.cluster import Budget
from config.cluster_kinds import AnyCluster
from tests.stacks.synthesized import CHARTS
from tests.tools.accounts import empty_account
from tests.tools.answering_aws import AnsweringAws
from tests.tools.cluster_files import shipped
from tests.tools.preflight.eks_accounts import EKS, eks_account
from tests.tools.preflight.report import findings
from tools.preflight.finding import Finding
from tools.preflight.planned import Planned, check_synthesis
from tools.preflight.read_only_aws import ReadOnlyAws


@pytest.fixture
def real_synthesis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("stacks.eks_hyperpod_stack.chart_folder", lambda name: CHARTS / name)


def synthesis_of(cluster: AnyCluster) -> list[Finding]:
    aws = ReadOnlyAws(AnsweringAws(cluster.region).session)
    return list(check_synthesis(Planned(cluster), aws, cluster))


@pytest.mark.long
@pytest.mark.usefixtures("real_synthesis")
@pytest.mark.parametrize("cluster", [shipped("slurm"), EKS], ids=["slurm", "eks"])
def test_an_error_of_the_synthesis_is_one_line_with_a_remedy(cluster: Any) -> None:
    (ready,) = synthesis_of(cluster)
    assert ready.level == "OK"
    # The rules of cluster files refuse this pair today. A type that AWS removes later would be the same.
    budget = Budget(monthly_usd=100, email="hpc@example.com")
    (found,) = synthesis_of(cluster.model_copy(update={"region": "eu-north-1", "budget": budget}))
    stack = f"{cluster.scheduler.capitalize()}HyperPodStack/Budget/Budget"
    assert (found.level, found.message) == (
        "FAIL",
        f"{stack}: Type: Resource type 'AWS::Budgets::Budget' does not exist in 'eu-north-1'",
    )
    assert found.action.startswith("remove the section of the cluster file that needs the type")


@pytest.mark.parametrize("name", ["slurm", "eks"])
def test_both_schedulers_are_checked(name: str) -> None:
    cluster: Any = shipped("slurm") if name == "slurm" else EKS
    account = empty_account(cluster) if name == "slurm" else eks_account(cluster)
    found = findings(account, cluster)
    assert [finding.level for finding in found if finding.subject == "synthesis"] == ["OK"]
