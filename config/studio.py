"""The studio of a cluster file: SageMaker Studio beside the cluster, with its Lustre file system."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from config import text_forms as forms
from config.access import UserName
from config.section import Section
from config.storage import Removal

STUDIO_FOLDER = "studio"
"""Of the Lustre file system: everything that spaces see lies below it."""
SHARED_PARTITION = "shared"
PROFILE_PARTITIONS = "users"
STUDIO_UID, STUDIO_GID = 200001, 1001
"""Whom files belong to that spaces write, unless a profile is set up otherwise (SageMaker developer guide,
"Adding a custom file system to a domain")."""

ProfileName = Annotated[str, forms.field(forms.GROUP_NAME, max_length=63)]
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
"""Of SageMaker's ``AppInstanceType``; people may choose another one for a space of theirs."""


class StudioProfile(Section):
    """A person in Studio."""

    name: ProfileName
    """As Studio shows it; the partition below /fsx/studio/users has the same name."""
    sign_in_name: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """The person's user name in IAM Identity Center; for ``sign_in: identity_center`` alone."""


class SlurmStudioProfile(StudioProfile):
    cluster_user: UserName | None = None
    """Whose jobs the person's spaces submit, one of ``access.users``. Null submits none."""
    login_space: bool = False
    """The person's spaces are login nodes: with Slurm's own commands, and with munge's key, by which one can
    act as anyone on the cluster. Only for a ``cluster_user`` who is an admin, and so root there anyway.
    Without, jobs are submitted through Systems Manager, as that user and nobody else."""


class Studio(Section):
    """A domain of SageMaker Studio in the cluster's network; people's spaces bill while they run."""

    sign_in: Literal["iam", "identity_center"] = "iam"
    """How people come in: from AWS's console, or by IAM Identity Center. Fixed at creation."""
    partitions: Literal["shared", "per_profile"] = "shared"
    """What spaces see of the Lustre file system: /fsx/studio/shared, the same for everybody, or
    /fsx/studio/users/<profile>, a folder for each, made when the profile is."""
    partition_removal: Removal = "retain"
    """What becomes of a profile's partition, with all that is in it, when the profile is deleted."""
    profiles: Sequence[StudioProfile] = Field(default=[], max_length=40)
    """People who have a profile from the beginning; more can be added in the console."""
    instance_type: SpaceType = "ml.t3.medium"
    """What a space starts on unless its owner chooses another type."""
    idle_minutes: Annotated[int, Field(ge=60, le=525600)] = 120
    """A space in which nothing happens stops after that time, and does not bill for its instance any more."""
    space_gib: Annotated[int, Field(ge=5, le=16384)] = 5
    """Disk of a new space, which bills until the space is deleted."""
    max_space_gib: Annotated[int, Field(ge=5, le=16384)] = 100
    """The largest disk that people may give a space."""


class SlurmStudio(Studio):
    profiles: list[SlurmStudioProfile] = Field(default=[], max_length=40)
    """People who have a profile from the beginning; more can be added in the console, but submit no jobs."""

    @property
    def has_login_spaces(self) -> bool:
        return any(profile.login_space for profile in self.profiles)
