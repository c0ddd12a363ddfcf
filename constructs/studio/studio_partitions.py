"""Folders of Lustre for Studio's profiles: the queues and functions that request them.

Functions cannot mount Lustre, so a worker on the cluster creates the folders.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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

FUNCTION_FOLDER = FUNCTIONS / "studio_partitions"
TRIES = 20
"""Tries of a request or an acknowledgement before it goes to the dead-letter queue."""
KEPT = Duration.days(14)
"""Longest retention of SQS. If the cluster is down for longer, requests are lost."""
VISIBILITY = Duration.minutes(5)
"""Time for which a message is hidden while it is handled. After that, it is handled again."""
LOOK_AGAIN = Duration.minutes(15)
"""Interval of the search for profiles without a partition, for which no event arrived."""


@dataclass(frozen=True)
class PartitionSettings:
    """Partitions of a domain's profiles."""

    domain_id: str
    file_system_id: str
    """Lustre file system."""
    removal: Removal
    """Whether a partition is removed with its profile."""
    uids: Mapping[str, Sequence[int]]
    """User ids of the cluster users that share a profile's partition, by profile; those of "" share all."""


class StudioPartitions(Construct):
    """Queue of requests that a worker on the cluster handles, and queue of its acknowledgements.

    The functions between these queues and Studio are in ``functions/studio_partitions``.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: PartitionSettings,
        key: kms.IKey | None,
        log: logs.CfnLogGroup,
        topic_arn: str | None,
    ) -> None:
        """Create the queues, their alarms, and the functions.

        Args:
            scope: parent construct.
            construct_id: id within the parent.
            settings: partitions of the domain's profiles.
            key: key of the queues, if the cluster has one.
            log: log group of the functions.
            topic_arn: topic of the alarms, if there is one.
        """
        super().__init__(scope, construct_id)
        self._key = key
        self._log = log
        self._topic_arn = topic_arn
        self.requests = self._queue("Requests", fifo=True)
        self.acknowledgements = self._queue("Acknowledgements", fifo=False)
        environment = {
            "DOMAIN_ID": settings.domain_id,
            "FILE_SYSTEM_ID": settings.file_system_id,
            "FOLDER": f"/{STUDIO_FOLDER}/{PROFILE_PARTITIONS}",
        }
        self._request_partitions(settings, environment)
        self._attach_partitions(settings, environment)

    def _request_partitions(
        self, settings: PartitionSettings, environment: Mapping[str, str]
    ) -> None:
        """Create the function that requests partitions of profiles, and the rules that call it."""
        uids = {name: list(found) for name, found in settings.uids.items()}
        request = self._function(
            "Request",
            description="Requests partitions for profiles of SageMaker Studio",
            statements=[
                unscoped(
                    "ListProfiles",
                    "sagemaker:ListUserProfiles",
                    why="SageMaker's lists have no resources",
                ),
                self._profiles_statement(
                    "SeeProfiles", ["sagemaker:DescribeUserProfile"], settings
                ),
                Statement("Ask", ["sqs:SendMessage"], [self.requests.queue_arn]),
                *self._key_statements(["kms:Decrypt", "kms:GenerateDataKey"]),
            ],
            environment={
                **environment,
                "REQUESTS_URL": self.requests.queue_url,
                "REMOVAL": settings.removal,
                "UIDS": json.dumps(uids, sort_keys=True),
            },
        )
        target = targets.LambdaFunction(request)
        events.Rule(
            self,
            "Profiles",
            description="Profiles of SageMaker Studio that are created or deleted",
            event_pattern=events.EventPattern(
                source=["aws.sagemaker"],
                detail_type=["AWS API Call via CloudTrail"],
                detail={
                    "eventSource": ["sagemaker.amazonaws.com"],
                    "eventName": ["CreateUserProfile", "DeleteUserProfile"],
                    # A refused call changes nothing.
                    "errorCode": [{"exists": False}],
                    "requestParameters": {"domainId": [settings.domain_id]},
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

    def _attach_partitions(
        self, settings: PartitionSettings, environment: Mapping[str, str]
    ) -> None:
        """Create the function that attaches partitions to profiles after they are acknowledged."""
        attach = self._function(
            "Attach",
            description="Attaches partitions to profiles of SageMaker Studio",
            statements=[
                self._profiles_statement(
                    "AttachPartitions",
                    ["sagemaker:DescribeUserProfile", "sagemaker:UpdateUserProfile"],
                    settings,
                ),
                Statement(
                    "Hear",
                    ["sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage"],
                    [self.acknowledgements.queue_arn],
                ),
                *self._key_statements(["kms:Decrypt"]),
            ],
            environment=environment,
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
            Statement(
                "AnswerStudio",
                ["sqs:DeleteMessage", "sqs:ReceiveMessage"],
                [self.requests.queue_arn],
            ),
            Statement(
                "AcknowledgeToStudio", ["sqs:SendMessage"], [self.acknowledgements.queue_arn]
            ),
            *self._key_statements(["kms:Decrypt", "kms:GenerateDataKey"]),
        ]

    def _profiles_statement(
        self, sid: str, actions: list[str], settings: PartitionSettings
    ) -> Statement:
        """Return a statement for all profiles of the domain."""
        stack = Stack.of(self)
        arn = f"arn:{stack.partition}:sagemaker:{stack.region}:{stack.account}"
        profiles = f"{arn}:user-profile/{settings.domain_id}/*"
        return Statement(
            sid, actions, [profiles], why="profiles are created later; the ARN names their domain"
        )

    def _key_statements(self, actions: list[str]) -> list[Statement]:
        if not self._key:
            return []
        return [Statement("KeyOfQueues", actions, [self._key.key_arn])]

    def _queue(self, construct_id: str, *, fifo: bool) -> sqs.Queue:
        """Create a queue, its dead-letter queue, and the alarm of the latter."""
        common: dict[str, Any] = {
            "fifo": fifo or None,
            "encryption": sqs.QueueEncryption.KMS if self._key else sqs.QueueEncryption.SQS_MANAGED,
            "encryption_master_key": self._key,
            "enforce_ssl": True,
            "retention_period": KEPT,
            "visibility_timeout": VISIBILITY,
            "removal_policy": RemovalPolicy.DESTROY,
        }
        failed = sqs.Queue(self, f"Failed{construct_id}", **common)
        cloudwatch.CfnAlarm(
            self,
            f"{construct_id}Alarm",
            alarm_description=(
                f"{construct_id} for Studio's partitions have failed {TRIES} times, and are in the "
                "dead-letter queue"
            ),
            namespace="AWS/SQS",
            metric_name="ApproximateNumberOfMessagesVisible",
            dimensions=[
                cloudwatch.CfnAlarm.DimensionProperty(name="QueueName", value=failed.queue_name)
            ],
            statistic="Maximum",
            period=300,
            evaluation_periods=1,
            threshold=0,
            comparison_operator="GreaterThanThreshold",
            treat_missing_data="notBreaching",
            alarm_actions=[self._topic_arn] if self._topic_arn else None,
        )
        dead_letters = sqs.DeadLetterQueue(queue=failed, max_receive_count=TRIES)
        return sqs.Queue(self, construct_id, dead_letter_queue=dead_letters, **common)

    def _function(
        self,
        construct_id: str,
        *,
        description: str,
        statements: Sequence[Statement],
        environment: Mapping[str, str],
    ) -> lambda_.Function:
        """Create a function with its own role; the handler has the id's name in lower case."""
        role = function_role(
            self,
            f"{construct_id}Role",
            description=description,
            statements=statements,
            log=self._log,
        )
        function = python_function(
            self,
            construct_id,
            description=description,
            code=lambda_.Code.from_asset(str(FUNCTION_FOLDER), exclude=[*IGNORED]),
            handler=construct_id.lower(),
            role=role,
            log=self._log,
        )
        for name, value in environment.items():
            function.add_environment(name, value)
        return function
