"""Database of Slurm's accounting."""

from aws_cdk import Duration
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_kms as kms
from aws_cdk import aws_rds as rds
from aws_cdk import aws_secretsmanager as secretsmanager

from config.slurm_cluster import MARIADB_VERSION, ExistingDatabase, accounting_schema
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

    An existing database is used as it is, except for a rule that lets the cluster in.

    HyperPod creates the schema. Its name comes from the cluster's, so that a redeployed cluster finds its
    history, and clusters that share a database have separate ones.
    """

    secret: secretsmanager.ISecret
    """Secret with the user and password of slurmdbd."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: Settings,
        cluster_name: str,
        network: Network,
        key: kms.IKey | None,
    ) -> None:
        super().__init__(scope, construct_id)
        if settings.existing:
            endpoint = settings.existing.endpoint
            self.secret = _use_existing(self, settings.existing, network)
        else:
            endpoint = self._create(settings, network, key)
        self.for_slurm = {
            "endpoint": endpoint,
            "name": accounting_schema(cluster_name, settings),
            "port": DATABASE_PORT,
            "secretArn": self.secret.secret_arn,
        }
        """Address, schema and secret in the form of HyperPod's API."""

    def _create(self, settings: Settings, network: Network, key: kms.IKey | None) -> str:
        """Create the database and its secret, and return the database's address."""
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
        instance = rds.DatabaseInstance(
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
        assert instance.secret is not None  # generated above
        self.secret = instance.secret
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
        created = instance.node.default_child
        assert isinstance(created, rds.CfnDBInstance)
        skip_check(
            created,
            "CKV2_AWS_69",
            "Forcing TLS would lock out a slurmdbd without it; it is offered.",
        )
        return instance.db_instance_endpoint_address


def _use_existing(
    scope: Construct, existing: ExistingDatabase, network: Network
) -> secretsmanager.ISecret:
    """Let the cluster in, and return the database's secret.

    The rule is a resource of its own: with the stack goes the rule, and not the security group.
    """
    if existing.security_group_id:
        ec2.CfnSecurityGroupIngress(
            scope,
            "FromCluster",
            group_id=existing.security_group_id,
            ip_protocol="tcp",
            from_port=DATABASE_PORT,
            to_port=DATABASE_PORT,
            source_security_group_id=network.security_group.security_group_id,
            description="slurmdbd on the controller",
        )
    return secretsmanager.Secret.from_secret_complete_arn(scope, "Secret", existing.secret_arn)
