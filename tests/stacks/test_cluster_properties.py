"""The cluster's properties, as a deployment would send them, against both descriptions of what is allowed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import jsonschema
import pytest
import regex
from cfnlint.schema import PROVIDER_SCHEMA_MANAGER
from jsonschema import validators

from tests.stacks.intrinsics import Evaluator
from tests.stacks.shapes import create_cluster_shape, violations
from tests.stacks.synthesized import CLUSTER_FILES, Templates, load, only, templates
from tests.stacks.variants import EVERY_OPTION, variant_templates

Properties = dict[str, Any]


def _pattern(_: Any, pattern: str, value: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
    """jsonschema's own uses re, which does not know the schemas' \\p{...}."""
    if isinstance(value, str) and not regex.search(pattern, value):
        yield jsonschema.ValidationError(f"{value!r} does not match {pattern}")


@cache
def registry_schema() -> Any:
    """CloudFormation's own schema of the resource, which cfn-lint carries."""
    found = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-west-2", "AWS::SageMaker::Cluster")
    return validators.extend(jsonschema.Draft7Validator, {"pattern": _pattern})(found.schema)


def faults(properties: Properties) -> list[str]:
    errors = registry_schema().iter_errors(properties)
    registry = [f"registry: {error.json_path}: {error.message}" for error in errors]
    return registry + [
        f"botocore: {line}" for line in violations(create_cluster_shape(), properties)
    ]


def properties_of(stacks: Templates, region: str) -> Properties:
    found = only(stacks["SlurmHyperPodStack"], "AWS::SageMaker::Cluster")
    properties: Properties = Evaluator(stacks, region)(found)
    return properties


@cache
def _every_option() -> Properties:
    return properties_of(variant_templates("every_option"), EVERY_OPTION.region)


@pytest.mark.parametrize("file", CLUSTER_FILES)
def test_shipped_clusters_are_accepted(file: str) -> None:
    assert faults(properties_of(templates(file), load(file).region)) == []


def test_cluster_with_every_option_is_accepted() -> None:
    assert faults(_every_option()) == []


def _group(change: Callable[[dict[str, Any]], Any]) -> Callable[[Properties], Any]:
    """A change of the worker group that uses every option."""
    return lambda properties: change(properties["InstanceGroups"][-1])


MUTATIONS: dict[str, Callable[[Properties], Any]] = {
    "cluster name with underscore": lambda p: p.update(ClusterName="esm2_slurm"),
    "cluster name too long": lambda p: p.update(ClusterName="x" * 64),
    "cluster without name": lambda p: p.update(ClusterName=""),
    "no instance groups": lambda p: p.update(InstanceGroups=[]),
    "101 instance groups": lambda p: p.update(InstanceGroups=p["InstanceGroups"][:1] * 101),
    "node recovery spelled otherwise": lambda p: p.update(NodeRecovery="automatic"),
    "provisioning mode unknown": lambda p: p.update(NodeProvisioningMode="Eager"),
    "17 subnets": lambda p: p["VpcConfig"].update(Subnets=p["VpcConfig"]["Subnets"] * 17),
    "six security groups": lambda p: p["VpcConfig"].update(SecurityGroupIds=["sg-01234567"] * 6),
    "strategy unknown": lambda p: p["Orchestrator"]["Slurm"].update(SlurmConfigStrategy="Replace"),
    "database without secret": lambda p: p["Orchestrator"]["Slurm"]["AccountingDatabase"].pop(
        "SecretArn"
    ),
    "database port too large": lambda p: p["Orchestrator"]["Slurm"]["AccountingDatabase"].update(
        Port=65536
    ),
    "tag too long": lambda p: p["Tags"].append({"Key": "k", "Value": "v" * 257}),
    "unknown property": lambda p: p.update(Monitoring="On"),
    "group without role": _group(lambda g: g.pop("ExecutionRole")),
    "role that is no ARN": _group(lambda g: g.update(ExecutionRole="WorkerRole")),
    "more nodes than a group takes": _group(lambda g: g.update(InstanceCount=6759)),
    "count that is text": _group(lambda g: g.update(InstanceCount="8")),
    "instance type unknown": _group(lambda g: g.update(InstanceType="ml.p5.49xlarge")),
    "node type from the prose": _group(lambda g: g["SlurmConfig"].update(NodeType="Worker")),
    "two partitions": _group(lambda g: g["SlurmConfig"].update(PartitionNames=["a", "b"])),
    "script without a bucket": _group(
        lambda g: g["LifeCycleConfig"].update(SourceS3Uri="lifecycle/x")
    ),
    "fifth storage": _group(
        lambda g: g["InstanceStorageConfigs"].append(g["InstanceStorageConfigs"][0])
    ),
    "volume too large": _group(
        lambda g: g["InstanceStorageConfigs"][0]["EbsVolumeConfig"].update(VolumeSizeInGB=16385)
    ),
    "Lustre mount name too long": _group(
        lambda g: g["InstanceStorageConfigs"][2]["FsxLustreConfig"].update(MountName="abcdefghi")
    ),
    "Lustre DNS name of nothing": _group(
        lambda g: g["InstanceStorageConfigs"][2]["FsxLustreConfig"].update(
            DnsName="lustre.example.com"
        )
    ),
    "health check that CloudFormation rejects": _group(
        lambda g: g.update(OnStartDeepHealthChecks=["MultiNodeTrainingValidation"])
    ),
    "training plan that is no ARN": _group(lambda g: g.update(TrainingPlanArn="esm2-p5")),
    "three threads per core": _group(lambda g: g.update(ThreadsPerCore=3)),
    "image that is no AMI": _group(lambda g: g.update(ImageId="latest")),
    "patching that only EKS has": lambda p: p["InstanceGroups"][-2]["AutoPatchConfig"].update(
        PatchingStrategy="DrainFirst"
    ),
    "interface type unknown": _group(lambda g: g["NetworkInterface"].update(InterfaceType="ena")),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation_is_rejected(name: str) -> None:
    properties = copy.deepcopy(_every_option())
    MUTATIONS[name](properties)
    assert properties != _every_option()
    assert faults(properties)


def test_each_description_finds_what_the_other_lets_pass() -> None:
    """Were one of the two switched off, this test would say so."""
    found = set()
    for mutate in MUTATIONS.values():
        properties = copy.deepcopy(_every_option())
        mutate(properties)
        found.add(frozenset(line.split(":")[0] for line in faults(properties)))
    assert {frozenset({"registry"}), frozenset({"botocore"})} <= found
