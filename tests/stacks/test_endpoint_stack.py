"""The endpoint's stack: what it hosts, who may do what, how it scales, and what rolls an update back."""

from __future__ import annotations

from functools import cache
from typing import Any

import botocore.session
import pytest

from config.facts.instance_catalogue import GPU_AMI, HOSTING_TYPES
from tests.stacks.endpoints import (
    ENDPOINT_FILES,
    GIVEN,
    endpoint,
    endpoint_template,
    synthesize_endpoint,
    template_in,
)
from tests.stacks.intrinsics import ACCOUNT, Evaluator
from tests.stacks.shapes import violations
from tests.stacks.synthesized import only, resources

SMALL = "endpoints/esm2.yaml"
PRIVATE = "endpoints/esm2-private.yaml"
MODEL, CONFIG, ENDPOINT = (
    f"AWS::SageMaker::{kind}" for kind in ("Model", "EndpointConfig", "Endpoint")
)
ALARM = "AWS::CloudWatch::Alarm"
TARGET, POLICY = (
    f"AWS::ApplicationAutoScaling::{kind}" for kind in ("ScalableTarget", "ScalingPolicy")
)


@cache
def cpu_template() -> dict[str, Any]:
    """An endpoint without GPU, with mail for alarms and the services' own keys."""
    found = endpoint(SMALL, instance_type="ml.c7i.4xlarge", alarms={"email": "a@example.com"})
    return template_in(synthesize_endpoint(found))


@cache
def fixed_template() -> dict[str, Any]:
    return template_in(synthesize_endpoint(endpoint(SMALL, instances={"min": 2, "max": 2})))


def evaluated(template: dict[str, Any], kind: str, region: str) -> Any:
    return Evaluator({"EndpointStack": template}, region)(only(template, kind))


def statements(template: dict[str, Any], region: str) -> dict[str, Any]:
    (policy,) = evaluated(template, "AWS::IAM::Role", region)["Policies"]
    return {found["Sid"]: found for found in policy["PolicyDocument"]["Statement"]}


@pytest.mark.parametrize("file", ENDPOINT_FILES)
@pytest.mark.parametrize("kind", [MODEL, CONFIG, ENDPOINT])
def test_requests_are_as_sagemaker_s_api_has_them(file: str, kind: str) -> None:
    """Enums, patterns and maxima."""
    model = botocore.session.get_session().get_service_model("sagemaker")
    shape = model.operation_model(f"Create{kind.rpartition('::')[2]}").input_shape
    assert shape is not None
    properties = evaluated(endpoint_template(file), kind, endpoint(file).region)
    cloudformation_s_own = {"RetainAllVariantProperties"}
    given = {name: value for name, value in properties.items() if name not in cloudformation_s_own}
    # What CloudFormation makes up.
    names = {MODEL: {"ModelName": "model"}, CONFIG: {"EndpointConfigName": "config"}}
    given |= names.get(kind, {})
    assert list(violations(shape, given)) == []


@pytest.mark.parametrize("file", ENDPOINT_FILES)
def test_scaling_is_as_its_api_has_it(file: str) -> None:
    model = botocore.session.get_session().get_service_model("application-autoscaling")
    region = endpoint(file).region
    target = evaluated(endpoint_template(file), TARGET, region)
    policy = evaluated(endpoint_template(file), POLICY, region)
    target["Tags"] = {tag["Key"]: tag["Value"] for tag in target["Tags"]}
    # CloudFormation's short form of these three.
    del policy["ScalingTargetId"]
    policy |= {
        name: target[name] for name in ("ServiceNamespace", "ResourceId", "ScalableDimension")
    }
    for operation, given in {"RegisterScalableTarget": target, "PutScalingPolicy": policy}.items():
        shape = model.operation_model(operation).input_shape
        assert shape is not None and list(violations(shape, given)) == []


def test_hosting_types_are_sagemaker_s() -> None:
    model = botocore.session.get_session().get_service_model("sagemaker")
    assert set(HOSTING_TYPES) <= set(
        model.shape_for("ProductionVariantInstanceType").metadata["enum"]
    )
    assert GPU_AMI in model.shape_for("ProductionVariantInferenceAmiVersion").metadata["enum"]


@pytest.mark.parametrize("file", ENDPOINT_FILES)
def test_containers_reach_nothing_and_images_do_not_change(file: str) -> None:
    model = only(endpoint_template(file), MODEL)
    assert model["EnableNetworkIsolation"] is True
    assert "@sha256:" in model["PrimaryContainer"]["Image"]


def test_a_folder_and_an_archive_are_models() -> None:
    sources = {
        file: only(endpoint_template(file), MODEL)["PrimaryContainer"]["ModelDataSource"][
            "S3DataSource"
        ]
        for file in (SMALL, PRIVATE)
    }
    folder = {"S3Uri": GIVEN["model"], "S3DataType": "S3Prefix", "CompressionType": "None"}
    assert sources[SMALL] == folder
    assert (sources[PRIVATE]["S3DataType"], sources[PRIVATE]["CompressionType"]) == (
        "S3Object",
        "Gzip",
    )


def test_gpus_have_the_driver_that_the_image_needs() -> None:
    (variant,) = only(endpoint_template(SMALL), CONFIG)["ProductionVariants"]
    assert variant["InferenceAmiVersion"] == GPU_AMI
    (variant,) = only(cpu_template(), CONFIG)["ProductionVariants"]
    assert "InferenceAmiVersion" not in variant


def test_limits_reach_the_container() -> None:
    environment = only(endpoint_template(PRIVATE), MODEL)["PrimaryContainer"]["Environment"]
    assert environment == {"ESM2_SERVE_MAX_PROTEINS": "64", "ESM2_SERVE_MAX_RESIDUES": "2046"}


def test_the_role_may_read_its_model_and_image_and_write_its_log() -> None:
    found = statements(endpoint_template(SMALL), "us-west-2")
    group = f"arn:aws:logs:us-west-2:{ACCOUNT}:log-group:/aws/sagemaker/Endpoints/esm2"
    assert {
        sid: (one["Action"], one["Resource"], one.get("Condition")) for sid, one in found.items()
    } == {
        "ListModel": (
            "s3:ListBucket",
            "arn:aws:s3:::esm2-slurm-models",
            {"StringLike": {"s3:prefix": ["localization/*"]}},
        ),
        "ReadModel": ("s3:GetObject", "arn:aws:s3:::esm2-slurm-models/localization/*", None),
        "LogInToRegistry": ("ecr:GetAuthorizationToken", "*", None),
        "PullImage": (
            ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
            f"arn:aws:ecr:us-west-2:{ACCOUNT}:repository/esm2-slurm/training",
            None,
        ),
        "WriteLog": (
            ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
            [group, f"{group}:log-stream:*"],
            None,
        ),
        "PutMetrics": (
            "cloudwatch:PutMetricData",
            "*",
            {"StringEquals": {"cloudwatch:namespace": "/aws/sagemaker/Endpoints"}},
        ),
    }
    trust = only(endpoint_template(SMALL), "AWS::IAM::Role")["AssumeRolePolicyDocument"][
        "Statement"
    ]
    assert [one["Principal"] for one in trust] == [{"Service": "sagemaker.amazonaws.com"}]


def test_more_is_allowed_only_where_the_file_asks_for_it() -> None:
    more = statements(endpoint_template(PRIVATE), "us-east-1")
    assert (
        more["ReadModel"]["Resource"] == "arn:aws:s3:::esm2-p5-proteins/models/localization.tar.gz"
    )
    assert more["DecryptModel"]["Resource"] == endpoint(PRIVATE).model_key_arn
    assert more["WriteCaptured"]["Resource"] == "arn:aws:s3:::esm2-p5-proteins/captured/*"
    ec2 = "arn:aws:ec2:us-east-1:*"  # a shared subnet has the account of its owner
    assert more["ManageInterfaces"]["Condition"]["ArnEqualsIfExists"]["ec2:Subnet"] == [
        f"{ec2}:subnet/subnet-0123456789abcdef{index}" for index in range(2)
    ]
    assert {"GrantVolumesTheKey", "EncryptCaptured"} <= set(more)
    assert all("kms:*" not in one["Action"] and one["Effect"] == "Allow" for one in more.values())


def test_nothing_comes_in() -> None:
    group = only(endpoint_template(PRIVATE), "AWS::EC2::SecurityGroup")
    assert "SecurityGroupIngress" not in group
    assert [
        (rule["IpProtocol"], rule["FromPort"], rule["ToPort"])
        for rule in group["SecurityGroupEgress"]
    ] == [("tcp", 443, 443)]
    assert "VpcConfig" not in only(endpoint_template(SMALL), MODEL)


def test_one_key_encrypts_volumes_log_mail_and_what_is_captured() -> None:
    template = endpoint_template(PRIVATE)
    (key,) = resources(template, "AWS::KMS::Key")
    arn = {"Fn::GetAtt": [key, "Arn"]}
    config = only(template, CONFIG)
    assert config["KmsKeyId"] == config["DataCaptureConfig"]["KmsKeyId"] == arn
    assert only(template, "AWS::Logs::LogGroup")["KmsKeyId"] == arn
    assert only(template, "AWS::SNS::Topic")["KmsMasterKeyId"] == arn
    assert template["Resources"][key]["DeletionPolicy"] == "Retain", (
        "captured requests stay readable"
    )
    assert not resources(endpoint_template(SMALL), "AWS::KMS::Key")


def test_requests_are_written_down_only_where_the_file_says_so() -> None:
    assert "DataCaptureConfig" not in only(endpoint_template(SMALL), CONFIG)
    capture = only(endpoint_template(PRIVATE), CONFIG)["DataCaptureConfig"]
    assert (capture["InitialSamplingPercentage"], capture["EnableCapture"]) == (10, True)


def test_it_scales_by_invocations() -> None:
    template = endpoint_template(SMALL)
    target = only(template, TARGET)
    assert target["ResourceId"] == "endpoint/esm2/variant/AllTraffic"
    assert (target["MinCapacity"], target["MaxCapacity"]) == (1, 4)
    policy = only(template, POLICY)
    tracked = policy["TargetTrackingScalingPolicyConfiguration"]
    assert tracked["TargetValue"] == 600
    predefined = tracked["PredefinedMetricSpecification"]["PredefinedMetricType"]
    assert predefined == "SageMakerVariantInvocationsPerInstance"
    # An update of the endpoint does not take instances away that scaling has added.
    assert only(template, ENDPOINT)["RetainAllVariantProperties"] is True


def test_as_many_instances_as_ever_are_not_scaled() -> None:
    """SageMaker gives no other type of instance to an endpoint that is scaled."""
    template = fixed_template()
    assert not resources(template, TARGET) and not resources(template, POLICY)
    (variant,) = only(template, CONFIG)["ProductionVariants"]
    assert variant["InitialInstanceCount"] == 2


def test_alarms_roll_updates_back() -> None:
    template = endpoint_template(SMALL)
    alarms = resources(template, ALARM)
    deployment = only(template, ENDPOINT)["DeploymentConfig"]
    watched = [
        alarms[alarm["AlarmName"]["Ref"]]["Properties"]
        for alarm in deployment["AutoRollbackConfiguration"]["Alarms"]
    ]
    assert {alarm["MetricName"] for alarm in watched} == {"Invocation5XXErrors", "ModelLatency"}
    bake = deployment["BlueGreenUpdatePolicy"]["TrafficRoutingConfiguration"][
        "WaitIntervalInSeconds"
    ]
    for alarm in watched:
        assert alarm["Period"] * alarm["EvaluationPeriods"] <= bake, (
            "it goes off before it is too late"
        )
    for alarm in alarms.values():
        dimensions = {one["Name"]: one["Value"] for one in alarm["Properties"]["Dimensions"]}
        assert dimensions == {"EndpointName": "esm2", "VariantName": "AllTraffic"}
        assert "AlarmActions" not in alarm["Properties"]
    latency = next(alarm for alarm in watched if alarm["MetricName"] == "ModelLatency")
    assert latency["Threshold"] == 10_000_000, "microseconds"


def test_alarms_may_publish_to_the_topic() -> None:
    for template in (endpoint_template(PRIVATE), cpu_template()):
        (topic,) = resources(template, "AWS::SNS::Topic")
        assert all(
            found["Properties"]["AlarmActions"] == [{"Ref": topic}]
            for found in resources(template, ALARM).values()
        )
        policy = only(template, "AWS::SNS::TopicPolicy")["PolicyDocument"]["Statement"]
        allowed = [one for one in policy if one["Effect"] == "Allow"]
        assert [(one["Principal"], one["Action"]) for one in allowed] == [
            ({"Service": "cloudwatch.amazonaws.com"}, "sns:Publish")
        ]
    assert "KmsMasterKeyId" not in only(cpu_template(), "AWS::SNS::Topic")


@pytest.mark.parametrize("file", ENDPOINT_FILES)
def test_everything_is_named_and_tagged_after_the_endpoint(file: str) -> None:
    name = endpoint(file).name
    template = endpoint_template(file)
    log = only(template, "AWS::Logs::LogGroup")
    assert log["LogGroupName"] == f"/aws/sagemaker/Endpoints/{name}"
    (endpoint_id,) = resources(template, ENDPOINT)
    assert template["Resources"][endpoint_id]["DependsOn"] == list(
        resources(template, "AWS::Logs::LogGroup")
    )
    for found in resources(template, MODEL) | resources(template, CONFIG):
        assert not {"ModelName", "EndpointConfigName"} & set(
            template["Resources"][found]["Properties"]
        )
        tags = {
            tag["Key"]: tag["Value"] for tag in template["Resources"][found]["Properties"]["Tags"]
        }
        assert tags["esm2-endpoint"] == name and tags["project"] == "hyperpod-esm2"
