"""SageMaker endpoint of a model: its role, instances that scale with the load, and alarms."""

from collections.abc import Sequence

from aws_cdk import Duration, Stack
from aws_cdk import aws_applicationautoscaling as scaling
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sagemaker as sagemaker
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions

from config.endpoint import Endpoint
from config.facts.instance_catalogue import GPU_AMI, has_gpus
from constructs import Construct
from constructs.monitoring.alert_topic import let_encrypt, let_publish
from constructs.nodes import node_roles
from constructs.policy.findings import skip_check
from constructs.policy.statement_role import WRITE_LOGS, Statement, sagemaker_principal, statement_role

METRICS_NAMESPACE = "/aws/sagemaker/Endpoints"
"""Namespace of the instances' metrics; log groups of endpoints begin with the same."""
VARIANT = "AllTraffic"
BAKE_SECONDS = 300
"""After an update's traffic moved, the old instances wait so long for an alarm that would bring them back."""
ROLLBACK_MINUTES = BAKE_SECONDS // 60
"""Minutes that an alarm evaluates. A longer alarm could not fire while an update can still roll back."""


def endpoint_role(
    scope: Construct, endpoint: Endpoint, key: kms.IKey | None, security_group_id: str | None
) -> iam.Role:
    """Create a role that may read this model and this image, and write this endpoint's log, and nothing else.

    SageMaker developer guide, "CreateModel API: Execution Role Permissions", narrowed to named resources. The
    container has no part in it: with network isolation it gets no credentials.
    """
    stack = Stack.of(scope)
    registry, _, rest = endpoint.image.partition("/")
    repository = f"{stack.region}:{registry.split('.')[0]}:repository/{rest.partition('@')[0]}"
    logs = f"arn:{stack.partition}:logs:{stack.region}:{stack.account}:log-group:"
    group = f"{logs}{METRICS_NAMESPACE}/{endpoint.name}"
    statements = [
        *_model_statements(stack, endpoint),
        *node_roles.registry_statements(f"arn:{stack.partition}:ecr:{repository}", sid="PullImage"),
        Statement(
            "WriteLog", WRITE_LOGS, [group, f"{group}:log-stream:*"], why="streams are named after instances"
        ),
        node_roles.metrics_statement(METRICS_NAMESPACE),
    ]
    if endpoint.capture:
        statements.append(
            Statement(
                "WriteCaptured",
                ["s3:PutObject"],
                [f"arn:{stack.partition}:s3:::{endpoint.capture.to.removeprefix('s3://')}/*"],
                why="SageMaker names the files by date",
            )
        )
    if key:
        via_s3 = {"StringEquals": {"kms:ViaService": f"s3.{stack.region}.amazonaws.com"}}
        statements += [
            # S3 decrypts, too, what comes to it in several parts.
            Statement("EncryptCaptured", ["kms:Decrypt", "kms:GenerateDataKey"], [key.key_arn], via_s3),
            *node_roles.volume_key_statements(stack, key.key_arn),
        ]
    if endpoint.vpc and security_group_id:
        statements += node_roles.network_statements(
            stack,
            vpc_id=endpoint.vpc.vpc_id,
            subnet_ids=endpoint.vpc.subnet_ids,
            security_group_id=security_group_id,
        )
    return statement_role(
        Construct(scope, "Role"),
        "Role",
        description=f"SageMaker endpoint {endpoint.name}",
        assumed_by=sagemaker_principal(stack),
        policy_name="Hosting",
        statements=statements,
    )


def _model_statements(stack: Stack, endpoint: Endpoint) -> list[Statement]:
    bucket, _, key = endpoint.model.removeprefix("s3://").partition("/")
    bucket_arn = f"arn:{stack.partition}:s3:::{bucket}"
    is_folder = key.endswith("/")
    found = [
        Statement(
            "ListModel",
            ["s3:ListBucket"],
            [bucket_arn],
            {"StringLike": {"s3:prefix": [f"{key}*" if is_folder else key]}},
        ),
        Statement(
            "ReadModel",
            ["s3:GetObject"],
            [f"{bucket_arn}/{key}{'*' if is_folder else ''}"],
            why="a model is all files of a folder" if is_folder else "",
        ),
    ]
    if endpoint.model_key_arn:
        via = {"kms:ViaService": f"s3.{stack.region}.amazonaws.com"}
        found.append(
            Statement("DecryptModel", ["kms:Decrypt"], [endpoint.model_key_arn], {"StringEquals": via})
        )
    return found


def model_endpoint(
    scope: Construct,
    *,
    endpoint: Endpoint,
    role: iam.IRole,
    key: kms.IKey | None,
    security_group_id: str | None,
    rollback_alarms: Sequence[cloudwatch.IAlarm],
) -> sagemaker.CfnEndpoint:
    """Create model, endpoint configuration, endpoint and scaling.

    Model and configuration are unchangeable in SageMaker and have no name of their own: a change makes
    others, and the endpoint moves from one to the other without being away.
    """
    parent = Construct(scope, "Model")
    is_folder = endpoint.model.endswith("/")
    vpc, capture = endpoint.vpc, endpoint.capture
    key_arn = key.key_arn if key else None
    model = sagemaker.CfnModel(
        parent,
        "Model",
        execution_role_arn=role.role_arn,
        enable_network_isolation=True,
        primary_container={
            "image": endpoint.image,
            "environment": endpoint.limits.environment,
            "modelDataSource": {
                # A folder is copied as it is, which is faster to start; an archive is unpacked.
                "s3DataSource": {
                    "s3Uri": endpoint.model,
                    "s3DataType": "S3Prefix" if is_folder else "S3Object",
                    "compressionType": "None" if is_folder else "Gzip",
                }
            },
        },
        vpc_config=(
            {"subnets": vpc.subnet_ids, "securityGroupIds": [security_group_id]}
            if vpc and security_group_id
            else None
        ),
    )
    config = sagemaker.CfnEndpointConfig(
        parent,
        "Config",
        kms_key_id=key_arn,
        production_variants=[
            sagemaker.CfnEndpointConfig.ProductionVariantProperty(
                variant_name=VARIANT,
                model_name=model.attr_model_name,
                instance_type=endpoint.instance_type,
                initial_instance_count=endpoint.instances.min,
                initial_variant_weight=1,
                container_startup_health_check_timeout_in_seconds=endpoint.startup_seconds,
                model_data_download_timeout_in_seconds=endpoint.startup_seconds,
                inference_ami_version=GPU_AMI if has_gpus(endpoint.instance_type) else None,
                # A request goes to the instance with the fewest open ones: proteins differ in length.
                routing_config={"routingStrategy": "LEAST_OUTSTANDING_REQUESTS"},
            )
        ],
        data_capture_config=(
            sagemaker.CfnEndpointConfig.DataCaptureConfigProperty(
                enable_capture=True,
                initial_sampling_percentage=capture.percent,
                destination_s3_uri=capture.to,
                kms_key_id=key_arn,
                capture_options=[{"captureMode": mode} for mode in ("Input", "Output")],
                capture_content_type_header={
                    "csvContentTypes": ["text/csv"],
                    "jsonContentTypes": ["application/json"],
                },
            )
            if capture
            else None
        ),
    )
    resource = sagemaker.CfnEndpoint(
        parent,
        "Endpoint",
        endpoint_name=endpoint.name,
        endpoint_config_name=config.attr_endpoint_config_name,
        # An update keeps the number of instances that scaling has come to.
        retain_all_variant_properties=True,
        deployment_config={
            "autoRollbackConfiguration": {
                "alarms": [{"alarmName": alarm.alarm_name} for alarm in rollback_alarms]
            },
            "blueGreenUpdatePolicy": {
                "maximumExecutionTimeoutInSeconds": 3600 + BAKE_SECONDS,
                "terminationWaitInSeconds": 60,
                "trafficRoutingConfiguration": {
                    "type": "ALL_AT_ONCE",
                    "waitIntervalInSeconds": BAKE_SECONDS,
                },
            },
        },
    )
    if endpoint.instances.max > endpoint.instances.min:
        _scale(parent, endpoint, resource)
    return resource


def _scale(scope: Construct, endpoint: Endpoint, resource: sagemaker.CfnEndpoint) -> None:
    instances = endpoint.instances
    target = scaling.CfnScalableTarget(
        scope,
        "Target",
        service_namespace="sagemaker",
        scalable_dimension="sagemaker:variant:DesiredInstanceCount",
        resource_id=f"endpoint/{endpoint.name}/variant/{VARIANT}",
        min_capacity=instances.min,
        max_capacity=instances.max,
    )
    target.add_resource_dependency(resource)
    scaling.CfnScalingPolicy(
        scope,
        "Policy",
        policy_name=f"{endpoint.name}-invocations",
        policy_type="TargetTrackingScaling",
        scaling_target_id=target.ref,
        target_tracking_scaling_policy_configuration={
            "targetValue": instances.invocations_per_minute,
            "scaleOutCooldown": instances.scale_out_seconds,
            "scaleInCooldown": instances.scale_in_seconds,
            "predefinedMetricSpecification": {
                "predefinedMetricType": "SageMakerVariantInvocationsPerInstance"
            },
        },
    )


def endpoint_alarms(scope: Construct, endpoint: Endpoint, key: kms.IKey | None) -> list[cloudwatch.Alarm]:
    """Create three alarms and their topic, and return the two that roll updates back.

    The third reports missing room to scale.

    Metrics are those of the SageMaker developer guide, "Monitor SageMaker AI with Amazon CloudWatch".
    """
    parent = Construct(scope, "Alarms")

    def alarm(
        construct_id: str,
        description: str,
        metric: str,
        statistic: str,
        threshold: float,
        periods: int = ROLLBACK_MINUTES,
        datapoints: int = 3,
    ) -> cloudwatch.Alarm:
        return cloudwatch.Alarm(
            parent,
            construct_id,
            alarm_description=description,
            metric=cloudwatch.Metric(
                namespace="AWS/SageMaker",
                metric_name=metric,
                dimensions_map={"EndpointName": endpoint.name, "VariantName": VARIANT},
                statistic=statistic,
                period=Duration.minutes(1),
            ),
            threshold=threshold,
            evaluation_periods=periods,
            datapoints_to_alarm=datapoints,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
        )

    said = f"{endpoint.name} answers with 5xx (503: too much waits); the log says why"
    server_errors = alarm("ServerErrors", said, "Invocation5XXErrors", "Sum", 1)
    seconds = endpoint.alarms.latency_seconds
    said = f"one answer of {endpoint.name} in 20 takes longer than {seconds} s"
    # In microseconds.
    latency = alarm("Latency", said, "ModelLatency", "p95", seconds * 1_000_000)
    said = f"{endpoint.name} has instances.max, and each more invocations than it should"
    wanted = endpoint.instances.invocations_per_minute * 1.2
    # Scaling takes some ten minutes to bring an instance; what lasts longer it cannot mend.
    full = alarm("NoRoomToScale", said, "InvocationsPerInstance", "Sum", wanted, 30, 25)
    rollback = [server_errors, latency]
    if endpoint.alarms.email:
        topic = _topic(parent, endpoint.alarms.email, key)
        for each in (*rollback, full):
            each.add_alarm_action(actions.SnsAction(topic))
    return rollback


def _topic(scope: Construct, email: str, key: kms.IKey | None) -> sns.Topic:
    topic = sns.Topic(scope, "Topic", enforce_ssl=True, master_key=key)
    let_publish(topic, "CloudWatchAlarms", "cloudwatch.amazonaws.com")
    if key:
        let_encrypt(key, "CloudWatchAlarms", "cloudwatch.amazonaws.com")
    else:
        resource = topic.node.default_child
        assert isinstance(resource, sns.CfnTopic)
        skip_check(resource, "CKV_AWS_26", "CloudWatch cannot publish under SNS's own key.")
    topic.add_subscription(subscriptions.EmailSubscription(email))
    return topic
