"""Scripts applied to a cluster that runs: the controller, then each worker through Slurm.

Slurm is played by stand-ins; tests/cluster does the same with a real one.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lifecycle.applied_cluster import HASH, SOURCE, STEPS_AND_USERS, Cluster
from tests.lifecycle.node import ADDRESSES, Result, resource_config


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@dataclass(frozen=True)
class Applied:
    """A run in which all went well, on a cluster whose login nodes are in Slurm, too."""

    cluster: Cluster
    result: Result
    bundle_before: list[Path]
    bundle_after: list[Path]


@pytest.fixture(scope="module")
def applied(tmp_path_factory: pytest.TempPathFactory) -> Applied:
    cluster = Cluster(tmp_path_factory.mktemp("applied"))
    cluster.node("ip-10-0-0-20")
    cluster.node(ADDRESSES["login"])
    before = sorted(cluster.bundle.folder.rglob("*"))
    result = cluster.apply()
    return Applied(cluster, result, before, sorted(cluster.bundle.folder.rglob("*")))


def test_the_controller_comes_first_then_all_workers(applied: Applied) -> None:
    """Login nodes that are in Slurm are no workers."""
    result = applied.result
    visits = applied.cluster.visits
    assert result.status == 0, result.output
    assert visits[0] == "controller"
    assert sorted(visits[1:]) == ["ip-10-0-0-31", "ip-10-0-0-32"]
    assert "ip-10-0-0-31: done: 1 steps, 0 changes" in result.output
    assert result.output.endswith("apply: done: the controller and 2 of 2 workers\n")


def test_the_bundle_stays_as_it_is(applied: Applied) -> None:
    assert applied.bundle_before == applied.bundle_after


def test_each_worker_fetches_the_scripts_to_a_folder_of_roots_alone(applied: Applied) -> None:
    cluster = applied.cluster
    for line in (cluster.root / "visits").read_text().splitlines()[1:]:
        _, bundle, mode = line.split()
        assert bundle == HASH and int(mode) == 0o700
    fetches = [call for call in cluster.bundle.stand_ins.calls if call.startswith("aws ")]
    assert len(fetches) == 2
    for call in fetches:
        words = call.split()
        assert words[1:7] == [
            "s3",
            "cp",
            "--region",
            "us-west-2",
            "--only-show-errors",
            "--recursive",
        ]
        assert words[7] == f"{SOURCE}/"
        # Nothing is left of it.
        assert not Path(words[8]).exists() and not Path(words[8]).parent.exists()


def test_jobs_are_small_and_for_one_node(cluster: Cluster) -> None:
    cluster.apply("--nodes", "ip-10-0-0-31")
    (call,) = (call for call in cluster.bundle.stand_ins.calls if call.startswith("srun "))
    for option in (
        "--nodelist=ip-10-0-0-31",
        "--partition=gpu",
        "--nodes=1",
        "--ntasks=1",
        "--mem=512M",
    ):
        assert f" {option} " in call
    assert "--reservation" not in call


def test_a_controller_that_fails_stops_all(cluster: Cluster) -> None:
    cluster.set("broken-controller")
    result = cluster.apply()
    assert result.status == 1
    assert cluster.visits == ["controller"]
    assert "ERROR: step touch failed: it is broken. What to do: mend it" in result.output
    assert "the scripts failed on the controller, and no worker was started" in result.output


def test_a_worker_that_fails_is_named_with_its_step_and_output(cluster: Cluster) -> None:
    cluster.set("broken-ip-10-0-0-31")
    result = cluster.apply()
    assert result.status == 3
    assert "ip-10-0-0-32: done" in result.output
    assert "    run_from_s3: " in result.output
    last = result.output.splitlines()[-2:]
    assert last[0].endswith("done: the controller and 1 of 2 workers")
    assert last[1].endswith(
        "NOT DONE: ip-10-0-0-31: step touch failed: it is broken. What to do: mend it"
    )


@pytest.mark.long
def test_scripts_that_cannot_be_fetched(cluster: Cluster) -> None:
    cluster.set("no-s3")
    result = cluster.apply()
    assert result.status == 3 and cluster.visits == ["controller"]
    assert (
        f"NOT DONE: ip-10-0-0-31: the scripts could not be fetched from {SOURCE}. What to do: "
        in result.output
    )


UNREACHABLE = {
    "ip-10-0-0-41": (
        ("DOWN+DRAIN", "bad disk"),
        "it is DOWN+DRAIN (bad disk); a replaced node gets the new scripts",
    ),
    "ip-10-0-0-42": (
        ("IDLE+DRAIN", "RAM: a b"),
        "someone else has drained it (RAM: a b); resume it (`sudo scontrol update",
    ),
    "ip-10-0-0-43": (("DOWN*", "Not responding"), "it is DOWN+NOT_RESPONDING (Not responding)"),
    "ip-10-0-0-44": (
        ("IDLE+CLOUD+POWERED_DOWN", ""),
        "it is CLOUD+IDLE+POWERED_DOWN; repeat this command when it is up",
    ),
}


def test_nodes_that_cannot_be_reached_are_named(cluster: Cluster) -> None:
    for name, (shown, _) in UNREACHABLE.items():
        cluster.node(name, *shown)
    before = [cluster.state(name) for name in UNREACHABLE]
    result = cluster.apply()
    assert result.status == 3
    assert sorted(cluster.visits[1:]) == ["ip-10-0-0-31", "ip-10-0-0-32"]
    for name, (_, why) in UNREACHABLE.items():
        assert f"NOT DONE: {name}: {why}" in result.output
    assert [cluster.state(name) for name in UNREACHABLE] == before


@pytest.mark.long
def test_a_node_without_room_is_waited_for_and_left(cluster: Cluster) -> None:
    cluster.node("ip-10-0-0-31", "ALLOCATED")
    cluster.set("busy-ip-10-0-0-31")
    # The other node has to begin within this time, too.
    result = cluster.apply("--wait-minutes", "0.1")
    assert result.status == 3
    assert "ip-10-0-0-32: done" in result.output
    assert (
        "no room for a job of one core within 0.1 minutes; jobs on it: 12 (ada); repeat"
        in result.output
    )


def test_a_node_of_a_failed_run_is_reached_through_a_reservation(cluster: Cluster) -> None:
    cluster.node("ip-10-0-0-31", "IDLE+DRAIN", "node-setup: step users failed; see the log")
    result = cluster.apply()
    assert result.status == 0, result.output
    calls = cluster.bundle.stand_ins.calls
    order = [
        next(index for index, call in enumerate(calls) if words in call)
        for words in (
            "scontrol create reservation",
            "scontrol update NodeName=ip-10-0-0-31 State=UNDRAIN",
            "srun --nodelist=ip-10-0-0-31 --partition=gpu --reservation=node-setup-",
            "scontrol delete ReservationName=node-setup-",
        )
    ]
    assert order == sorted(order)
    created = calls[order[0]]
    assert created.endswith(" Nodes=ip-10-0-0-31")
    assert " Users=root " in created and " Flags=MAINT,IGNORE_JOBS,OVERLAP " in created


@pytest.mark.long
@pytest.mark.parametrize("flag", ["no-s3", "busy-ip-10-0-0-31"])
def test_it_is_drained_again_if_the_scripts_do_not_get_that_far(
    cluster: Cluster, flag: str
) -> None:
    cluster.node("ip-10-0-0-31", "IDLE+DRAIN", "node-setup: step users failed; see the log")
    before = cluster.state("ip-10-0-0-31")
    cluster.set(flag)
    assert cluster.apply("--wait-minutes", "0.005").status == 3
    assert cluster.state("ip-10-0-0-31") == before
    assert any(call.startswith("scontrol delete") for call in cluster.bundle.stand_ins.calls)


def test_only_nodes_that_are_there_can_be_chosen(cluster: Cluster) -> None:
    result = cluster.apply("--nodes", "ip-10-0-0-31,ip-10-9-9-9")
    assert result.status == 1 and cluster.visits == ["controller"]
    assert (
        "Slurm has no worker ip-10-9-9-9; its workers are ip-10-0-0-31, ip-10-0-0-32"
        in result.output
    )


def test_it_runs_on_the_primary_controller_alone(cluster: Cluster) -> None:
    config = resource_config()
    config["SlurmConfig"]["PrimaryControllerIp"] = "10.0.0.99"
    cluster.bundle.write_resource_config(json.dumps(config))
    result = cluster.apply()
    assert result.status == 1 and cluster.visits == []
    assert "the primary controller is 10.0.0.99. What to do: run it there" in result.output


def test_one_at_a_time(cluster: Cluster) -> None:
    lock = cluster.root / "run/node-setup-apply.lock"
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        result = cluster.apply()
    assert result.status == 1 and cluster.visits == []
    assert (
        "ERROR: another run of this command holds the lock. What to do: wait for its end"
        in result.output
    )


@pytest.mark.long
def test_continues_after_the_terminal_is_lost(cluster: Cluster) -> None:
    """If the session with the node breaks, the node's log still has all lines."""
    command = (
        f'"{sys.executable}" -s -B "{cluster.bundle.folder}/apply_to_cluster.py" --source {SOURCE}'
    )
    done = subprocess.run(
        ["bash", "-c", f"{command} > >(head --lines 1)"],
        env={"PATH": cluster.bundle.stand_ins.path, "DESTDIR": str(cluster.root)},
        stdout=subprocess.DEVNULL,
        timeout=120,
    )
    assert done.returncode == 0
    assert len(cluster.visits) == 3
    log = (cluster.root / "var/log/provision/provisioning.log").read_text()
    assert log.endswith("done: the controller and 2 of 2 workers\n")


def test_one_more_user_drains_no_node(tmp_path: Path) -> None:
    """Each node gets one job with the step alone."""
    cluster = Cluster(tmp_path, STEPS_AND_USERS)
    held, free = "ip-10-0-0-32", "ip-10-0-0-33"
    cluster.node(held, "IDLE+DRAIN", "node-setup: step touch failed; see the log")
    cluster.node(free)
    result = cluster.apply("--only", "users", "--nodes", f"{held},{free}", "--wait-minutes", "2")
    assert result.status == 3, result.output
    assert cluster.visits == ["controller", free]
    assert f"{free}: done: 1 steps, 0 changes" in result.output
    assert f"NOT DONE: {held}: it is IDLE+DRAIN" in result.output
    calls = cluster.bundle.stand_ins.calls
    assert len([call for call in calls if call.startswith("srun ")]) == 1
    assert not [call for call in calls if call.startswith(("scontrol update", "scontrol create"))]
    # The script that fetches the others has lines of its own.
    assert "NODE_SETUP_STEPS=users,slurm-accounts bash on_init" in "\n".join(calls)
    # The result of the last whole run stays.
    assert not (cluster.root / "var/lib/node-setup/state.json").exists()


def test_one_more_user_waits_for_no_full_node(tmp_path: Path) -> None:
    """The node gets the step before other jobs, when it has room."""
    cluster = Cluster(tmp_path, STEPS_AND_USERS)
    full = "ip-10-0-0-31"
    cluster.set(f"busy-{full}")
    result = cluster.apply("--only", "users", "--nodes", full, "--wait-minutes", "0.005")
    assert result.status == 0, result.output
    assert f"{full}: queued: full; job 13 runs as soon as a core is free" in result.output
    assert "done: the controller and 1 of 1 workers, 1 of them when they have a free core" in (
        result.output
    )
    calls = cluster.bundle.stand_ins.calls
    assert [call for call in calls if call.startswith("scancel ")]
    (queued,) = (call for call in calls if call.startswith("sbatch "))
    assert f" --nodelist={full} " in queued and " --priority=TOP " in queued
    assert "\n".join(calls).count("NODE_SETUP_STEPS=users,slurm-accounts bash on_init") == 2
