"""Section ``studio`` of a cluster file: SageMaker Studio with the cluster's Lustre file system."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from config import text_forms as forms
from config.access import UserName
from config.section import Section
from config.storage import Removal

STUDIO_FOLDER = "studio"
"""Folder of the Lustre file system that contains everything that spaces can see."""
SHARED_PARTITION = "shared"
PROFILE_PARTITIONS = "users"
STUDIO_UID = 200001
"""Owner of the files that spaces write, unless a profile defines another (SageMaker developer guide, "Adding
a custom file system to a domain")."""
STUDIO_GID = 1001
"""Group of the files that spaces write, from the same page."""

SpaceType = Literal[
    "ml.t3.medium",
    "ml.t3.large",
    "ml.t3.xlarge",
    "ml.t3.2xlarge",
    "ml.m5.large",
    "ml.m5.xlarge",
    "ml.m5.2xlarge",
    "ml.m5.4xlarge",
    "ml.c5.large",
    "ml.c5.xlarge",
    "ml.c5.2xlarge",
    "ml.c5.4xlarge",
    "ml.g5.xlarge",
    "ml.g5.2xlarge",
    "ml.g5.4xlarge",
]
"""Types from SageMaker's ``AppInstanceType``; people may choose another one for their spaces."""


class StudioProfile(Section):
    """A person in Studio."""

    name: Annotated[str, forms.field(forms.GROUP_NAME, max_length=63)]
    """Name in Studio, and of the partition below /fsx/studio/users."""
    sign_in_name: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """User name in IAM Identity Center, only for ``sign_in: identity_center``."""


class SlurmStudioProfile(StudioProfile):
    cluster_user: UserName | None = None
    """User of ``access.users`` for the jobs of the person's spaces. Null submits none."""
    login_space: bool = False
    """The person's spaces are login nodes, with Slurm's own commands and munge's key. That key allows acting
    as any user of the cluster, so this is only for a ``cluster_user`` who is an admin and therefore root.
    Without it, jobs are submitted through Systems Manager, always as that user."""


class Studio(Section):
    """SageMaker Studio domain in the cluster's network. Spaces bill while they run."""

    sign_in: Literal["iam", "identity_center"] = "iam"
    """Sign-in through the AWS console (iam) or IAM Identity Center. Fixed at creation."""
    partitions: Literal["shared", "per_profile"] = "shared"
    """Part of the Lustre file system that spaces can see: /fsx/studio/shared for everyone, or a separate
    folder /fsx/studio/users/<profile>, which is created with the profile."""
    partition_removal: Removal = "retain"
    """Effect of a profile's deletion on its partition and all files in it."""
    profiles: Sequence[StudioProfile] = Field(default=[], max_length=40)
    """People who have a profile from the start; more can be added in the console."""
    instance_type: SpaceType = "ml.t3.medium"
    """Instance type of a space, unless its owner chooses another type."""
    idle_minutes: Annotated[int, Field(ge=60, le=525600)] = 120
    """Minutes after which an idle space stops and its instance no longer bills."""
    space_gib: Annotated[int, Field(ge=5, le=16384)] = 5
    """Disk size of a new space; the disk bills until the space is deleted."""
    max_space_gib: Annotated[int, Field(ge=5, le=16384)] = 100
    """Largest disk that people may give a space."""


class SlurmStudio(Studio):
    profiles: list[SlurmStudioProfile] = Field(default=[], max_length=40)
    """People who have a profile from the start; more can be added in the console, but cannot submit jobs."""

    @property
    def has_login_spaces(self) -> bool:
        return any(profile.login_space for profile in self.profiles)
