"""A job of Slurm from a run file and a cluster file."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from config.facts.instance_catalogue import instance_type
from config.node_settings import HOME_MOUNT_PATH
from config.slurm_cluster import SlurmCluster, SlurmInstanceGroup
from seqlm.launch.job_file import Job
from seqlm.runs.stages import STAGES
from tools.jobs.checks import DATA_CPUS, Share, SharedFiles, Wanted, accelerators_of, listed, sizes_of
from tools.jobs.work import NamedRun, work_of

WITHOUT_USERS = "ubuntu"
"""The image's own user, who is there when the cluster file names none."""
MIN_MINUTES = 10
"""Shortest time limit. Slurm's signal to stop comes 300 s before it, or up to 60 s earlier."""
HANG_SECONDS = {"cpu": range(10, 86_401), "gpu": range(150, 541)}
"""Well above the second in which the processes are looked at. On GPUs a process that waits for a crashed one
has not hung: torchrun ends it after 120 s. What waits for 600 s, NCCL ends without stacks."""


@dataclass(frozen=True, kw_only=True)
class SlurmWanted(Wanted):
    """Options of ``make ... TARGET=slurm``."""

    folder: str
    python: str | None = None
    partition: str | None = None
    time: str | None = None
    hang_seconds: int = Job.hang_seconds


def job_user(cluster: SlurmCluster, user: str | None, here: str | None = None) -> str:
    """Return the user of the job.

    Args:
        cluster: has the users.
        user: who was named, if anybody.
        here: who asks, on a machine of the cluster, where everybody submits for themselves.

    Raises:
        ValueError: if the cluster has several users and none was named, or one that it has not.
    """
    if here is not None:
        if user not in (None, here):
            raise ValueError(
                f"--user: got {user}; on the cluster jobs are {here}'s, who asks: log in as {user}"
            )
        return here
    names = [found.name for found in cluster.access.users] or [WITHOUT_USERS]
    if user is None and len(names) > 1:
        raise ValueError(f"--user: name one of {', '.join(names)}: whose job is it?")
    if user is not None and user not in {*names, WITHOUT_USERS}:
        raise ValueError(f"--user: got {user}; the cluster file has {', '.join(names)}")
    return user or names[0]


def user_folder(cluster: SlurmCluster, user: str) -> str:
    """Return the folder of a user's runs, data and downloads: on Lustre, below the home if it is there."""
    lustre = cluster.storage.lustre.mount_path
    has_home = user in {found.name for found in cluster.access.users} and cluster.storage.home is None
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
        cluster: has the nodes.
        run: the run; None for a bandwidth job.
        overrides: settings, as ``work_of`` takes them.
        wanted: the job's options.
        version: of the code.

    Raises:
        ValueError: listing all that does not fit together.
    """
    shared = shared_files(cluster)
    problems = shared.folder_problems(wanted.folder)
    place = placement(cluster, wanted, shared, problems)
    work = work_of(run, overrides, wanted, place, wanted.folder, shared, problems)
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

    def options(self, wanted: SlurmWanted, name: str) -> list[str]:
        """Return the options of sbatch."""
        fewest, most = self.sizes[0], self.sizes[-1]
        options = [f"--job-name={wanted.stage}-{name}", f"--partition={self.partition}"]
        options += [f"--nodes={fewest}-{most}" if most > fewest else f"--nodes={fewest}"]
        options += [f"--gpus-per-node={self.gpus}"] if self.gpus else []
        if not STAGES[wanted.stage].one_process:
            options.append("--exclusive")
        elif self.hardware.vcpus >= DATA_CPUS:
            options.append(f"--cpus-per-task={DATA_CPUS}")
        options += [f"--time={wanted.time}"] if wanted.time else []
        return options


def placement(
    cluster: SlurmCluster, wanted: SlurmWanted, shared: SharedFiles, problems: list[str]
) -> Placement:
    """Find the nodes, and add to the problems what does not fit.

    Raises:
        ValueError: listing all problems, if there is no such partition.
    """
    if bool(wanted.image) == bool(wanted.python):
        problems.append(
            "image, python: give one of them: IMAGE=<.sqsh file or image> for containers (make image "
            "TARGET=slurm makes such a file and prints its path), or SUBMIT='--python <file>' of an "
            "environment that all nodes see"
        )
    image = wanted.image or ""
    # A file has a slash or dot at the start, as in pyxis, or the suffix of a file.
    is_file = image.startswith(("/", ".")) or image.endswith((".sqsh", ".squashfs"))
    if is_file and not shared.has(image):
        problems.append(
            f"IMAGE: got {wanted.image}; nodes share {shared.where}. make image "
            "TARGET=slurm makes such a file and prints its path"
        )
    minutes = _minutes(wanted.time or "")
    if minutes is not None and minutes < MIN_MINUTES:
        problems.append(
            f"--time: got {wanted.time}, to Slurm {minutes:g} minute(s); give at least {MIN_MINUTES}, since "
            "jobs are stopped 5 minutes before the limit, to resume later. Two hours are 2:00:00"
        )
    groups = _groups(cluster, wanted.partition, problems)
    if not groups:
        raise ValueError(listed(problems))
    hardware = instance_type(groups[0].instance_type)
    accelerators = accelerators_of(hardware, wanted, problems, option="partition")
    bounds = HANG_SECONDS["gpu" if accelerators and not hardware.is_neuron else "cpu"]
    if wanted.hang_seconds not in bounds:
        problems.append(
            f"--hang-seconds: got {wanted.hang_seconds}; give {bounds[0]} to {bounds[-1]}, "
            "and more than a step takes"
        )
    partition, there = str(groups[0].partition), sum(group.num_instances for group in groups)
    return Placement(
        hardware=hardware,
        partition=partition,
        accelerators=accelerators,
        sizes=sizes_of(wanted, there, problems, who=f"partition {partition}"),
    )


def shared_files(cluster: SlurmCluster) -> SharedFiles:
    home = [HOME_MOUNT_PATH] if cluster.storage.home else []
    return SharedFiles([cluster.storage.lustre.mount_path, *home], who="nodes")


def worker_groups(cluster: SlurmCluster) -> list[SlurmInstanceGroup]:
    """Those in a partition, the ones with accelerators first."""
    workers = [group for group in cluster.instance_groups if group.role == "worker" and group.partition]
    return sorted(workers, key=lambda group: instance_type(group.instance_type).num_accelerators == 0)


def _groups(cluster: SlurmCluster, partition: str | None, problems: list[str]) -> list[SlurmInstanceGroup]:
    """Worker groups of the partition, or of the first one with accelerators."""
    workers = worker_groups(cluster)
    names = list(dict.fromkeys(str(group.partition) for group in workers))
    chosen = partition or next(iter(names), None)
    if chosen not in names:
        problems.append(f"partition: got {chosen}; the cluster file has {', '.join(names) or 'none'}")
        return []
    groups = [group for group in workers if group.partition == chosen]
    if len(types := sorted({group.instance_type for group in groups})) > 1:
        problems.append(f"partition: {chosen} has {', '.join(types)}; a run needs nodes of one type")
    return groups


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
