"""Bills of hand-made records: requeued and resized jobs, midnight, shared nodes, missing prices."""

from __future__ import annotations

import dataclasses

import pytest

from tests.tools.usage.slurm_records import CPU_USD, GPU_NODE, GPU_USD, KINDS, read, record, second
from tools.usage.node_kinds import ClusterNodeKinds
from tools.usage.period import Period
from tools.usage.records import Accounting
from tools.usage.team_bill import UNKNOWN, Amount, TeamBill, make_team_bill

DAY = Period(second("02T00:00"), second("03T00:00"))
NEXT_DAY = Period(second("03T00:00"), second("04T00:00"))


def bill(accounting: Accounting, period: Period = DAY, kinds: ClusterNodeKinds = KINDS) -> TeamBill:
    return make_team_bill(accounting, kinds, period)


def test_a_job_on_whole_nodes() -> None:
    made = bill(read(record(NodeList="ip-10-0-0-[20-21]", AllocTRES="cpu=96,gres/gpu=8,node=2")))
    assert made.used == Amount(2.0, 8.0, 2 * GPU_USD)


def test_a_requeued_job_counts_each_of_its_runs_and_not_the_time_between() -> None:
    made = bill(
        read(
            record(State="REQUEUED", End="2026-11-02T10:30:00"),
            record(Start="2026-11-02T12:00:00", End="2026-11-02T14:00:00"),
        )
    )
    assert made.used == Amount(2.5, 10.0, 2.5 * GPU_USD)
    (use,) = made.uses
    assert use.states == ["REQUEUED", "COMPLETED"]
    assert (use.first_start, use.last_end) == (second("02T10:00"), second("02T14:00"))
    assert made.totals(lambda job: job.user)[0].num_jobs == 1


def test_a_resized_job_counts_the_nodes_that_it_had() -> None:
    made = bill(
        read(
            record(
                State="RESIZING",
                End="2026-11-02T10:15:00",
                NodeList="ip-10-0-0-[20-22]",
                AllocTRES="cpu=144,gres/gpu=12,node=3",
            ),
            # With the start of the first allocation, as Slurm 22.05 records it.
            record(Start="2026-11-02T10:00:00"),
        )
    )
    assert made.used == Amount(1.5, 6.0, 1.5 * GPU_USD)


def test_midnight_divides_a_job_without_a_loss() -> None:
    accounting = read(record(Start="2026-11-02T22:00:00", End="2026-11-03T01:00:00"))
    assert bill(accounting).used == Amount(2.0, 8.0, 2 * GPU_USD)
    assert bill(accounting, NEXT_DAY).used == Amount(1.0, 4.0, GPU_USD)
    both = Period(DAY.since, NEXT_DAY.until)
    assert bill(accounting, both).used == Amount(3.0, 12.0, 3 * GPU_USD)


def test_jobs_next_to_the_period_cost_nothing() -> None:
    accounting = read(
        record(Start="2026-11-01T22:00:00", End="2026-11-02T00:00:00"),
        record(JobIDRaw="8", Start="2026-11-03T00:00:00", End="2026-11-03T01:00:00"),
        record(JobIDRaw="9", State="PENDING", Start="Unknown", End="Unknown", AllocTRES=""),
        record(JobIDRaw="10", State="CANCELLED by 2001", Start="None", AllocTRES=""),
    )
    assert bill(accounting).uses == []


def test_a_running_job_counts_up_to_now() -> None:
    accounting = read(record(State="RUNNING", End="Unknown"), clock="02T10:30", present=["7"])
    made = bill(accounting)
    assert made.used == Amount(0.5, 2.0, 0.5 * GPU_USD)
    assert made.period.until == second("02T10:30")
    assert made.uses[0].last_end is None


def test_a_job_that_slurm_lost_is_named_and_left_out() -> None:
    made = bill(read(record(State="RUNNING", End="Unknown")))
    assert (made.uses, made.without_end) == ([], ["7"])


@pytest.mark.parametrize(
    ("allocated", "share"),
    [("cpu=12,gres/gpu=1,node=1", 0.25), ("cpu=36,gres/gpu=1,node=1", 0.75), ("cpu=96,node=1", 1)],
)
def test_a_job_on_a_part_of_a_node_has_its_largest_share(allocated: str, share: float) -> None:
    used = bill(read(record(AllocTRES=allocated))).used
    assert (used.node_hours, used.usd) == (share, share * GPU_USD)


def test_without_recorded_gpus_their_hours_follow_from_processors() -> None:
    made = bill(read(record(AllocTRES="cpu=24,node=1"), tracked="cpu,mem,node"))
    assert made.used == Amount(0.5, 2.0, 0.5 * GPU_USD)
    assert made.estimated == ["ml.g5.12xlarge"]
    assert bill(read(record(AllocTRES="cpu=24,node=1"))).used.gpu_hours == 0


def test_gpus_that_are_recorded_by_type_are_added_up() -> None:
    made = bill(read(record(AllocTRES="cpu=4,gres/gpu:a10g=2,gres/gpu:b200=1,node=1")))
    assert made.used.gpu_hours == 3


def test_nodes_of_a_mixed_partition_have_the_price_of_their_group() -> None:
    both = record(
        Partition="all", NNodes="2", NodeList="ip-10-0-0-[20,30]", AllocTRES="cpu=8,node=2"
    )
    made = bill(read(both))
    usd = {use.job.instance_type: use.amount.usd for use in made.uses}
    assert usd == {"ml.g5.12xlarge": 4 / 48 * GPU_USD, "ml.m5.xlarge": CPU_USD}
    assert made.totals(lambda job: job.job)[0].num_jobs == 1


def test_a_node_that_no_longer_exists_has_no_price_in_a_mixed_partition() -> None:
    (use,) = bill(read(record(Partition="all", NodeList="ip-10-0-0-99"))).uses
    assert use.job.instance_type == UNKNOWN
    assert use.amount == Amount(1.0, 4.0, 0.0, 1.0)


def test_hours_without_a_price_are_not_free() -> None:
    unpriced = dataclasses.replace(GPU_NODE, price=None)
    kinds = dataclasses.replace(KINDS, of_groups={**KINDS.of_groups, "workers": unpriced})
    assert bill(read(record()), kinds=kinds).used == Amount(1.0, 4.0, 0.0, 1.0)


def test_idle_is_the_capacity_without_the_jobs() -> None:
    made = bill(read(record()))
    assert made.capacity == Amount(96.0, 288.0, 24 * (3 * GPU_USD + CPU_USD))
    assert made.idle == Amount(95.0, 284.0, made.capacity.usd - GPU_USD)
    # Of a period that has not ended, only the hours until now.
    assert bill(read(clock="02T06:00")).capacity.node_hours == 24.0


def test_totals_of_teams_add_up_to_all_jobs() -> None:
    made = bill(
        read(
            record(),
            record(JobIDRaw="8", User="ben", Account="esmfold", End="2026-11-02T13:00:00"),
            record(JobIDRaw="9", User="cleo", End="2026-11-02T10:45:00"),
        )
    )
    teams = made.totals(lambda job: job.account)
    assert [(total.name, total.num_jobs, total.amount.gpu_hours) for total in teams] == [
        ("esmfold", 1, 12.0),
        ("esm2", 2, 7.0),
    ]
    assert sum((total.amount for total in teams), Amount()) == made.used
