"""Valid files are accepted: the shipped files, and values at the limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from config.eks_cluster import EksCluster
from config.facts.regions import ZONE_ID_PREFIXES
from config.public_key import TYPES
from config.reading.loader import load_cluster, load_slurm_cluster
from config.slurm_cluster import SlurmCluster
from tests.config.cluster_documents import DELETED, document

SHIPPED = sorted(Path("clusters").glob("*.yaml"))

_CLOSED = {"network.internet": "none", "network.interface_endpoints": True}
KEYS = Path(__file__).with_name("public_keys.txt").read_text().splitlines()
"""One key per type, in the form that ssh-keygen creates with or without a security key. The private keys were
discarded."""

EDGES: dict[str, tuple[str, dict[str, Any]]] = {
    "existing VPC": ("existing", {}),
    "existing VPC with a proxy": (
        "existing",
        {"network.proxy": {"url": "http://10.4.0.9:3128", "no_proxy": [".lab", "10.0.0.0/8"]}},
    ),
    "existing VPC with a database": ("existing", {"accounting_database": {}}),
    "longest name": ("small", {"name": "a23456789-123456789-1234"}),
    "forty tags": ("small", {"tags": {f"tag{index}": "x" * 255 for index in range(40)}}),
    "closed network with a mirror": (
        "small",
        _CLOSED | {"node_setup.downloads": "artifact_bucket"},
    ),
    "closed network without downloads": (
        "small",
        _CLOSED | {"prometheus": False, "node_setup.cloudwatch_agent": True},
    ),
    "users and groups at the limits": (
        "small",
        {
            "access.groups": [{"name": "g" * 32, "gid": 2000}, {"name": "b", "gid": 59999}],
            "access.users": [
                {"name": "u" * 32, "uid": 59999, "group": "b", "groups": ["g" * 32, "b"]},
                # This is also the number of a group that other users have.
                {"name": "b", "uid": 2000, "group": "b", "ssh_keys": KEYS},
            ],
        },
    ),
    "groups without EFA in two zones, and two training plans in two zones": (
        "existing",
        {
            "instance_groups": [
                {
                    "name": "controller",
                    "role": "controller",
                    "instance_type": "ml.m5.4xlarge",
                    "num_instances": 1,
                },
                *(
                    {
                        "name": f"{kind[:2]}-{zone}",
                        "role": "worker",
                        "partition": "small" if plan is None else f"p5-{zone}",
                        "instance_type": f"ml.{kind}",
                        "num_instances": 1,
                        "availability_zone_id": zone,
                        "training_plan_arn": plan and f"{plan}-{zone}",
                    }
                    for kind, plan in (
                        ("g5.2xlarge", None),
                        (
                            "p5.48xlarge",
                            "arn:aws:sagemaker:us-west-2:123456789012:training-plan/plan",
                        ),
                    )
                    for zone in ("usw2-az4", "usw2-az1")
                ),
            ],
        },
    ),
    "numbers of a company's directory": (
        "small",
        {
            "access.id_ranges": [
                {"owner": "Active Directory", "first": 1640000000, "last": 1640999999}
            ],
            "access.groups": [{"name": "lab", "gid": 1640000513}],
            "access.users": [
                {"name": "ada", "uid": 1640001103, "group": "lab"},
                {"name": "ben", "uid": 2001},
            ],
        },
    ),
    "accounts deep below one another, and not in order": (
        "small",
        {
            "access.accounts": [
                {"name": "c", "parent": "b", "fairshare": 2**31 - 2},
                {"name": "b", "parent": "a"},
                {"name": "a", "parent": None},
            ]
        },
    ),
    "QOS, limits and options of partitions": (
        "p5",
        {
            "access.accounts[esm2].qos": ["normal", "long"],
            "access.accounts[esm2].default_qos": "long",
            "access.accounts[esm2].max_gpus": 0,
            "access.accounts[structure].max_jobs": 2**32 - 3,
            "scheduling": {
                "enforce": True,
                "qos": [
                    {"name": "normal", "max_time": "0-00:01"},
                    {"name": "long", "priority": 2**31 - 1, "per_user": {"max_nodes": 4}},
                ],
                "partitions": [
                    {"name": "dev", "max_time": "0-01:00", "default_time": "0-01:00"},
                    {
                        "name": "p5",
                        "default": True,
                        "qos": "long",
                        "allow_qos": ["normal", "long"],
                        "allow_accounts": ["proteins", "esm2"],
                        "priority_tier": 65533,
                        "max_nodes": 8,
                    },
                ],
            },
        },
    ),
    "users with homes of their own beside an exported /home": (
        "p5",
        {"storage.data_bucket.lustre_path": "/home"},
    ),
    "exported directory whose name begins like that of homes": (
        "small",
        {
            "storage.data_bucket.lustre_path": "/homes",
            "access.users": [{"name": "ada", "uid": 2001}],
        },
    ),
    "logins adopted by jobs": ("p5", {"node_setup.pam_slurm_adopt": True}),
    "key of the region": (
        "small",
        {
            "storage.kms": "arn:aws:kms:us-west-2:123456789012:key/mrk-0123456789abcdef0123456789abcdef"
        },
    ),
    "slowest Lustre with EFA": (
        "p5",
        {"storage.lustre.capacity_gib": 38400, "storage.lustre.throughput_mbps_per_tib": 125},
    ),
    "most metadata": ("p5", {"storage.lustre.metadata_iops": 192000}),
    "no Lustre, with the bucket's files": (
        "small",
        {
            "storage.lustre": "none",
            "storage.home": {},
            "storage.data_bucket": {"mount_path": "/data"},
        },
    ),
    "unlinked Lustre with backups": (
        "small",
        {"storage.lustre.backup_days": 90, "storage.data_bucket": {"lustre_path": None}},
    ),
    "mount whose name begins like a system directory": (
        "small",
        {"storage.lustre.mount_path": "/homes/fsx"},
    ),
    "directory whose name begins like the mount's": (
        "small",
        {"storage.data_bucket": {"lustre_path": "/fsx2"}},
    ),
    "no workers yet": ("small", {"instance_groups[workers].num_instances": 0}),
    "login node with a GPU": ("p5", {"instance_groups[login].instance_type": "ml.g5.xlarge"}),
    "CPU workers in another zone": (
        "p5",
        {
            "instance_groups[p5].instance_type": "ml.c6i.32xlarge",
            "instance_groups[p5].availability_zone_id": "use1-az4",
            "instance_groups[p5].deep_health_checks": DELETED,
            "instance_groups[p5].training_plan_arn": DELETED,
        },
    ),
    "subnet that is just large enough": ("p5", {"network.private_prefix_length": 23}),
    "many P5 without an address for each EFA": (
        "p5",
        {"instance_groups[p5].num_instances": 2000, "instance_groups[p5].efa_only": True},
    ),
    "service keys without continuous provisioning": ("small", {"continuous_provisioning": False}),
    "all workers or none": ("small", {"instance_groups[workers].min_instances": 2}),
    "spot workers": ("small", {"instance_groups[workers].capacity": "spot"}),
    "one thread on Graviton": (
        "small",
        {
            "instance_groups[controller].instance_type": "ml.m7g.4xlarge",
            "instance_groups[controller].threads_per_core": 1,
        },
    ),
}


_GOVERNED = {"region": "us-east-1", "network.availability_zone_ids": ["use1-az6", "use1-az4"]}
_SCALED = {
    "autoscaling": "karpenter",
    "instance_groups[workers].num_instances": 0,
    "instance_groups[workers].max_instances": 16,
}

EKS_EDGES: dict[str, tuple[str, dict[str, Any]]] = {
    "closed network on EKS": ("eks", _CLOSED | {"kubernetes.images": "image_repository"}),
    "existing VPC": ("eks-existing", {}),
    "existing EKS cluster with nodes in one zone": (
        "eks-existing",
        {
            "kubernetes.existing": "lab-eks",
            "kubernetes.version": DELETED,
            "network.security_group_ids": ["sg-0123456789abcdef0"],
            "network.private_subnets[1]": DELETED,
        },
    ),
    "Kubeflow's operator": ("eks", {"training_operator": "kubeflow"}),
    "earlier Kubernetes": ("eks", {"kubernetes.version": "1.33"}),
    "Kubernetes that AWS added later": ("eks", {"kubernetes.version": "1.36"}),
    "public endpoint for two places": (
        "eks",
        {
            "kubernetes.endpoint": "public_and_private",
            "kubernetes.public_access_cidrs": ["8.8.8.8/32", "1.1.0.0/16"],
        },
    ),
    "no logs of the control plane": ("eks", {"kubernetes.control_plane_logs": []}),
    "role with a path, and a user": (
        "eks",
        {
            "kubernetes.access": [
                {
                    "principal_arn": "arn:aws:iam::123456789012:role/aws-reserved/sso/AWSReservedSSO_lab",
                    "level": "admin",
                },
                {
                    "principal_arn": "arn:aws:iam::123456789012:user/ada+lab@example.com",
                    "level": "view",
                    "namespaces": ["default", "kubeflow"],
                },
            ]
        },
    ),
    "role without access": (
        "eks-p5",
        {"kubernetes.access[1].level": "none", "kubernetes.access[1].namespaces": []},
    ),
    "groups scaled by Karpenter": ("eks", _SCALED),
    "spot nodes scaled by Karpenter": (
        "eks",
        _SCALED | {"instance_groups[workers].capacity": "spot"},
    ),
    "fifty labels and taints": (
        "eks",
        {
            "instance_groups[workers].labels": {
                f"example.com/label-{index}": "x" * 63 for index in range(50)
            },
            "instance_groups[workers].taints": [
                {"key": f"taint-{index}", "effect": "NoSchedule"} for index in range(50)
            ],
        },
    ),
    "taints of one key with three effects": (
        "eks",
        {
            "instance_groups[workers].taints": [
                {"key": "nvidia.com/gpu", "value": "present", "effect": effect}
                for effect in ("NoSchedule", "PreferNoSchedule", "NoExecute")
            ]
        },
    ),
    "all nodes placed last": (
        "eks",
        {
            f"instance_groups[{name}].taints": [{"key": "purpose", "effect": "PreferNoSchedule"}]
            for name in ("system", "workers")
        },
    ),
    "partitions of GPUs": (
        "eks-p5",
        {"instance_groups[p5].labels": {"nvidia.com/mig.config": "all-1g.10gb"}},
    ),
    "batches for updates by hand alone": (
        "eks",
        {"instance_groups[workers].rolling_update": {"max_percent": 100, "wait_seconds": 3600}},
    ),
    "pinned release": ("eks", {"instance_groups[workers].image_release_version": "1.2.3"}),
    "teams that borrow and have nothing": (
        "eks",
        {
            **_GOVERNED,
            "task_governance.teams": [
                {"name": "a" * 40},
                {"name": "b", "borrow_limit_percent": 500},
            ],
        },
    ),
    "quotas of all there is": (
        "eks",
        {
            **_SCALED,
            **_GOVERNED,
            "task_governance.teams": [
                {
                    "name": "a",
                    "quota": [{"instance_type": "ml.g5.8xlarge", "num_accelerators": 15}],
                },
                {
                    "name": "b",
                    "quota": [
                        {"instance_type": "ml.g5.8xlarge", "num_instances": 1},
                        {"instance_type": "ml.m5.2xlarge", "num_instances": 1},
                    ],
                },
            ],
        },
    ),
    "everything to watch": (
        "eks",
        {
            "observability": {
                "emails": ["hpc@example.com", "team@example.com"],
                "idle_gpu_hours": 72,
                "free_space_percent": 50,
                "grafana": {
                    "sign_in": "identity_center",
                    "admins": ["user/9067f2a1b2-0a1b2c3d-0000-1111-2222-333344445555"],
                    "editors": ["group/0a1b2c3d-0000-1111-2222-333344445555"],
                    "viewers": ["group/0a1b2c3d-0000-1111-2222-333344445556"],
                },
            },
            "container_insights": True,
        },
    ),
    "mails alone": ("eks", {"observability": {"emails": ["hpc@example.com"]}}),
    "nothing to watch": ("eks", {"prometheus": False}),
    "states on nodes": ("eks", {"memory_states": {}}),
    "states in the managed tier": ("eks", {"memory_states": {"storage": "managed"}}),
    "checked nodes": (
        "eks",
        {"instance_groups[workers].deep_health_checks": ["InstanceConnectivity"]},
    ),
    "zone without a control plane first": (
        "eks-p5",
        {"network.availability_zone_ids": ["use1-az3", "use1-az4", "use1-az6"]},
    ),
}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_files_load(path: Path) -> None:
    assert load_cluster(path).scheduler == path.name.partition("-")[0].removesuffix(".yaml")


def test_there_are_shipped_files() -> None:
    assert {path.name for path in SHIPPED} >= {
        "slurm.yaml",
        "slurm-p5.yaml",
        "eks.yaml",
        "eks-p5.yaml",
    }


@pytest.mark.parametrize(
    ("base", "changes"), [pytest.param(*edge, id=name) for name, edge in EDGES.items()]
)
def test_values_at_the_limits_are_allowed(
    base: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump(document(base, changes)))
    assert isinstance(load_cluster(path), SlurmCluster)


@pytest.mark.parametrize(
    ("base", "changes"), [pytest.param(*edge, id=name) for name, edge in EKS_EDGES.items()]
)
def test_values_at_the_limits_on_eks_are_allowed(
    base: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump(document(base, changes)))
    assert isinstance(load_cluster(path), EksCluster)


def test_there_is_a_key_of_every_type() -> None:
    assert {key.split()[0] for key in KEYS} == set(TYPES)


def test_two_worker_groups_share_a_partition(tmp_path: Path) -> None:
    made = document("small")
    workers = made["instance_groups"][1]
    made["instance_groups"].append({**workers, "name": "more", "instance_type": "ml.g6.8xlarge"})
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump(made))
    assert {group.partition for group in load_slurm_cluster(path).instance_groups[1:]} == {"gpu"}


def test_the_longest_names_fit_into_resource_names() -> None:
    """The name of an S3 bucket has at most 63 characters."""
    longest = SlurmCluster.model_json_schema()["properties"]["name"]["maxLength"] * "a"
    region = max(ZONE_ID_PREFIXES, key=len)
    assert len(f"sagemaker-{longest}-123456789012-{region}") <= 63
