"""Settings of nodes from ``settings.json`` beside the scripts, which the cluster file determines.

config/node_settings.py renders and checks the file. Here, a missing, unknown or wrongly typed key means that
scripts and settings have different versions.
"""

import json
import types
import typing
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from node_setup.failure import SetupError

Role = Literal["controller", "login", "worker"]
Section = TypeVar("Section")


@dataclass(frozen=True)
class InstanceGroup:
    role: Role
    instance_type: str
    partition: str | None
    num_gpus: int
    num_neuron_devices: int
    num_efa_interfaces: int
    weight: int | None
    """Slurm's weight of the nodes; null if all worker groups are alike, like ``feature``."""
    feature: str | None
    """Slurm's feature of the nodes: plan, on_demand or spot."""


@dataclass(frozen=True)
class UserGroup:
    name: str
    gid: int


@dataclass(frozen=True)
class User:
    name: str
    uid: int
    group: str
    """Primary group; one of the settings' groups."""
    groups: tuple[str, ...]
    """Further groups, of the settings."""
    ssh_keys: tuple[str, ...]
    account: str | None
    """Slurm account that jobs are charged to."""
    admin: bool
    """May become root with sudo, and administers Slurm."""


@dataclass(frozen=True)
class JobLimits:
    """Limits of jobs together; null sets none."""

    max_jobs: int | None
    max_submitted_jobs: int | None
    max_nodes: int | None
    max_gpus: int | None


@dataclass(frozen=True)
class Account(JobLimits):
    name: str
    parent: str | None
    """Null is Slurm's root account."""
    fairshare: int
    qos: tuple[str, ...]
    """QOS of the account's jobs; empty has those of the parent."""
    default_qos: str | None


@dataclass(frozen=True)
class Qos(JobLimits):
    name: str
    priority: int | None
    max_time: str | None
    """Longest time of a job, as days-hours:minutes."""
    per_user: JobLimits | None


@dataclass(frozen=True)
class PartitionOptions:
    name: str
    default: bool
    max_time: str | None
    default_time: str | None
    max_nodes: int | None
    priority_tier: int | None
    qos: str | None
    allow_qos: tuple[str, ...]
    """Empty allows all, as does an empty ``allow_accounts``."""
    allow_accounts: tuple[str, ...]


@dataclass(frozen=True)
class Scheduling:
    enforce: bool
    """slurm.conf has to hold jobs to accounts, QOS and limits."""
    qos: tuple[Qos, ...]
    partitions: tuple[PartitionOptions, ...]


@dataclass(frozen=True)
class Studio:
    """SageMaker Studio. Its spaces see folders of the Lustre file system."""

    partitions: Literal["shared", "per_profile"]
    shared_uids: tuple[int, ...]
    """Users who may enter the folder that all spaces share."""
    login_spaces: bool
    """Spaces that are login nodes need Slurm's commands and munge's key."""


@dataclass(frozen=True)
class LustreEfa:
    """FSx's program that sets up the EFA client of Lustre."""

    url: str
    sha256: str | None
    """Null until the checksum is pinned; the program is not run then."""


@dataclass(frozen=True)
class Settings:
    cluster_name: str
    region: str
    lustre_mount_path: str | None
    """Null without a Lustre file system; homes are on OpenZFS then."""
    shared_path: str
    """Directory of code and images, which all nodes share: Lustre's mount path, or one below the homes."""
    bucket_mount_path: str | None
    """Mount path of the data bucket; null mounts none."""
    lustre_efa: LustreEfa | None
    """Null if the file system does not accept EFA traffic."""
    home_mount_path: str | None
    """Mount path of FSx for OpenZFS; null without one."""
    instance_groups: dict[str, InstanceGroup]
    groups: tuple[UserGroup, ...]
    users: tuple[User, ...]
    accounts: tuple[Account, ...]
    scheduling: Scheduling | None
    """Null leaves QOS, limits and options of partitions to others."""
    proxy: dict[str, str]
    """Variables of the HTTP proxy in both spellings; empty without a proxy."""
    external_accounting: bool
    """Slurm's accounting is in a database on RDS rather than on the controller."""
    container_storage: Literal["local_disk", "unchanged"]
    pam_slurm_adopt: bool
    metrics: bool
    cloudwatch_agent: bool
    health_check_prolog: bool
    workload_code: bool
    studio: Studio | None
    downloads: Literal["internet", "artifact_bucket"]


@dataclass(frozen=True)
class Mlflow:
    """SageMaker's managed MLflow."""

    tracking_uri: str
    role_arn: str
    """Role of jobs, which allows them only to log runs."""


@dataclass(frozen=True)
class StudioDeployment:
    requests_url: str | None
    """Queue of requests for partitions; null if all profiles share one folder."""
    acknowledgements_url: str | None
    login_secret: str | None
    """ARN of the secret that login spaces read; null without such spaces."""


@dataclass(frozen=True)
class Deployment:
    """Values that are known only after the deployment of the stacks, from ``deployment.json``."""

    artifact_bucket: str
    data_bucket: str | None
    """Bucket that the nodes mount; null mounts none."""
    workload_s3_uri: str
    """Training code, below a prefix that names its contents."""
    remote_write_url: str | None
    """Remote-write address of Amazon Managed Prometheus; null without a workspace."""
    mlflow: Mlflow | None
    """Null if runs are logged to local folders."""
    studio: StudioDeployment | None
    """Null without SageMaker Studio."""


def read_section(path: Path, kind: type[Section]) -> Section:
    """Read a JSON file into a dataclass.

    Raises:
        SetupError: naming the file and the key, if it does not hold exactly that.
    """
    remedy = "upload scripts and settings together: `make deploy`, then `make apply-lifecycle` for this node"
    try:
        return typing.cast(Section, _typed(json.loads(path.read_text()), kind, where=""))
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}", remedy) from None
    except json.JSONDecodeError as error:
        raise SetupError(f"{path} is not JSON: {error}", remedy) from None
    except ValueError as error:
        raise SetupError(f"{path}: {error}", remedy) from None


def _typed(value: Any, kind: Any, where: str) -> Any:
    """Convert ``value`` to ``kind``, or raise ValueError."""
    if is_dataclass(kind):
        return _section(value, kind, where)
    origin = get_origin(kind)
    arguments = get_args(kind)
    if origin is Literal and value in arguments:
        return value
    if origin in (Union, types.UnionType):
        return None if value is None else _typed(value, arguments[0], where)
    if origin is tuple and isinstance(value, list):
        return tuple(
            _typed(item, arguments[0], f"{where}[{index}]") for index, item in enumerate(value)
        )
    if origin is dict and isinstance(value, dict):
        return {key: _typed(item, arguments[1], f"{where}.{key}") for key, item in value.items()}
    if origin is None and type(value) is kind:
        return value
    wanted = getattr(kind, "__name__", str(kind))
    if origin is Literal:
        wanted = " or ".join(map(repr, arguments))
    raise ValueError(f"{where.lstrip('.')}: got {value!r}; expected {wanted}")


def _section(value: Any, kind: Any, where: str) -> Any:
    names = [field.name for field in fields(kind)]
    if not isinstance(value, dict) or sorted(value) != sorted(names):
        got = sorted(value) if isinstance(value, dict) else repr(value)
        raise ValueError(
            f"{where.lstrip('.') or 'the file'}: got {got}; expected the keys {sorted(names)}"
        )
    hints = get_type_hints(kind)
    return kind(**{name: _typed(value[name], hints[name], f"{where}.{name}") for name in names})
