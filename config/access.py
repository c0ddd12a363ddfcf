"""The access of a cluster file: users, their groups and their accounts in Slurm."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from config import text_forms as forms
from config.public_key import EXAMPLES, PATTERN
from config.section import Section

# 1000 is the image's user ubuntu, 200001 is SageMaker Studio's; below 1000 is the system's. Debian's adduser
# gives 1000 to 59999; the first thousand of them stay free for whom an administrator adds by hand.
FIRST_ID, LAST_ID = 2000, 59999
MAX_FAIRSHARE = 2**31 - 2
"""The next number is Slurm's own for ``fairshare=parent`` (SLURMDB_FS_USE_PARENT)."""

Id = Annotated[int, Field(ge=FIRST_ID, le=LAST_ID)]
UserName = Annotated[str, forms.field(forms.LOWER_CASE_NAME, max_length=32)]
"""32 characters is what useradd takes."""
AccountName = Annotated[str, forms.field(forms.LOWER_CASE_NAME, max_length=64)]
PublicKey = Annotated[str, Field(examples=list(EXAMPLES), json_schema_extra={"pattern": PATTERN})]
"""Editors know the form alone; the rules look into the key."""


class UserGroup(Section):
    """A group of users, the same on every node."""

    name: UserName
    """As `ls -l` shows it; not a group of the operating system."""
    gid: Id
    """Its number on the file systems; never give it to another group."""


class User(Section):
    """A person who logs in, the same on every node, with one home for all of them."""

    name: UserName
    """Login name; not an account of the operating system."""
    uid: Id
    """Its number on the file systems; never give it to another person."""
    group: UserName | None = None
    """Primary group, one of ``access.groups``. Null is a group of the user's own, with the user's name and
    number."""
    groups: list[UserName] = Field(default=[])
    """More groups, of ``access.groups``."""
    ssh_keys: list[PublicKey] = Field(default=[], max_length=20)
    """OpenSSH public keys, each one line as in ~/.ssh/id_ed25519.pub. Without any, only an administrator can
    become this user."""
    account: AccountName | None = None
    """The user's account in Slurm, one of ``access.accounts``. With null the user has none, and may run jobs
    only while Slurm does not enforce accounts."""
    admin: bool = False
    """May use sudo without a password, and so is root on every node; with an account also Slurm's
    administrator."""


class Account(Section):
    """An account of Slurm: whom a job's hours are booked to, and whose share of the cluster it uses."""

    name: AccountName
    """As in `sbatch --account`; not root, which Slurm has."""
    parent: AccountName | None = None
    """The account that it is a part of; null is Slurm's root."""
    fairshare: Annotated[int, Field(ge=1, le=MAX_FAIRSHARE)] = 1
    """Its share of the parent's part, in proportion to its siblings'."""


class Access(Section):
    """Who uses the cluster.

    Whom the file no longer names is shut out by `make apply-lifecycle`; homes and the record of jobs stay.
    """

    groups: list[UserGroup] = Field(default=[])
    """Groups that users share."""
    users: list[User] = Field(default=[])
    """None: there is the image's own user ubuntu alone, who is root."""
    accounts: list[Account] = Field(default=[])
    """Slurm's accounts."""
