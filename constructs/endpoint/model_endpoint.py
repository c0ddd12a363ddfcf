"""SageMaker endpoint of a model, with instances that scale with the load."""

from collections.abc import Sequence

from aws_cdk import aws_applicationautoscaling as scaling
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sagemaker as sagemaker

from config.endpoint import Endpoint
from config.facts.instance_catalogue import GPU_AMI, has_gpus
from constructs import Construct

DataCapture = sagemaker.CfnEndpointConfig.DataCaptureConfigProperty

VARIANT = "AllTraffic"
"""Name of the endpoint's only variant."""
BAKE_SECONDS = 300
"""Time for which an update keeps the old instances after the traffic has moved. An alarm within this time
rolls the update back."""
UPDATE_SECONDS = 3600
"""Time that an update may take before ``BAKE_SECONDS`` begin."""


class ModelEndpoint(Construct):
    """Model, endpoint configuration, endpoint and scaling.

    SageMaker cannot change models and configurations, so they have no fixed names. A change creates new ones,
    and the endpoint moves to them without an interruption.
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
        """Create the endpoint.

        Args:
            scope: parent construct.
            construct_id: id within the parent.
            endpoint: endpoint file.
            role: execution role.
            key: key of the instances' volumes and the captured data, if there is one.
            security_group_id: security group in the VPC, if the endpoint is in one.
            rollback_alarms: alarms that roll updates back.
        """
        super().__init__(scope, construct_id)
        key_arn = key.key_arn if key else None
        vpc_config = None
        if endpoint.vpc and security_group_id:
            vpc_config = sagemaker.CfnModel.VpcConfigProperty(
                subnets=endpoint.vpc.subnet_ids, security_group_ids=[security_group_id]
            )
        model = sagemaker.CfnModel(
            self,
            "Model",
            execution_role_arn=role.role_arn,
            enable_network_isolation=True,
            primary_container={
                "image": endpoint.image,
                "environment": endpoint.limits.environment,
                "modelDataSource": {"s3DataSource": _model_source(endpoint.model)},
            },
            vpc_config=vpc_config,
        )
        config = sagemaker.CfnEndpointConfig(
            self,
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
                    # Requests take different times because proteins differ in length, so a request goes to
                    # the instance with the fewest open requests.
                    routing_config={"routingStrategy": "LEAST_OUTSTANDING_REQUESTS"},
                )
            ],
            data_capture_config=_data_capture(endpoint, key_arn),
        )
        self.resource = sagemaker.CfnEndpoint(
            self,
            "Endpoint",
            endpoint_name=endpoint.name,
            endpoint_config_name=config.attr_endpoint_config_name,
            # An update keeps the number of instances that scaling has set.
            retain_all_variant_properties=True,
            deployment_config={
                "autoRollbackConfiguration": {
                    "alarms": [{"alarmName": alarm.alarm_name} for alarm in rollback_alarms]
                },
                "blueGreenUpdatePolicy": {
                    "maximumExecutionTimeoutInSeconds": UPDATE_SECONDS + BAKE_SECONDS,
                    "terminationWaitInSeconds": 60,
                    "trafficRoutingConfiguration": {
                        "type": "ALL_AT_ONCE",
                        "waitIntervalInSeconds": BAKE_SECONDS,
                    },
                },
            },
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
            target_tracking_scaling_policy_configuration={
                "targetValue": instances.invocations_per_minute,
                "scaleOutCooldown": instances.scale_out_seconds,
                "scaleInCooldown": instances.scale_in_seconds,
                "predefinedMetricSpecification": {
                    "predefinedMetricType": "SageMakerVariantInvocationsPerInstance"
                },
            },
        )


def _model_source(s3_uri: str) -> dict[str, str]:
    """Return the source of the model's files.

    A folder is copied as it is, and so starts faster than an archive, which is unpacked.
    """
    if s3_uri.endswith("/"):
        return {"s3Uri": s3_uri, "s3DataType": "S3Prefix", "compressionType": "None"}
    return {"s3Uri": s3_uri, "s3DataType": "S3Object", "compressionType": "Gzip"}


def _data_capture(endpoint: Endpoint, key_arn: str | None) -> DataCapture | None:
    """Return the configuration for a sample of requests and answers in S3; None if the file requests none."""
    capture = endpoint.capture
    if not capture:
        return None
    return DataCapture(
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
