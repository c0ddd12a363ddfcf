"""The Slurm stack: order of creation, mounts, options, outputs, what else is in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cfnlint.schema import PROVIDER_SCHEMA_MANAGER

from config.cluster_files import DEFAULT_CLUSTER_FILE
from stacks.remaining_costs import remaining_costs
from tests.stacks.intrinsics import ACCOUNT, Evaluator
from tests.stacks.synthesized import CLUSTER_FILES, assembly, load, only, resources, templates
from tests.stacks.variants import EVERY_OPTION, variant_templates

CLUSTER = "AWS::SageMaker::Cluster"


def hyperpod(file: str) -> dict[str, Any]:
    return templates(file)["SlurmHyperPodStack"]


def groups(stack: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = only(stack, CLUSTER)["InstanceGroups"]
    return found


@pytest.mark.parametrize("file", CLUSTER_FILES)
def test_cluster_waits_for_its_scripts_and_roles(file: str) -> None:
    stack = hyperpod(file)
    (cluster,) = resources(stack, CLUSTER).values()
    # The object that names the scripts waits for them and for the code that they fetch.
    (pointer,) = (
        name for name in resources(stack, "Custom::CDKBucketDeployment") if "Current" in name
    )
    roles = {group["ExecutionRole"]["Fn::GetAtt"][0] for group in groups(stack)}
    assert {pointer, *roles} <= set(cluster["DependsOn"])


@pytest.mark.parametrize("agent", [True, False])
def test_cluster_waits_for_the_log_of_its_nodes(agent: bool) -> None:
    """The group stays if the agent is switched off, because nodes with old settings would create it again."""
    variant = variant_templates("every_option")["SlurmHyperPodStack"]
    stack, name = (
        (variant, "every-option") if agent else (hyperpod("clusters/slurm.yaml"), "esm2-slurm")
    )
    (cluster,) = resources(stack, CLUSTER).values()
    named = {
        group["Properties"].get("LogGroupName"): (logical_id, group["Properties"])
        for logical_id, group in resources(stack, "AWS::Logs::LogGroup").items()
    }
    logical_id, properties = named[f"/aws/sagemaker/Clusters/{name}/nodes"]
    assert logical_id in cluster["DependsOn"]
    assert properties["RetentionInDays"] == 30


@pytest.mark.parametrize("file", CLUSTER_FILES)
def test_cluster_s_stack_waits_for_the_data_association(file: str) -> None:
    artifacts = json.loads((assembly(file) / "manifest.json").read_text())["artifacts"]
    assert "SlurmStorageStack" in artifacts["SlurmHyperPodStack"]["dependencies"]
    assert "SlurmNetworkStack" in artifacts["SlurmStorageStack"]["dependencies"]
    assert resources(templates(file)["SlurmStorageStack"], "AWS::FSx::DataRepositoryAssociation")


@pytest.mark.parametrize("file", CLUSTER_FILES)
def test_uploads_leave_earlier_versions_alone(file: str) -> None:
    uploads = resources(hyperpod(file), "Custom::CDKBucketDeployment")
    assert len(uploads) == 3
    for upload in uploads.values():
        assert upload["Properties"]["Prune"] is False
        assert upload["Properties"]["RetainOnDelete"] is True


@pytest.mark.parametrize("file", CLUSTER_FILES)
def test_nodes_start_with_the_entry_script_and_the_object_waits_for_the_whole_version(
    file: str,
) -> None:
    stack = hyperpod(file)
    evaluate = Evaluator(templates(file), load(file).region)
    bucket = f"sagemaker-{load(file).name}-{ACCOUNT}-{load(file).region}"
    for group in groups(stack):
        config = evaluate(group["LifeCycleConfig"])
        assert config == {
            "SourceS3Uri": f"s3://{bucket}/lifecycle/entry",
            "OnInitComplete": "on_init_complete.sh",
        }
    uploads = resources(stack, "Custom::CDKBucketDeployment")
    (pointer,) = (name for name in uploads if "Current" in name)
    assert uploads[pointer]["Properties"]["DestinationBucketKeyPrefix"] == "lifecycle"
    assert uploads.keys() - {pointer} <= set(uploads[pointer]["DependsOn"])


@pytest.mark.parametrize("file", CLUSTER_FILES)
def test_every_group_mounts_the_file_systems(file: str) -> None:
    storage = load(file).storage
    for group in groups(hyperpod(file)):
        kinds = [next(iter(config)) for config in group["InstanceStorageConfigs"]]
        assert kinds.count("FsxLustreConfig") == 1
        assert kinds.count("FsxOpenZfsConfig") == (1 if storage.home else 0)
        (lustre,) = (
            c["FsxLustreConfig"] for c in group["InstanceStorageConfigs"] if "FsxLustreConfig" in c
        )
        assert lustre["MountPath"] == storage.lustre.mount_path


def test_volumes_are_encrypted_with_the_cluster_s_key() -> None:
    for group in groups(hyperpod("clusters/slurm-p5.yaml")):
        volumes = [
            config["EbsVolumeConfig"]
            for config in group["InstanceStorageConfigs"]
            if "EbsVolumeConfig" in config
        ]
        assert [volume.get("RootVolume", False) for volume in volumes] == [False, True]
        assert all("VolumeKmsKeyId" in volume for volume in volumes)
        # SageMaker rejects a size for the root volume.
        assert "VolumeSizeInGB" not in volumes[1]


def test_options_reach_the_cluster() -> None:
    stack = variant_templates("every_option")["SlurmHyperPodStack"]
    controller, login, spot, patched, plan = groups(stack)
    assert controller["SlurmConfig"] == {"NodeType": "Controller"}
    assert login["SlurmConfig"] == {"NodeType": "Login"}
    assert not any(
        "VolumeSizeInGB" in c.get("EbsVolumeConfig", {}) for c in login["InstanceStorageConfigs"]
    )
    assert spot["CapacityRequirements"] == {"Spot": {}}
    assert spot["OverrideVpcConfig"]["Subnets"] != only(stack, CLUSTER)["VpcConfig"]["Subnets"]
    assert (
        spot["OverrideVpcConfig"]["SecurityGroupIds"]
        == only(stack, CLUSTER)["VpcConfig"]["SecurityGroupIds"]
    )
    two, quarter = (
        {"MaximumBatchSize": size, "RollbackMaximumBatchSize": size}
        for size in (
            {"Type": "INSTANCE_COUNT", "Value": 2},
            {"Type": "CAPACITY_PERCENTAGE", "Value": 25},
        )
    )
    assert patched["AutoPatchConfig"] == {
        "PatchingStrategy": "WhenIdle",
        "DeploymentConfig": {
            "RollingUpdatePolicy": two,
            "WaitIntervalInSeconds": 600,
            "AutoRollbackConfiguration": [{"AlarmName": "trainings-stalled"}],
        },
    }
    assert spot["ScheduledUpdateConfig"] == {
        "ScheduleExpression": "cron(0 3 ? * SUN *)",
        "DeploymentConfig": {"RollingUpdatePolicy": quarter, "WaitIntervalInSeconds": 0},
    }
    for role in resources(stack, "AWS::IAM::Role").values():
        if "HyperPod cluster" in role["Properties"].get("Description", ""):
            assert "cloudwatch:DescribeAlarms" in json.dumps(role)
    worker = EVERY_OPTION.instance_groups[-1]
    expected = {
        "InstanceCount": 8,
        "MinInstanceCount": 4,
        "TrainingPlanArn": worker.training_plan_arn,
        "ThreadsPerCore": 1,
        "NetworkInterface": {"InterfaceType": "efa-only"},
        "OnStartDeepHealthChecks": ["InstanceStress", "InstanceConnectivity"],
        "ImageId": worker.image_id,
        "SlurmConfig": {"NodeType": "Compute", "PartitionNames": ["plan"]},
    }
    assert {name: plan.get(name) for name in expected} == expected
    assert only(stack, CLUSTER)["Orchestrator"]["Slurm"]["SlurmConfigStrategy"] == "Merge"
    assert {"Key": "team", "Value": "proteins"} in only(stack, CLUSTER)["Tags"]


def test_defaults_are_left_to_the_service() -> None:
    """No option that the file does not set, and no capacity that would be reserved beside the cluster."""
    stack = hyperpod("clusters/slurm.yaml")
    for group in groups(stack):
        assert group.keys() == {
            "ExecutionRole",
            "InstanceCount",
            "InstanceGroupName",
            "InstanceStorageConfigs",
            "InstanceType",
            "LifeCycleConfig",
            "SlurmConfig",
        }
    assert only(stack, CLUSTER)["Orchestrator"] == {"Slurm": {"SlurmConfigStrategy": "Managed"}}
    assert not resources(stack, "AWS::Budgets::Budget")
    for template in templates("clusters/slurm.yaml").values():
        assert not resources(template, "AWS::EC2::CapacityReservation")


@pytest.mark.parametrize("file", CLUSTER_FILES)
def test_outputs_are_what_people_need(file: str) -> None:
    cluster = load(file)
    health_alert = ["TestHealthAlertCommand"] if file == "clusters/slurm-p5.yaml" else []
    found = {
        name: Evaluator(templates(file), cluster.region)(output["Value"])
        for name, output in hyperpod(file)["Outputs"].items()
    }
    assert found.keys() == {
        "ClusterName",
        "ClusterArn",
        "ConnectCommand",
        "ApplyLifecycleCommand",
        "LifecycleSourceS3Uri",
        "WorkloadSourceS3Uri",
        "DataBucketName",
        "ArtifactBucketName",
        "LustreFileSystemId",
        "LustreMountName",
        "ImageUri",
        "SessionDocumentName",
        "BillsUntilTeardown",
        "PrometheusRemoteWriteUrl",
        *health_alert,
    }
    url = found["PrometheusRemoteWriteUrl"]
    assert (
        url
        == f"https://aps-workspaces.{cluster.region}.amazonaws.com/workspaces/ws-0123/api/v1/remote_write"
    )
    assert found["ClusterName"] == cluster.name
    which = "" if file == str(DEFAULT_CLUSTER_FILE) else f" CLUSTER={file}"
    assert found["ConnectCommand"] == f"make connect{which}"
    assert found["ApplyLifecycleCommand"] == f"make apply-lifecycle{which}"
    assert found["LifecycleSourceS3Uri"].startswith(
        f"s3://{found['ArtifactBucketName']}/lifecycle/"
    )
    assert found["BillsUntilTeardown"] == ", ".join(remaining_costs(cluster))


def test_session_runs_as_ubuntu_encrypted_with_the_key() -> None:
    inputs = only(hyperpod("clusters/slurm-p5.yaml"), "AWS::SSM::Document")["Content"]["inputs"]
    assert inputs["runAsEnabled"] is True and inputs["runAsDefaultUser"] == "ubuntu"
    assert "kmsKeyId" in inputs
    assert (
        "kmsKeyId"
        not in only(hyperpod("clusters/slurm.yaml"), "AWS::SSM::Document")["Content"]["inputs"]
    )


def test_budget_counts_what_carries_the_cluster_s_tag() -> None:
    stack = hyperpod("clusters/slurm-p5.yaml")
    budget = only(stack, "AWS::Budgets::Budget")
    ((key, name),) = (
        tag.removeprefix("user:").split("$")
        for tag in budget["Budget"]["CostFilters"]["TagKeyValue"]
    )
    assert {"Key": key, "Value": name} in only(stack, CLUSTER)["Tags"]
    assert budget["Budget"]["BudgetLimit"] == {"Amount": 400000, "Unit": "USD"}
    kinds = {n["Notification"]["NotificationType"] for n in budget["NotificationsWithSubscribers"]}
    assert kinds == {"ACTUAL", "FORECASTED"}


def test_budget_can_be_replaced() -> None:
    """Subscribers are create-only: another one is another budget, made while the first still has its name."""
    (budget,) = resources(hyperpod("clusters/slurm-p5.yaml"), "AWS::Budgets::Budget").values()
    schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-east-1", "AWS::Budgets::Budget").schema
    assert "/properties/NotificationsWithSubscribers" in schema["createOnlyProperties"]
    assert "BudgetName" not in budget["Properties"]["Budget"]
    assert "BudgetName" not in schema["definitions"]["BudgetData"]["required"]


def test_image_tags_do_not_move() -> None:
    repository = only(templates("clusters/slurm.yaml")["SlurmStorageStack"], "AWS::ECR::Repository")
    assert repository["ImageTagMutability"] == "IMMUTABLE"
    assert repository["ImageScanningConfiguration"] == {"ScanOnPush": True}
