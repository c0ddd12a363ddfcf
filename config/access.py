"""Section ``access`` of a cluster file: users, their groups and their Slurm accounts."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from config import text_forms as forms
from config.public_key import EXAMPLES, PATTERN
from config.scheduling import JobLimits, SlurmName
from config.section import Section

FIRST_ID = 2000
"""Lowest number that the file itself gives. The system uses numbers below 1000, 1000 is the image's user
ubuntu, and 1001 to 1999 stay free for users that an administrator adds."""
LAST_ID = 59999
"""Highest number that the file itself gives, like Debian's adduser."""
FIRST_OF_RANGE = 1001
"""Lowest number of a directory's range, above those of the system and of the image's user."""
LAST_OF_RANGE = 2**31 - 1
"""Highest number of a directory's range. Numbers from 2**31 on are negative for programs that take 32 bits
with a sign, and systemd advises against them ("Users, Groups, UIDs and GIDs on systemd Systems")."""
RESERVED_IDS: Mapping[int, str] = {
    65534: "the user nobody",
    65535: "an error for programs with 16 bits",
    200001: "SageMaker Studio",
}
"""Numbers that belong to others, with their owners."""
MAX_FAIRSHARE = 2**31 - 2
"""Largest share. Slurm uses the next number for ``fairshare=parent`` (SLURMDB_FS_USE_PARENT)."""

Id = int
"""Number of a user or group. The rules check it, because no number near it is right for a person."""
UserName = Annotated[str, forms.field(forms.LOWER_CASE_NAME, max_length=32)]
"""Name of a user or group; useradd accepts up to 32 characters."""
AccountName = Annotated[str, forms.field(forms.LOWER_CASE_NAME, max_length=255)]
"""Name of an account; Slurm's database stores up to 255 bytes."""
PublicKey = Annotated[str, Field(examples=list(EXAMPLES), json_schema_extra={"pattern": PATTERN})]
"""Public key. Editors check its form only; the rules also check its content."""


class IdRange(Section):
    """Numbers that somebody else gives out, such as a company's directory."""

    owner: Annotated[str, Field(min_length=1, max_length=64)]
    """Directory or service that gives out the numbers, so that two of them do not give the same one."""
    first: Annotated[int, Field(ge=FIRST_OF_RANGE, le=LAST_OF_RANGE)]
    """First number of the range."""
    last: Annotated[int, Field(ge=FIRST_OF_RANGE, le=LAST_OF_RANGE)]
    """Last number of the range."""


class UserGroup(Section):
    """A group of users, the same on every node."""

    name: UserName
    """Name that `ls -l` shows; must not be a group of the operating system."""
    gid: Id
    """Group number on the file systems; never give it to another group."""


class User(Section):
    """A person who logs in, the same on every node, with one shared home."""

    name: UserName
    """Login name; must not be an account of the operating system."""
    uid: Id
    """User number on the file systems; never give it to another person."""
    group: UserName | None = None
    """Primary group, one of ``access.groups``. Null creates a group for this user only, with the user's name
    and number."""
    groups: list[UserName] = Field(default=[])
    """Additional groups from ``access.groups``."""
    ssh_keys: list[PublicKey] = Field(default=[], max_length=20)
    """OpenSSH public keys, each one line as in ~/.ssh/id_ed25519.pub. Without a key, only an administrator
    can become this user."""
    account: AccountName | None = None
    """The user's Slurm account, one of ``access.accounts``. A user without an account (null) may run jobs
    only while Slurm does not enforce accounts."""
    admin: bool = False
    """The user may use sudo without a password, and is therefore root on every node. With an account, the
    user is also a Slurm administrator."""


class Account(JobLimits):
    """A Slurm account, which is charged for a job's hours and has a share of the cluster.

    Its limits are those of all its users' jobs together, and of the accounts below it.
    """

    name: AccountName
    """Name for `sbatch --account`; not root, which Slurm has already."""
    parent: AccountName | None = None
    """Account that contains this one; null is Slurm's root account."""
    fairshare: Annotated[int, Field(ge=1, le=MAX_FAIRSHARE)] = 1
    """Share of the parent's resources, relative to the shares of its siblings."""
    qos: list[SlurmName] = Field(default=[])
    """QOS that the account's jobs may have, of ``scheduling.qos`` or normal. An empty list has those of the
    parent, and Slurm's root account has normal."""
    default_qos: SlurmName | None = None
    """QOS of jobs that name none, one of ``qos``."""


class Access(Section):
    """Users of the cluster, with their groups and accounts.

    `make apply-lifecycle` locks out users that were removed from the file. Their homes and job records stay.
    """

    id_ranges: list[IdRange] = Field(default=[])
    """Ranges from which users and groups may have numbers in addition to 2000 to 59999, because a directory
    gives them out, such as Active Directory."""
    groups: list[UserGroup] = Field(default=[])
    """Groups that users share."""
    users: list[User] = Field(default=[])
    """People who log in. Without any, only the image's own user ubuntu exists, who is root."""
    accounts: list[Account] = Field(default=[])
    """Slurm accounts."""
