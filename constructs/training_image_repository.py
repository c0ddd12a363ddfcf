"""Where the training image is kept."""

from __future__ import annotations

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_kms as kms

from config.cluster import Cluster
from config.resource_names import image_repository
from constructs import Construct

KEPT_IMAGES = 20
"""At about 10 GB each; older ones are rebuilt from their commit."""
MIRRORED_TAGS = "dcgm-exporter-"
"""How tags of the image begin that `make mirror-downloads` puts here beside the training image."""
KEPT_MIRRORED = 5
"""Earlier versions, for nodes that were not set up again since."""


class TrainingImageRepository(Construct):
    """ECR repository ``<cluster name>/training``: a tag is never moved, every push is scanned.

    Nodes without a way to the internet find copies of the other images that they run in it.

    It goes with its stack, images included: they can be built again, and a repository that was kept would
    collide with the next one by name.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, cluster: Cluster, key: kms.IKey | None
    ) -> None:
        super().__init__(scope, construct_id)
        self.repository = ecr.Repository(
            self,
            "Repository",
            repository_name=image_repository(cluster),
            image_tag_mutability=ecr.TagMutability.IMMUTABLE,
            image_scan_on_push=True,
            encryption=ecr.RepositoryEncryption.KMS if key else ecr.RepositoryEncryption.AES_256,
            encryption_key=key,
            removal_policy=RemovalPolicy.DESTROY,
            empty_on_delete=True,
            lifecycle_rules=[
                # First: "An image that matches the tagging requirements of a rule cannot be expired by a rule
                # with a lower priority" (ECR user guide), here for being among the oldest.
                ecr.LifecycleRule(
                    rule_priority=1, tag_prefix_list=[MIRRORED_TAGS], max_image_count=KEPT_MIRRORED
                ),
                ecr.LifecycleRule(
                    rule_priority=2, tag_status=ecr.TagStatus.UNTAGGED, max_image_age=Duration.days(7)
                ),
                ecr.LifecycleRule(rule_priority=3, tag_status=ecr.TagStatus.ANY, max_image_count=KEPT_IMAGES),
            ],
        )
