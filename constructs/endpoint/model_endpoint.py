"""SageMaker endpoint of a model: instances that scale with the load, and alarms."""

from __future__ import annotations

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

from config.endpoint import Capture, Endpoint
from config.facts.instance_catalogue import GPU_AMI, has_gpus
from constructs import Construct
from constructs.policy.findings import skip_check

VARIANT = "AllTraffic"
BAKE_SECONDS = 300
"""After an update's traffic moved, the old instances wait so long for an alarm that would bring them back."""
UPDATE_SECONDS = 3600


class ModelEndpoint(Construct):
    """Model, endpoint configuration, endpoint and scaling.

    Model and configuration are unchangeable in SageMaker and have no name of their own: a change makes
    others, and the endpoint moves from one to the other without being away.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        endpoint: Endpoint,
        role: iam.IRole,
        key: kms.IKey | None,
        security_group_id: str | None,
        rollback_alarms: Sequence[cloudwatch.IAlarm],
    ) -> None:
        super().__init__(scope, construct_id)
        model = sagemaker.CfnModel(
            self,
            "Model",
            execution_role_arn=role.role_arn,
            enable_network_isolation=True,
            primary_container=sagemaker.CfnModel.ContainerDefinitionProperty(
                image=endpoint.image,
                environment=endpoint.limits.environment,
                model_data_source=sagemaker.CfnModel.ModelDataSourceProperty(
                    s3_data_source=_model_data(endpoint.model)
                ),
            ),
            vpc_config=sagemaker.CfnModel.VpcConfigProperty(
                subnets=endpoint.vpc.subnet_ids, security_group_ids=[security_group_id]
            )
            if endpoint.vpc and security_group_id
            else None,
        )
        config = sagemaker.CfnEndpointConfig(
            self,
            "Config",
            kms_key_id=key.key_arn if key else None,
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
                    routing_config=sagemaker.CfnEndpointConfig.RoutingConfigProperty(
                        routing_strategy="LEAST_OUTSTANDING_REQUESTS"
                    ),
                )
            ],
            data_capture_config=_capture(endpoint.capture, key) if endpoint.capture else None,
        )
        self.resource = sagemaker.CfnEndpoint(
            self,
            "Endpoint",
            endpoint_name=endpoint.name,
            endpoint_config_name=config.attr_endpoint_config_name,
            # An update keeps the number of instances that scaling has come to.
            retain_all_variant_properties=True,
            deployment_config=sagemaker.CfnEndpoint.DeploymentConfigProperty(
                auto_rollback_configuration=sagemaker.CfnEndpoint.AutoRollbackConfigProperty(
                    alarms=[
                        sagemaker.CfnEndpoint.AlarmProperty(alarm_name=alarm.alarm_name)
                        for alarm in rollback_alarms
                    ]
                ),
                blue_green_update_policy=sagemaker.CfnEndpoint.BlueGreenUpdatePolicyProperty(
                    maximum_execution_timeout_in_seconds=UPDATE_SECONDS + BAKE_SECONDS,
                    termination_wait_in_seconds=60,
                    traffic_routing_configuration=sagemaker.CfnEndpoint.TrafficRoutingConfigProperty(
                        type="ALL_AT_ONCE", wait_interval_in_seconds=BAKE_SECONDS
                    ),
                ),
            ),
        )
        if endpoint.instances.max > endpoint.instances.min:
            self._scale(endpoint)

    def _scale(self, endpoint: Endpoint) -> None:
        instances = endpoint.instances
        target = scaling.CfnScalableTarget(
            self,
            "Target",
            service_namespace="sagemaker",
            scalable_dimension="sagemaker:variant:DesiredInstanceCount",
            resource_id=f"endpoint/{endpoint.name}/variant/{VARIANT}",
            min_capacity=instances.min,
            max_capacity=instances.max,
        )
        target.add_resource_dependency(self.resource)
        scaling.CfnScalingPolicy(
            self,
            "Policy",
            policy_name=f"{endpoint.name}-invocations",
            policy_type="TargetTrackingScaling",
            scaling_target_id=target.ref,
            target_tracking_scaling_policy_configuration=(
                scaling.CfnScalingPolicy.TargetTrackingScalingPolicyConfigurationProperty(
                    target_value=instances.invocations_per_minute,
                    scale_out_cooldown=instances.scale_out_seconds,
                    scale_in_cooldown=instances.scale_in_seconds,
                    predefined_metric_specification=(
                        scaling.CfnScalingPolicy.PredefinedMetricSpecificationProperty(
                            predefined_metric_type="SageMakerVariantInvocationsPerInstance"
                        )
                    ),
                )
            ),
        )


def _model_data(uri: str) -> sagemaker.CfnModel.S3DataSourceProperty:
    """A folder is copied as it is, which is faster to start; an archive is unpacked."""
    is_folder = uri.endswith("/")
    return sagemaker.CfnModel.S3DataSourceProperty(
        s3_uri=uri,
        s3_data_type="S3Prefix" if is_folder else "S3Object",
        compression_type="None" if is_folder else "Gzip",
    )


def _capture(capture: Capture, key: kms.IKey | None) -> sagemaker.CfnEndpointConfig.DataCaptureConfigProperty:
    return sagemaker.CfnEndpointConfig.DataCaptureConfigProperty(
        enable_capture=True,
        initial_sampling_percentage=capture.percent,
        destination_s3_uri=capture.to,
        kms_key_id=key.key_arn if key else None,
        capture_options=[
            sagemaker.CfnEndpointConfig.CaptureOptionProperty(capture_mode=mode)
            for mode in ("Input", "Output")
        ],
        capture_content_type_header=sagemaker.CfnEndpointConfig.CaptureContentTypeHeaderProperty(
            csv_content_types=["text/csv"], json_content_types=["application/json"]
        ),
    )


ROLLBACK_MINUTES = BAKE_SECONDS // 60
"""That an alarm looks back: one that needs longer cannot go off while an update may still be taken back."""


class EndpointAlarms(Construct):
    """Two alarms by which updates are rolled back, one when there is no room to scale, and who hears of them.

    Metrics are those of the SageMaker developer guide, "Monitor SageMaker AI with Amazon CloudWatch".
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, endpoint: Endpoint, key: kms.IKey | None
    ) -> None:
        super().__init__(scope, construct_id)
        names = {"EndpointName": endpoint.name, "VariantName": VARIANT}

        def metric(name: str, statistic: str) -> cloudwatch.Metric:
            return cloudwatch.Metric(
                namespace="AWS/SageMaker",
                metric_name=name,
                dimensions_map=names,
                statistic=statistic,
                period=Duration.minutes(1),
            )

        server_errors = cloudwatch.Alarm(
            self,
            "ServerErrors",
            alarm_description=f"{endpoint.name} answers with 5xx (503: too much waits); the log says why",
            metric=metric("Invocation5XXErrors", "Sum"),
            threshold=1,
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
            evaluation_periods=ROLLBACK_MINUTES,
            datapoints_to_alarm=3,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
        )
        latency = cloudwatch.Alarm(
            self,
            "Latency",
            alarm_description=f"one answer of {endpoint.name} in 20 takes longer than "
            f"{endpoint.alarms.latency_seconds} s",
            # In microseconds.
            metric=metric("ModelLatency", "p95"),
            threshold=endpoint.alarms.latency_seconds * 1_000_000,
            evaluation_periods=ROLLBACK_MINUTES,
            datapoints_to_alarm=3,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
        )
        full = cloudwatch.Alarm(
            self,
            "NoRoomToScale",
            alarm_description=f"{endpoint.name} has instances.max, and each more invocations than it should",
            metric=metric("InvocationsPerInstance", "Sum"),
            threshold=endpoint.instances.invocations_per_minute * 1.2,
            # Scaling takes some ten minutes to bring an instance; what lasts longer it cannot mend.
            evaluation_periods=30,
            datapoints_to_alarm=25,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
        )
        self.rollback = [server_errors, latency]
        if endpoint.alarms.email:
            topic = self._topic(endpoint.alarms.email, key)
            for alarm in (*self.rollback, full):
                alarm.add_alarm_action(actions.SnsAction(topic))

    def _topic(self, email: str, key: kms.IKey | None) -> sns.Topic:
        topic = sns.Topic(self, "Topic", enforce_ssl=True, master_key=key)
        # A policy of one's own takes the place of the one that lets the account's alarms publish.
        topic.add_to_resource_policy(
            iam.PolicyStatement(
                sid="CloudWatchAlarms",
                principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
                actions=["sns:Publish"],
                resources=[topic.topic_arn],
                conditions={"StringEquals": {"aws:SourceAccount": Stack.of(self).account}},
            )
        )
        if key:
            key.add_to_resource_policy(
                iam.PolicyStatement(
                    sid="CloudWatchAlarms",
                    principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
                    actions=["kms:Decrypt", "kms:GenerateDataKey*"],
                    # Whether the alarm's account comes along is not documented.
                    resources=["*"],
                )
            )
        else:
            resource = topic.node.default_child
            assert isinstance(resource, sns.CfnTopic)
            skip_check(resource, "CKV_AWS_26", "CloudWatch cannot publish under SNS's own key.")
        topic.add_subscription(subscriptions.EmailSubscription(email))
        return topic
