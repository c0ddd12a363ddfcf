"""A job of Slurm from a run file and a cluster file: what it takes, and what it is told.

Everything that can be known to be wrong is told here, before anything is copied or a node is taken.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from config.facts.instance_catalogue import instance_type
from config.node_settings import HOME_MOUNT_PATH
from config.slurm_cluster import SlurmCluster, SlurmInstanceGroup
from tools.jobs.bandwidth import bandwidth_of, bandwidth_run
from tools.jobs.checks import (
    Share,
    Wanted,
    accelerators_of,
    data_manifest,
    files_needed,
    listed,
    output_of,
    overrides_of,
    run_problems,
    sizes_of,
)
from workloads.launch.job_file import Job
from workloads.run_file import RunFile
from workloads.stages import STAGES

WITHOUT_USERS = "ubuntu"
"""The image's own user, who is there when the cluster file names none."""
MIN_MINUTES = 10
"""Of the time limit: Slurm's signal to stop comes 300 s before it, or up to 60 s earlier."""
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
    """Whose job it is.

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
    """Where a user's runs, data and downloads are: on Lustre, below the home if it is there."""
    lustre = cluster.storage.lustre.mount_path
    has_home = user in {found.name for found in cluster.access.users} and cluster.storage.home is None
    return f"{lustre}/home/{user}/esm2" if has_home else f"{lustre}/{user}/esm2"


def job_request(
    cluster: SlurmCluster,
    config: RunFile,
    config_text: str,
    overrides: list[str],
    wanted: SlurmWanted,
    *,
    version: str,
) -> dict[str, Any]:
    """What slurm_submit.py takes on the cluster; where the code is, is added when it is there.

    Raises:
        ValueError: listing all that does not fit together.
    """
    problems = folder_problems(cluster, wanted.folder)
    output = output_of(config, wanted.stage, wanted.folder, problems)
    place = placement(cluster, wanted, problems)
    problems += run_problems(
        config,
        wanted,
        place,
        wanted.folder,
        lambda path: is_shared(cluster, path),
        who="nodes",
        where=" or ".join(shared_folders(cluster)),
    )
    if problems:
        raise ValueError(listed(problems))
    job = Job(
        **common_fields(cluster, wanted, place),
        version=version,
        overrides=overrides_of(config, overrides, output),
        run_dir=str(PurePosixPath(wanted.folder) / config.run_dir),
        data_manifest="" if output else data_manifest(config, wanted.stage, wanted.folder),
        output=output,
        needed=files_needed(config, wanted.stage, wanted.folder),
    )
    return {"config": config_text, "job": asdict(job), "sbatch": place.options(wanted, config.name)}


def bandwidth_request(
    cluster: SlurmCluster, settings: list[str], wanted: SlurmWanted, *, version: str
) -> dict[str, Any]:
    """The same for a job that measures all-reduces; ``settings`` are ``at_least=<GB/s>``, or nothing.

    Raises:
        ValueError: listing all that does not fit together.
    """
    problems = folder_problems(cluster, wanted.folder)
    place = placement(cluster, wanted, problems)
    expected = bandwidth_of(place, settings, problems)
    if problems:
        raise ValueError(listed(problems))
    run = bandwidth_run(place.hardware)
    job = Job(
        **common_fields(cluster, wanted, place),
        version=version,
        overrides=(),
        run_dir=str(PurePosixPath(wanted.folder) / "runs" / run),
        data_manifest="",
    )
    name = run.removeprefix("bandwidth-")
    return {"config": expected.text(), "job": asdict(job), "sbatch": place.options(wanted, name)}


@dataclass(frozen=True, kw_only=True)
class Placement(Share):
    """Which nodes a job takes, and what of them."""

    partition: str

    def options(self, wanted: SlurmWanted, name: str) -> list[str]:
        """Of sbatch."""
        fewest, most = self.sizes[0], self.sizes[-1]
        options = [f"--job-name={wanted.stage}-{name}", f"--partition={self.partition}"]
        options += [f"--nodes={fewest}-{most}" if most > fewest else f"--nodes={fewest}"]
        options += [f"--gpus-per-node={self.gpus}"] if self.gpus else []
        options += ["--cpus-per-task=8"] if wanted.stage == "data" and self.hardware.vcpus >= 8 else []
        options += ["--exclusive"] if wanted.stage != "data" else []
        options += [f"--time={wanted.time}"] if wanted.time else []
        return options


def placement(cluster: SlurmCluster, wanted: SlurmWanted, problems: list[str]) -> Placement:
    """Find the nodes, and add to the problems what does not fit.

    Raises:
        ValueError: listing all problems, if there is no such partition.
    """
    if bool(wanted.image) == bool(wanted.python):
        problems.append(
            "image, python: give one of them: IMAGE=<.sqsh file or image> for containers, or "
            "SUBMIT='--python <file>' of an environment that all nodes see"
        )
    if wanted.image and _is_file(wanted.image) and not is_shared(cluster, wanted.image):
        problems.append(
            f"IMAGE: got {wanted.image}; nodes share {' or '.join(shared_folders(cluster))}. make image "
            "TARGET=slurm makes such a file and prints its path"
        )
    minutes = _minutes(wanted.time or "")
    if minutes is not None and minutes < MIN_MINUTES:
        problems.append(
            f"--time: got {wanted.time}, to Slurm {minutes:g} minute(s); give at least {MIN_MINUTES}, since "
            "jobs are stopped 5 minutes before the limit, to go on later. Two hours are 2:00:00"
        )
    groups = _groups(cluster, wanted.partition, problems)
    if not groups:
        raise ValueError(listed(problems))
    hardware = instance_type(groups[0].instance_type)
    accelerators = accelerators_of(hardware, wanted.stage, wanted.gpus_per_node, problems, option="partition")
    bounds = HANG_SECONDS["gpu" if accelerators and not hardware.is_neuron else "cpu"]
    if wanted.hang_seconds not in bounds:
        problems.append(
            f"--hang-seconds: got {wanted.hang_seconds}; give {bounds[0]} to {bounds[-1]}, "
            "and more than a step takes"
        )
    return Placement(
        hardware=hardware,
        partition=str(groups[0].partition),
        accelerators=accelerators,
        sizes=_sizes(groups, wanted, problems),
    )


def common_fields(cluster: SlurmCluster, wanted: SlurmWanted, place: Placement) -> dict[str, Any]:
    """Fields of a job that do not depend on what it does."""
    return {
        "stage": wanted.stage,
        "code": "",
        "work_folder": wanted.folder,
        "python": wanted.python or "python3",
        "image": wanted.image,
        "mounts": tuple(shared_folders(cluster)),
        "min_nodes": place.sizes[0],
        "gpus_per_node": place.gpus,
        "neuron_devices": place.neuron_devices,
        "processes_per_node": place.num_processes,
        "efa": bool(place.accelerators and place.sizes[-1] > 1 and place.hardware.num_efa),
        "hang_seconds": wanted.hang_seconds,
    }


def shared_folders(cluster: SlurmCluster) -> list[str]:
    """Where the file systems are that all nodes have."""
    return [cluster.storage.lustre.mount_path, *([HOME_MOUNT_PATH] if cluster.storage.home else [])]


def worker_groups(cluster: SlurmCluster) -> list[SlurmInstanceGroup]:
    """Those in a partition, the ones with accelerators first."""
    workers = [group for group in cluster.instance_groups if group.role == "worker" and group.partition]
    return sorted(workers, key=lambda group: instance_type(group.instance_type).num_accelerators == 0)


def is_shared(cluster: SlurmCluster, path: str) -> bool:
    return ".." not in Path(path).parts and any(
        PurePosixPath(path).is_relative_to(mount) for mount in shared_folders(cluster)
    )


def _is_file(image: str) -> bool:
    """What begins with a slash or a dot is one to pyxis; what ends like one was meant to be one."""
    return image.startswith(("/", ".")) or image.endswith((".sqsh", ".squashfs"))


def folder_problems(cluster: SlurmCluster, folder: str) -> list[str]:
    if is_shared(cluster, folder):
        return []
    return [f"--folder: got {folder}; nodes share {' or '.join(shared_folders(cluster))}"]


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


def _sizes(groups: list[SlurmInstanceGroup], wanted: SlurmWanted, problems: list[str]) -> range:
    there = sum(group.num_instances for group in groups)
    asked = wanted.nodes or str(there if STAGES[wanted.stage].trains or wanted.stage == "bandwidth" else 1)
    return sizes_of(asked, wanted.stage, there, problems, who=f"partition {groups[0].partition}")


def _minutes(time: str) -> float | None:
    """Of ``M``, ``M:S``, ``H:M:S``, ``D-H``, ``D-H:M`` or ``D-H:M:S``; the rest is Slurm's to refuse."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time)
    if found is None:
        return None
    days, *rest = (int(part or 0) for part in found.groups())
    if found[1] is None and found[4] is None:
        rest = [0, *rest[:2]]
    hours, minutes, seconds = rest
    return (days * 24 + hours) * 60 + minutes + seconds / 60
