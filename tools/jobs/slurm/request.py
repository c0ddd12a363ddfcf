"""Request for a Slurm job, from a run file and a cluster file."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

from config.cluster import BoughtAs
from config.node_settings import HOME_MOUNT_PATH
from config.slurm_cluster import SlurmCluster, SlurmInstanceGroup, node_weights
from seqlm.launch.job_file import Job
from seqlm.runs.stages import STAGES
from tools.jobs.checks import (
    DATA_CPUS,
    AvailableNodes,
    Share,
    SharedFiles,
    Wanted,
    accelerator_problems,
    accelerators_of,
    listed,
    size_problems,
    sizes_of,
)
from tools.jobs.work import NamedRun, Order, work_of, work_problems

WITHOUT_USERS = "ubuntu"
"""User of HyperPod's image, for clusters without users in their file."""
MIN_MINUTES = 10
"""Shortest time limit. Slurm's signal to stop comes 300 s before it, or up to 60 s earlier."""
HANG_SECONDS = {"cpu": range(10, 86_401), "gpu": range(150, 541)}
"""Allowed values of ``--hang-seconds``, well above the second between two looks at the processes. On GPUs a
process that waits for a crashed one has not hung: torchrun ends it after 120 s. NCCL ends processes that wait
for 600 s, without stacks."""


@dataclass(frozen=True, kw_only=True)
class SlurmWanted(Wanted):
    """Options of ``make ... TARGET=slurm``."""

    folder: str
    python: str | None = None
    partition: str | None = None
    capacity: str | None = None
    """Kinds of capacity of the nodes, as ``plan,on_demand``; None takes every kind."""
    time: str | None = None
    hang_seconds: int = Job.hang_seconds


def job_user(cluster: SlurmCluster, user: str | None, here: str | None = None) -> str:
    """Return the user of the job.

    Args:
        cluster: cluster file.
        user: value of ``--user``.
        here: login name if this runs on the cluster, where everybody submits for themselves.

    Raises:
        ValueError: if the cluster has several users and none was given, or if it does not have the given one.
    """
    if here is not None:
        if user not in (None, here):
            raise ValueError(
                f"--user: got {user}; on the cluster, jobs belong to {here}: log in as {user}"
            )
        return here
    names = [found.name for found in cluster.access.users] or [WITHOUT_USERS]
    if user is None and len(names) > 1:
        raise ValueError(f"--user: got none; give the user of the job: {', '.join(names)}")
    if user is not None and user not in {*names, WITHOUT_USERS}:
        raise ValueError(f"--user: got {user}; the cluster file has {', '.join(names)}")
    return user or names[0]


def user_folder(cluster: SlurmCluster, user: str) -> str:
    """Return the folder of a user's runs, data and downloads on Lustre, below the home if Lustre has it.

    Without Lustre, it is below the home.
    """
    if cluster.storage.lustre is None:
        return f"{HOME_MOUNT_PATH}/{user}/esm2"
    lustre = cluster.storage.lustre.mount_path
    has_home = (
        user in {found.name for found in cluster.access.users} and cluster.storage.home is None
    )
    return f"{lustre}/home/{user}/esm2" if has_home else f"{lustre}/{user}/esm2"


def job_request(
    cluster: SlurmCluster,
    run: NamedRun | None,
    overrides: Sequence[str],
    wanted: SlurmWanted,
    *,
    version: str,
) -> dict[str, Any]:
    """Return the request for slurm_submit.py on the cluster; the code's path is added after its upload.

    Args:
        cluster: cluster file.
        run: run of the stage; None for a bandwidth job.
        overrides: overrides of the run, or settings of a bandwidth job.
        wanted: options of the job.
        version: version of the code.

    Raises:
        ValueError: listing everything that does not fit together.
    """
    shared = shared_files(cluster)
    problems = [
        *shared.folder_problems(wanted.folder),
        *placement_problems(cluster, wanted, shared),
    ]
    groups = chosen_groups(cluster, wanted)
    if not groups:
        raise ValueError(listed(problems))
    place = placement(groups, wanted)
    order = Order(
        run=run, settings=overrides, wanted=wanted, place=place, folder=wanted.folder, shared=shared
    )
    problems += work_problems(order)
    if problems:
        raise ValueError(listed(problems))
    work = work_of(order)
    job = Job(
        stage=wanted.stage,
        code="",
        version=version,
        work_folder=wanted.folder,
        overrides=work.overrides,
        run_dir=work.run_dir,
        data_manifest=work.data_manifest,
        python=wanted.python or "python3",
        image=wanted.image,
        mounts=tuple(shared.mounts),
        gpus_per_node=place.gpus,
        processes_per_node=place.num_processes,
        efa=bool(place.accelerators and place.sizes[-1] > 1 and place.hardware.num_efa),
        neuron_devices=place.neuron_devices,
        min_nodes=place.sizes[0],
        hang_seconds=wanted.hang_seconds,
        output=work.output,
        needed=work.needed,
    )
    name = work.run.removeprefix("bandwidth-") if run is None else work.run
    return {"config": work.config, "job": asdict(job), "sbatch": place.options(wanted, name)}


@dataclass(frozen=True, kw_only=True)
class Placement(Share):
    """Nodes of a job, and its share of them."""

    partition: str
    """Partition of the nodes."""
    capacity: tuple[str, ...] = ()
    """Features of Slurm of which each node has one; empty takes every node."""

    def options(self, wanted: SlurmWanted, name: str) -> list[str]:
        """Return the options of sbatch."""
        fewest = self.sizes[0]
        most = self.sizes[-1]
        nodes = f"{fewest}-{most}" if most > fewest else str(fewest)
        options = [
            f"--job-name={wanted.stage}-{name}",
            f"--partition={self.partition}",
            f"--nodes={nodes}",
        ]
        if self.capacity:
            options.append(f"--constraint={'|'.join(self.capacity)}")
        if self.gpus:
            options.append(f"--gpus-per-node={self.gpus}")
        if not STAGES[wanted.stage].one_process:
            options.append("--exclusive")
        elif self.hardware.vcpus >= DATA_CPUS:
            options.append(f"--cpus-per-task={DATA_CPUS}")
        if wanted.time:
            options.append(f"--time={wanted.time}")
        return options


def placement(groups: Sequence[SlurmInstanceGroup], wanted: SlurmWanted) -> Placement:
    """Return the nodes of a job on the groups of a partition."""
    hardware = groups[0].hardware
    return Placement(
        hardware=hardware,
        partition=str(groups[0].partition),
        capacity=_kinds(wanted),
        accelerators=accelerators_of(hardware, wanted),
        sizes=sizes_of(wanted, _available(groups)),
    )


def placement_problems(
    cluster: SlurmCluster, wanted: SlurmWanted, shared: SharedFiles
) -> Iterator[str]:
    """Yield what is wrong with the software and the nodes of a job."""
    yield from _software_problems(wanted, shared)
    minutes = _minutes(wanted.time or "")
    if minutes is not None and minutes < MIN_MINUTES:
        yield (
            f"--time: got {wanted.time}, to Slurm {minutes:g} minute(s); give at least {MIN_MINUTES}, "
            "because jobs are stopped 5 minutes before the limit, to resume later. Two hours are 2:00:00"
        )
    groups = partition_groups(cluster, wanted.partition)
    if not groups:
        names = _partitions(cluster)
        given = wanted.partition or "none"
        yield f"partition: got {given}; the cluster file has {', '.join(names) or 'none'}"
        return
    if problem := _capacity_problem(cluster, wanted, groups):
        yield problem
        return
    groups = chosen_groups(cluster, wanted)
    types = sorted({group.types_text for group in groups})
    if len(types) > 1:
        yield (
            f"partition: {groups[0].partition} has {', '.join(types)}; a run needs nodes of one type, or of "
            "one group with instance_types"
        )
    hardware = groups[0].hardware
    yield from accelerator_problems(hardware, wanted, option="partition")
    has_gpus = accelerators_of(hardware, wanted) and not hardware.is_neuron
    bounds = HANG_SECONDS["gpu" if has_gpus else "cpu"]
    if wanted.hang_seconds not in bounds:
        yield (
            f"--hang-seconds: got {wanted.hang_seconds}; give {bounds[0]} to {bounds[-1]}, "
            "and more than a step takes"
        )
    yield from size_problems(wanted, _available(groups))


def _software_problems(wanted: SlurmWanted, shared: SharedFiles) -> Iterator[str]:
    """Yield what is wrong with the image or the Python of a job."""
    if bool(wanted.image) == bool(wanted.python):
        yield (
            "image, python: give one of them: IMAGE=<.sqsh file or image> for containers (make image "
            "TARGET=slurm makes such a file and prints its path), or SUBMIT='--python <file>' of an "
            "environment that all nodes see"
        )
    image = wanted.image or ""
    # A file has a slash or dot at the start, as in pyxis, or the suffix of a file.
    is_file = image.startswith(("/", ".")) or image.endswith((".sqsh", ".squashfs"))
    if is_file and not shared.has(image):
        yield (
            f"IMAGE: got {wanted.image}; nodes share {shared.where}. make image "
            "TARGET=slurm makes such a file and prints its path"
        )


def _available(groups: Sequence[SlurmInstanceGroup]) -> AvailableNodes:
    number = sum(group.num_instances for group in groups)
    return AvailableNodes(number, name=f"partition {groups[0].partition}")


def shared_files(cluster: SlurmCluster) -> SharedFiles:
    """Return the file systems that all nodes mount."""
    home = [HOME_MOUNT_PATH] if cluster.storage.home else []
    lustre = [cluster.storage.lustre.mount_path] if cluster.storage.lustre else []
    return SharedFiles([*lustre, *home], who="nodes")


def worker_groups(cluster: SlurmCluster) -> list[SlurmInstanceGroup]:
    """Return the worker groups of partitions, those with accelerators first."""
    workers = [
        group for group in cluster.instance_groups if group.role == "worker" and group.partition
    ]
    return sorted(workers, key=lambda group: group.hardware.num_accelerators == 0)


def _partitions(cluster: SlurmCluster) -> list[str]:
    """Return the names of the partitions, those with accelerators first."""
    return list(dict.fromkeys(str(group.partition) for group in worker_groups(cluster)))


def chosen_groups(cluster: SlurmCluster, wanted: SlurmWanted) -> list[SlurmInstanceGroup]:
    """Return the worker groups of a job's partition whose capacity is of a wanted kind."""
    groups = partition_groups(cluster, wanted.partition)
    kinds = _kinds(wanted)
    return [group for group in groups if not kinds or group.bought_as in kinds]


def _kinds(wanted: SlurmWanted) -> tuple[str, ...]:
    return tuple(wanted.capacity.split(",")) if wanted.capacity else ()


def _capacity_problem(
    cluster: SlurmCluster, wanted: SlurmWanted, groups: Sequence[SlurmInstanceGroup]
) -> str | None:
    """Return what is wrong with the value of ``--capacity``, for the groups of the partition."""
    kinds = _kinds(wanted)
    if not kinds:
        return None
    start = f"--capacity: got {wanted.capacity}"
    if not set(kinds) <= set(get_args(BoughtAs)):
        return f"{start}; give one or more of {', '.join(get_args(BoughtAs))}, with commas between"
    if not node_weights(cluster):
        return f"{start}; all worker groups are {groups[0].bought_as}, so nodes have no feature; omit it"
    found = sorted({group.bought_as for group in groups})
    if not set(kinds) & set(found):
        return f"{start}; partition {groups[0].partition} has {', '.join(found)}"
    return None


def partition_groups(cluster: SlurmCluster, partition: str | None) -> list[SlurmInstanceGroup]:
    """Return the worker groups of a partition; by default of the first one with accelerators."""
    chosen = partition or next(iter(_partitions(cluster)), None)
    return [group for group in worker_groups(cluster) if group.partition == chosen]


def _minutes(time: str) -> float | None:
    """Return the minutes of ``M``, ``M:S``, ``H:M:S``, ``D-H``, ``D-H:M`` or ``D-H:M:S``, otherwise None."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time)
    if found is None:
        return None
    days, *rest = (int(part or 0) for part in found.groups())
    if found[1] is None and found[4] is None:
        rest = [0, *rest[:2]]
    hours, minutes, seconds = rest
    return (days * 24 + hours) * 60 + minutes + seconds / 60
