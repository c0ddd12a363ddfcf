"""What tells that a file system fills up."""

from __future__ import annotations

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_sns as sns

from constructs import Construct
from constructs.storage.home_file_system import HomeFileSystem
from constructs.storage.lustre_file_system import LustreFileSystem

_GIB = 2**30


class SpaceAlarms(Construct):
    """An alarm a file system; metrics are those of the FSx for Lustre and FSx for OpenZFS user guides."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        lustre: LustreFileSystem,
        home: HomeFileSystem | None,
        free_percent: int,
        topic: sns.ITopic,
    ) -> None:
        super().__init__(scope, construct_id)
        alarms = [
            self._alarm(
                "Lustre",
                f"{lustre.mount_path} has less than {free_percent} % of {lustre.capacity_gib} GiB free: "
                "remove checkpoints that nobody needs, or raise storage.lustre.capacity_gib and deploy",
                # The sum over all of its disks, each of which reports once a minute.
                _metric("FreeDataStorageCapacity", "Sum", lustre.file_system_id),
                cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
                lustre.capacity_gib * _GIB * free_percent // 100,
            )
        ]
        if home:
            alarms.append(
                self._alarm(
                    "Home",
                    f"homes have less than {free_percent} % of {home.capacity_gib} GiB free: ask people to "
                    "tidy up, or raise storage.home.capacity_gib and deploy",
                    _metric("UsedStorageCapacity", "Average", home.file_system_id),
                    cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
                    home.capacity_gib * _GIB * (100 - free_percent) // 100,
                )
            )
        for alarm in alarms:
            alarm.add_alarm_action(actions.SnsAction(topic))
            alarm.add_ok_action(actions.SnsAction(topic))

    def _alarm(
        self,
        construct_id: str,
        description: str,
        metric: cloudwatch.Metric,
        comparison: cloudwatch.ComparisonOperator,
        threshold: int,
    ) -> cloudwatch.Alarm:
        return cloudwatch.Alarm(
            self,
            construct_id,
            alarm_description=description,
            metric=metric,
            threshold=threshold,
            comparison_operator=comparison,
            # A job's temporary files may come and go.
            evaluation_periods=15,
            treat_missing_data=cloudwatch.TreatMissingData.IGNORE,
        )


def _metric(name: str, statistic: str, file_system_id: str) -> cloudwatch.Metric:
    return cloudwatch.Metric(
        namespace="AWS/FSx",
        metric_name=name,
        dimensions_map={"FileSystemId": file_system_id},
        statistic=statistic,
        period=Duration.minutes(1),
    )
