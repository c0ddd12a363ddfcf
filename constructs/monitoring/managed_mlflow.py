"""Managed MLflow, which shows the cluster's runs."""

from aws_cdk import RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sagemaker as sagemaker

from config.observability import Mlflow
from constructs import Construct
from constructs.policy.statement_role import Statement, sagemaker_principal, statement_role
from constructs.storage.private_bucket import private_bucket

_LOG_RUNS = [
    f"sagemaker-mlflow:{action}"
    for action in (
        "CreateExperiment",
        "CreateRun",
        "GetExperiment",
        "GetExperimentByName",
        "GetRun",
        "LogBatch",
        "SearchExperiments",
        "SearchRuns",
        "UpdateRun",
    )
]
"""Actions of the trainer's client. It deletes nothing and registers no model."""
_LOOK_AT_RUNS = [
    f"sagemaker-mlflow:{action}"
    for action in (
        "AccessUI",
        "GetMetricHistory",
        "ListArtifacts",
        "SearchLoggedModels",
        "SearchModelVersions",
        "SearchRegisteredModels",
        "SearchTraces",
    )
]
"""Additional actions of MLflow's pages."""


class ManagedMlflow(Construct):
    """SageMaker's MLflow, an app or a tracking server, with a bucket for artifacts.

    It is deleted with its stack, together with its data about runs. Each run keeps its own record in
    ``metrics.jsonl``.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        name: str,
        settings: Mlflow,
        key: kms.IKey | None,
        access_logs: s3.Bucket,
    ) -> None:
        super().__init__(scope, construct_id)
        bucket = private_bucket(
            self, "MlflowArtifacts", key=key, access_logs=access_logs, removal=RemovalPolicy.DESTROY
        )
        role = self._role(name, bucket, key)
        uri = bucket.s3_url_for_object()
        made: sagemaker.CfnMlflowApp | sagemaker.CfnMlflowTrackingServer
        if settings.server_size:
            made = sagemaker.CfnMlflowTrackingServer(
                self,
                "Server",
                tracking_server_name=name,
                tracking_server_size=settings.server_size.capitalize(),
                artifact_store_uri=uri,
                role_arn=role.role_arn,
                automatic_model_registration=False,
            )
            self.arn = made.attr_tracking_server_arn
            kind = "MlflowTrackingServer"
            actions = _LOG_RUNS
        else:
            made = sagemaker.CfnMlflowApp(
                self,
                "App",
                name=name,
                artifact_store_uri=uri,
                role_arn=role.role_arn,
                model_registration_mode="AutoModelRegistrationDisabled",
            )
            self.arn = made.attr_arn
            kind = "MlflowApp"
            # The service requires CallMlflowAppApi for every request to an app; it documents the others.
            actions = ["sagemaker:CallMlflowAppApi", *_LOG_RUNS]
        self.to_log_runs = Statement("LogRuns", actions, [self.arn])
        """Statement for the roles of jobs that log to MLflow."""
        to_open = [f"sagemaker:CreatePresigned{kind}Url", f"sagemaker:Describe{kind}"]
        self.to_look_at_runs = [
            Statement("LookAtRuns", [*to_open, *_LOOK_AT_RUNS], [self.arn]),
            Statement(
                "FindMlflow", [f"sagemaker:List{kind}s"], ["*"], why="the list has no resource"
            ),
        ]
        """Statements for people who open MLflow from Studio, in addition to ``to_log_runs``."""
        # MLflow is deleted before its role and the bucket's policy.
        made.node.add_dependency(role, bucket)

    def _role(self, name: str, bucket: s3.Bucket, key: kms.IKey | None) -> iam.Role:
        statements = [
            Statement(
                "ListArtifacts", ["s3:GetBucketLocation", "s3:ListBucket"], [bucket.bucket_arn]
            ),
            Statement(
                "HandleArtifacts",
                ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject"],
                [f"{bucket.bucket_arn}/*"],
                why="artifacts are named after their runs",
            ),
        ]
        if key:
            statements.append(
                Statement("UseKey", ["kms:Decrypt", "kms:GenerateDataKey"], [key.key_arn])
            )
        return statement_role(
            self,
            "Role",
            description=f"MLflow of HyperPod cluster {name}",
            assumed_by=sagemaker_principal(Stack.of(self)),
            policy_name="Artifacts",
            statements=statements,
        )
