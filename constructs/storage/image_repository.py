"""Repository of training images."""

from collections.abc import Sequence

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_kms as kms

from constructs import Construct

KEPT_IMAGES = 20
"""Number of images that are kept, of about 10 GB each. Older ones can be built again from their commit."""
MIRRORED_IMAGE = "dcgm-exporter"
"""Image that `make mirror-downloads` stores beside the training image for Slurm's nodes."""
KEPT_MIRRORED = 5
"""Number of versions of each mirrored image that are kept. Nodes that were not set up again still need
earlier versions."""
UNTAGGED_DAYS = 7
"""Days after which untagged images are deleted."""


class ImageRepository(Construct):
    """ECR repository of training images, and of the other images that nodes without internet run.

    A tag is never moved, and every push is scanned.

    The repository is deleted with its stack, images included: they can be built again, and the name of a
    retained repository would collide with that of the next one.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        repository_name: str,
        key: kms.IKey | None,
        mirrored: Sequence[str],
    ) -> None:
        """Create the repository.

        Args:
            scope: parent construct.
            construct_id: id within the parent.
            repository_name: name in ECR.
            key: key of the images; None is ECR's own encryption.
            mirrored: names of the images that `make mirror-downloads` stores for EKS's nodes.
        """
        super().__init__(scope, construct_id)
        # A rule with several prefixes would apply only to images that have a tag for each of them.
        mirrored_rules = [
            ecr.LifecycleRule(
                rule_priority=number, tag_prefix_list=[f"{name}-"], max_image_count=KEPT_MIRRORED
            )
            for number, name in enumerate([MIRRORED_IMAGE, *mirrored], start=1)
        ]
        self.repository = ecr.Repository(
            self,
            "Repository",
            repository_name=repository_name,
            image_tag_mutability=ecr.TagMutability.IMMUTABLE,
            image_scan_on_push=True,
            encryption=ecr.RepositoryEncryption.KMS if key else ecr.RepositoryEncryption.AES_256,
            encryption_key=key,
            removal_policy=RemovalPolicy.DESTROY,
            empty_on_delete=True,
            lifecycle_rules=[
                # The rules of mirrored images are first, so that the last rule cannot delete them: "An image
                # that matches the tagging requirements of a rule cannot be expired by a rule with a lower
                # priority" (ECR user guide).
                *mirrored_rules,
                ecr.LifecycleRule(
                    rule_priority=len(mirrored_rules) + 1,
                    tag_status=ecr.TagStatus.UNTAGGED,
                    max_image_age=Duration.days(UNTAGGED_DAYS),
                ),
                ecr.LifecycleRule(
                    rule_priority=len(mirrored_rules) + 2,
                    tag_status=ecr.TagStatus.ANY,
                    max_image_count=KEPT_IMAGES,
                ),
            ],
        )
