"""Who spaces of Studio may talk to."""

from __future__ import annotations

from aws_cdk import aws_ec2 as ec2

from config.cluster import Cluster
from config.studio import SlurmStudio
from constructs import Construct

LUSTRE_PORTS = ((988, 988), (1018, 1023))
"""Of the file system's servers, which also open connections to their clients (FSx for Lustre user guide,
"File system access control with Amazon VPC")."""
SLURM_PORTS = (6817, 6819)
"""slurmctld, slurmd and slurmdbd, as Slurm has them by default."""
HTTPS = (443, 443)


def studio_security_group(
    scope: Construct, construct_id: str, *, cluster: Cluster, vpc: ec2.IVpc, members: ec2.ISecurityGroup
) -> ec2.SecurityGroup:
    """A group of its own: what is open between the cluster's members is not open to spaces.

    Lustre both ways; the control plane of EKS, or Slurm's daemons for login spaces; and HTTPS outwards.
    """
    group = ec2.SecurityGroup(
        scope,
        construct_id,
        vpc=vpc,
        description="Spaces of SageMaker Studio",
        allow_all_outbound=False,
    )
    group.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(HTTPS[0]), "AWS, and what people install")
    for start, end in LUSTRE_PORTS:
        _open(scope, f"{construct_id}Lustre{start}", group, members, (start, end), "Lustre", back=True)
    studio = cluster.studio
    if cluster.scheduler == "eks":
        _open(scope, f"{construct_id}Kubernetes", group, members, HTTPS, "Kubernetes")
    elif isinstance(studio, SlurmStudio) and studio.has_login_spaces:
        _open(scope, f"{construct_id}Slurm", group, members, SLURM_PORTS, "Slurm")
    return group


def _open(
    scope: Construct,
    construct_id: str,
    spaces: ec2.ISecurityGroup,
    members: ec2.ISecurityGroup,
    ports: tuple[int, int],
    what: str,
    *,
    back: bool = False,
) -> None:
    """From spaces to the cluster, and with ``back`` the other way; rules of this stack, on both groups.

    Outwards no rule for what the group may do anyway: HTTPS from spaces, all from members of an open network.
    """
    ways = [("To", spaces, members, ports != HTTPS)]
    if back:
        ways.append(("From", members, spaces, not members.allow_all_outbound))
    for name, source, target, out in ways:
        ec2.CfnSecurityGroupIngress(
            scope,
            f"{construct_id}{name}Ingress",
            group_id=target.security_group_id,
            source_security_group_id=source.security_group_id,
            ip_protocol="tcp",
            from_port=ports[0],
            to_port=ports[1],
            description=f"{what} of Studio's spaces",
        )
        if out:
            ec2.CfnSecurityGroupEgress(
                scope,
                f"{construct_id}{name}Egress",
                group_id=source.security_group_id,
                destination_security_group_id=target.security_group_id,
                ip_protocol="tcp",
                from_port=ports[0],
                to_port=ports[1],
                description=f"{what} of Studio's spaces",
            )
