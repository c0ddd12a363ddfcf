"""Database of Slurm's accounting."""

from aws_cdk import Duration
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_kms as kms
from aws_cdk import aws_rds as rds
from aws_cdk import aws_secretsmanager as secretsmanager

from config.slurm_cluster import MARIADB_VERSION
from config.slurm_cluster import AccountingDatabase as Settings
from constructs import Construct
from constructs.policy.findings import acknowledge, skip_check
from constructs.storage.private_bucket import KEEP, removal_policy
from constructs.vpc.network import DATABASE_PORT, Network

ENGINE = rds.DatabaseInstanceEngine.maria_db(
    version=rds.MariaDbEngineVersion.of(MARIADB_VERSION, MARIADB_VERSION.rpartition(".")[0])
)
"""MariaDB.

MySQL 8.4 is not used: its accounts log in with caching_sha2_password, which needs TLS or an exchange of RSA
keys. HyperPod does not document whether its slurmdbd supports either. MariaDB's accounts need neither.
"""

LISTED_CLASSES = ("CloudFormation-Validate::E3025", "CloudFormation-Validate::E3062")
"""Checks of aws-cdk-lib that refuse instance classes which its lists lack in the region or for the engine."""


class AccountingDatabase(Construct):
    """Encrypted MariaDB on RDS with a generated password, reachable only from the cluster's security group.

    HyperPod creates the schema. Its default name contains the cluster's id, so that a new cluster gets its
    own schema in the same database and never reads the state of a previous one.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: Settings,
        network: Network,
        key: kms.IKey | None,
    ) -> None:
        super().__init__(scope, construct_id)
        is_kept = settings.removal == "retain"
        removal = removal_policy(settings.removal)
        security_group = ec2.SecurityGroup(
            self,
            "SecurityGroup",
            vpc=network.vpc,
            description="Slurm accounting database",
            allow_all_outbound=False,
        )
        # Only the incoming rule: the network defines the outgoing rules of the cluster's group.
        security_group.add_ingress_rule(
            network.security_group, ec2.Port.tcp(DATABASE_PORT), "slurmdbd on the controller"
        )
        self.instance = rds.DatabaseInstance(
            self,
            "Instance",
            engine=ENGINE,
            instance_type=ec2.InstanceType(settings.instance_class.removeprefix("db.")),
            credentials=rds.Credentials.from_generated_secret("slurm", encryption_key=key),
            vpc=network.vpc,
            subnet_group=rds.SubnetGroup(
                self,
                "Subnets",
                description="Slurm accounting database",
                vpc=network.vpc,
                vpc_subnets=ec2.SubnetSelection(subnets=network.database_subnets),
                removal_policy=removal,
            ),
            security_groups=[security_group],
            publicly_accessible=False,
            port=DATABASE_PORT,
            parameters={
                # TLS is offered, not forced: HyperPod's API has no option for it, and a slurmdbd without it
                # would be locked out. Traffic from the controller stays inside two security groups. The value
                # is explicit because the default depends on the version.
                "require_secure_transport": "0",
                # Required by Slurm's accounting guide: purges hold rows longer than MariaDB's 50 s.
                "innodb_lock_wait_timeout": "900",
            },
            allocated_storage=settings.storage_gib,
            storage_type=rds.StorageType.GP3,
            storage_encrypted=True,
            storage_encryption_key=key,
            multi_az=settings.multi_az,
            backup_retention=Duration.days(settings.backup_days),
            delete_automated_backups=not is_kept,
            copy_tags_to_snapshot=True,
            # The stack's deletion policy keeps the database. With protection, it would also stay, and bill,
            # after a rollback of its first creation.
            deletion_protection=False,
            auto_minor_version_upgrade=True,
            cloudwatch_logs_exports=["error", "slowquery"],
            removal_policy=removal,
        )
        assert self.instance.secret is not None  # generated above
        self.secret: secretsmanager.ISecret = self.instance.secret
        self.for_slurm = {
            "endpoint": self.instance.db_instance_endpoint_address,
            "port": DATABASE_PORT,
            "secretArn": self.secret.secret_arn,
        }
        """Address and secret in the form of HyperPod's API."""
        if is_kept:
            # A retained database needs its security group, its parameters and its password.
            for child in self.node.find_all():
                if isinstance(
                    child, ec2.CfnSecurityGroup | rds.CfnDBParameterGroup | secretsmanager.CfnSecret
                ):
                    child.apply_removal_policy(KEEP)
        findings = {
            "AwsSolutions-RDS10": "its deletion policy and its backups outlive the stack; see above",
            "AwsSolutions-RDS6": "slurmdbd logs in with a password; it cannot renew IAM tokens",
            "AwsSolutions-RDS11": "the port is reachable only from the cluster's security group",
            "AwsSolutions-SMG4": "slurmdbd reads the password at its start; a rotation would end accounting",
        }
        if not settings.multi_az:
            findings["AwsSolutions-RDS3"] = (
                "the cluster file chooses multi_az; jobs continue without it"
            )
        # RDS offers classes before the lists of aws-cdk-lib have them.
        findings |= dict.fromkeys(LISTED_CLASSES, "make preflight checks that RDS offers the class")
        acknowledge(self, findings)
        created = self.instance.node.default_child
        assert isinstance(created, rds.CfnDBInstance)
        skip_check(
            created,
            "CKV2_AWS_69",
            "Forcing TLS would lock out a slurmdbd without it; it is offered.",
        )
