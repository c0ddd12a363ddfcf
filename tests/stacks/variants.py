"""Clusters that are not shipped: every option at once, the largest allowed, one in an existing VPC."""

from __future__ import annotations

from functools import cache
from typing import Any

from config.slurm_cluster import SlurmCluster
from tests.stacks.synthesized import Templates, load, read_templates, synthesize

_P5 = "clusters/slurm-p5.yaml"
_PLAN = "arn:aws:sagemaker:us-east-1:123456789012:training-plan/esm2-p5"


def _worker(name: str, **options: Any) -> dict[str, Any]:
    return {
        "name": name,
        "role": "worker",
        "partition": name,
        "instance_type": "ml.p5.48xlarge",
        "num_instances": 8,
    } | options


_CONTROLLER = {
    "name": "controller",
    "role": "controller",
    "instance_type": "ml.m5.12xlarge",
    "num_instances": 1,
}

_LOGIN = {"name": "login", "role": "login", "instance_type": "ml.m5.4xlarge", "num_instances": 1}

EVERY_OPTION = load(
    _P5,
    name="every-option",
    tags={"team": "proteins"},
    slurm_config_strategy="merge",
    access={
        "groups": [{"name": "research", "gid": 3000}],
        "users": [
            {"name": "ada", "uid": 2001, "group": "research", "admin": True},
            {"name": "ben", "uid": 2002},
        ],
    },
    studio={
        "partitions": "per_profile",
        "partition_removal": "destroy",
        "profiles": [
            {"name": "ada-l", "cluster_user": "ada", "login_space": True},
            {"name": "ben", "cluster_user": "ben"},
            {"name": "guest"},
        ],
    },
    node_setup={"cloudwatch_agent": True, "downloads": "artifact_bucket", "pam_slurm_adopt": True},
    instance_groups=[
        _CONTROLLER,
        {
            "name": "login",
            "role": "login",
            "instance_type": "ml.m5.4xlarge",
            "num_instances": 1,
            "ebs_gib": None,
        },
        _worker(
            "spot",
            instance_type=None,
            instance_types=["ml.m5.12xlarge", "ml.m6i.12xlarge"],
            capacity="spot",
            availability_zone_id="use1-az4",
            scheduled_update="cron(0 3 ? * SUN *)",
            rolling_update={"max_percent": 25},
        ),
        _worker(
            "patched",
            auto_patch="when_idle",
            rolling_update={
                "max_nodes": 2,
                "wait_seconds": 600,
                "rollback_alarms": ["trainings-stalled"],
            },
        ),
        _worker(
            "plan",
            training_plan_arn=_PLAN,
            min_instances=4,
            threads_per_core=1,
            efa_only=True,
            deep_health_checks=["InstanceStress", "InstanceConnectivity"],
            image_id="ami-0123456789abcdef0",
        ),
    ],
)

# 100 groups, the service's limit, of names as long as they may be; 24 characters is the longest cluster name.
# Accelerated ones stand in the zone of the file system, others in other zones.
LARGEST = load(
    _P5,
    name="n" * 24,
    region="ap-southeast-2",
    tags={f"tag-{number:02d}": "v" * 255 for number in range(40)},
    network={
        "vpc": "new",
        "availability_zone_ids": ["apse2-az1", "apse2-az2", "apse2-az3"],
        "interface_endpoints": True,
    },
    instance_groups=[
        _CONTROLLER,
        _LOGIN,
        *(
            _worker(
                f"{'g' * 60}{number:03d}",
                num_instances=300,
                min_instances=300,
                availability_zone_id="apse2-az1",
                threads_per_core=1,
                efa_only=True,
                deep_health_checks=["InstanceStress", "InstanceConnectivity"],
                image_id="ami-0123456789abcdef0",
            )
            for number in range(49)
        ),
        *(
            _worker(
                f"{'g' * 60}{number:03d}",
                num_instances=300,
                min_instances=300,
                instance_type="ml.m5.12xlarge",
                availability_zone_id=f"apse2-az{2 + number % 2}",
                threads_per_core=1,
                auto_patch="when_all_idle",
            )
            for number in range(49, 98)
        ),
    ],
)

_SUBNETS = [
    {
        "subnet_id": f"subnet-0{number:07x}",
        "availability_zone_id": f"use1-az{1 + number}",
        "route_table_id": f"rtb-0{number:07x}",
        "cidr": f"10.0.{number}.0/24",
    }
    for number in range(6)
]

# Groups in six zones, as many as a region has: the longest list of subnets in a role's statements.
EXISTING_VPC = load(
    _P5,
    name="existing-vpc",
    studio={},
    network={
        "vpc": "existing",
        "vpc_id": "vpc-01234567",
        "cidr": "10.0.0.0/16",
        "private_subnets": _SUBNETS,
    },
    instance_groups=[
        _CONTROLLER,
        _worker("w1", num_instances=1, availability_zone_id="use1-az1"),
        *(
            _worker(
                f"w{zone}", instance_type="ml.m5.12xlarge", availability_zone_id=f"use1-az{zone}"
            )
            for zone in range(2, 7)
        ),
    ],
)

_VARIANTS: dict[str, SlurmCluster] = {
    "every_option": EVERY_OPTION,
    "largest": LARGEST,
    "existing_vpc": EXISTING_VPC,
}
VARIANTS = tuple(_VARIANTS)


@cache
def variant_templates(name: str) -> Templates:
    return read_templates(synthesize(_VARIANTS[name]))
