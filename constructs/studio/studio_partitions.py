"""Queues and functions that give profiles of Studio folders of Lustre, which no function can mount."""

import json
from collections.abc import Mapping, Sequence

from aws_cdk import Duration, RemovalPolicy, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sqs as sqs

from config.content_hash import IGNORED
from config.storage import Removal
from config.studio import PROFILE_PARTITIONS, STUDIO_FOLDER
from constructs import Construct
from constructs.custom_resource import FUNCTIONS, function_role, python_function
from constructs.policy.statement_role import Statement, unscoped

TRIES = 20
"""Tries of a request or an acknowledgement before it goes to the dead-letter queue."""
KEPT = Duration.days(14)
"""Longest retention of SQS. A cluster may be away for so long before its queue loses a profile."""
LOOK_AGAIN = Duration.minutes(15)
"""Interval of the search for profiles without a partition, for which no event arrived."""


class StudioPartitions(Construct):
    """Queue of ``requests`` that a worker on the cluster handles, and queue of its ``acknowledgements``.

    The functions between these queues and Studio are in ``functions/studio_partitions``.
    """

    def __init__(
        self,
        scope: Construct,
        *,
        domain_id: str,
        file_system_id: str,
        removal: Removal,
        uids: Mapping[str, Sequence[int]],
        key: kms.IKey | None,
        log: logs.CfnLogGroup,
        topic_arn: str | None,
    ) -> None:
        super().__init__(scope, "Partitions")
        self._key, self._log, self._topic_arn = key, log, topic_arn
        self.requests = self._queue("Requests", fifo=True)
        self.acknowledgements = self._queue("Acknowledgements", fifo=False)
        stack = Stack.of(self)
        arn = f"arn:{stack.partition}:sagemaker:{stack.region}:{stack.account}"
        profiles = f"{arn}:user-profile/{domain_id}/*"
        any_profile = "profiles come and go; the domain is named"
        environment = {
            "DOMAIN_ID": domain_id,
            "FILE_SYSTEM_ID": file_system_id,
            "FOLDER": f"/{STUDIO_FOLDER}/{PROFILE_PARTITIONS}",
        }
        request = self._function(
            "Request",
            "Asks for partitions of profiles of SageMaker Studio",
            [
                unscoped(
                    "ListProfiles", "sagemaker:ListUserProfiles", why="SageMaker's lists have no resources"
                ),
                Statement("SeeProfiles", ["sagemaker:DescribeUserProfile"], [profiles], why=any_profile),
                Statement("Ask", ["sqs:SendMessage"], [self.requests.queue_arn]),
                *self._key_statements(["kms:Decrypt", "kms:GenerateDataKey"]),
            ],
            {
                **environment,
                "REQUESTS_URL": self.requests.queue_url,
                "REMOVAL": removal,
                "UIDS": json.dumps({name: list(found) for name, found in uids.items()}, sort_keys=True),
            },
        )
        target = targets.LambdaFunction(request)
        events.Rule(
            self,
            "Profiles",
            description="Profiles of SageMaker Studio that are made and deleted",
            event_pattern=events.EventPattern(
                source=["aws.sagemaker"],
                detail_type=["AWS API Call via CloudTrail"],
                detail={
                    "eventSource": ["sagemaker.amazonaws.com"],
                    "eventName": ["CreateUserProfile", "DeleteUserProfile"],
                    # A refused call changes nothing.
                    "errorCode": [{"exists": False}],
                    "requestParameters": {"domainId": [domain_id]},
                },
            ),
            targets=[target],
        )
        events.Rule(
            self,
            "Clock",
            description="Looks for profiles of SageMaker Studio without a partition",
            schedule=events.Schedule.rate(LOOK_AGAIN),
            targets=[target],
        )
        attach = self._function(
            "Attach",
            "Shows partitions to profiles of SageMaker Studio",
            [
                Statement(
                    "AttachPartitions",
                    ["sagemaker:DescribeUserProfile", "sagemaker:UpdateUserProfile"],
                    [profiles],
                    why=any_profile,
                ),
                Statement(
                    "Hear",
                    ["sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage"],
                    [self.acknowledgements.queue_arn],
                ),
                *self._key_statements(["kms:Decrypt"]),
            ],
            environment,
        )
        lambda_.EventSourceMapping(
            self,
            "Heard",
            target=attach,
            event_source_arn=self.acknowledgements.queue_arn,
            batch_size=10,
            report_batch_item_failures=True,
        )

    def worker_statements(self) -> list[Statement]:
        """Return the permissions of the worker that handles requests."""
        return [
            Statement("AnswerStudio", ["sqs:DeleteMessage", "sqs:ReceiveMessage"], [self.requests.queue_arn]),
            Statement("AcknowledgeToStudio", ["sqs:SendMessage"], [self.acknowledgements.queue_arn]),
            *self._key_statements(["kms:Decrypt", "kms:GenerateDataKey"]),
        ]

    def _key_statements(self, actions: list[str]) -> list[Statement]:
        return [Statement("KeyOfQueues", actions, [self._key.key_arn])] if self._key else []

    def _queue(self, construct_id: str, *, fifo: bool) -> sqs.Queue:
        def queue(name: str, failed: sqs.DeadLetterQueue | None) -> sqs.Queue:
            return sqs.Queue(
                self,
                name,
                fifo=fifo or None,
                encryption=sqs.QueueEncryption.KMS if self._key else sqs.QueueEncryption.SQS_MANAGED,
                encryption_master_key=self._key,
                enforce_ssl=True,
                retention_period=KEPT,
                visibility_timeout=Duration.minutes(5),
                dead_letter_queue=failed,
                removal_policy=RemovalPolicy.DESTROY,
            )

        failed = queue(f"Failed{construct_id}", None)
        cloudwatch.CfnAlarm(
            self,
            f"{construct_id}Alarm",
            alarm_description=f"{construct_id} of Studio's partitions that have failed {TRIES} times",
            namespace="AWS/SQS",
            metric_name="ApproximateNumberOfMessagesVisible",
            dimensions=[cloudwatch.CfnAlarm.DimensionProperty(name="QueueName", value=failed.queue_name)],
            statistic="Maximum",
            period=300,
            evaluation_periods=1,
            threshold=0,
            comparison_operator="GreaterThanThreshold",
            treat_missing_data="notBreaching",
            alarm_actions=[self._topic_arn] if self._topic_arn else None,
        )
        return queue(construct_id, sqs.DeadLetterQueue(queue=failed, max_receive_count=TRIES))

    def _function(
        self,
        construct_id: str,
        description: str,
        statements: Sequence[Statement],
        environment: Mapping[str, str],
    ) -> lambda_.Function:
        role = function_role(
            self, f"{construct_id}Role", description=description, statements=statements, log=self._log
        )
        return python_function(
            self,
            construct_id,
            description=description,
            code=lambda_.Code.from_asset(str(FUNCTIONS / "studio_partitions"), exclude=[*IGNORED]),
            handler=construct_id.lower(),
            environment=environment,
            role=role,
            log=self._log,
        )
