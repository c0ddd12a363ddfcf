"""The one security group of a cluster's nodes and file systems."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import aws_ec2 as ec2

from constructs import Construct
from constructs.accounting_database import PORT as DATABASE_PORT


def cluster_security_group(
    scope: Construct, construct_id: str, *, vpc: ec2.IVpc, closed: bool, database_cidrs: Sequence[str]
) -> ec2.SecurityGroup:
    """Everything between members, nothing else inwards.

    EFA's health check and an EFA-enabled Lustre file system both want all protocols from and to the group
    itself. The same rules carry Lustre (TCP 988 and 1018-1023), NFS to OpenZFS (TCP and UDP 111, 2049,
    20001-20003), Slurm, MPI and NCCL.

    Outwards, nodes of an open network may go anywhere. In a closed one they have three ways: HTTPS, which
    the route tables take to S3 and the endpoints only, the database, and each other.
    """
    group = ec2.SecurityGroup(
        scope,
        construct_id,
        vpc=vpc,
        description="Nodes and file systems of the cluster: all traffic between members",
        allow_all_outbound=not closed,
    )
    group.add_ingress_rule(
        group, ec2.Port.all_traffic(), "All protocols from members: EFA, Lustre, NFS, Slurm"
    )
    # Beside "anywhere" this looks redundant, but the EFA health check looks for the rule itself.
    ec2.CfnSecurityGroupEgress(
        scope,
        f"{construct_id}EgressToMembers",
        group_id=group.security_group_id,
        ip_protocol="-1",
        destination_security_group_id=group.security_group_id,
        description="All protocols to members: EFA, Lustre, NFS, Slurm",
    )
    if closed:
        group.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(443), "S3 and the interface endpoints")
        for cidr in database_cidrs:
            group.add_egress_rule(ec2.Peer.ipv4(cidr), ec2.Port.tcp(DATABASE_PORT), "Accounting database")
    return group
