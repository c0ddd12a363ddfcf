"""Check that the roles and users with access (``kubernetes.access``) exist."""

from collections.abc import Iterator

from config.eks_cluster import EksCluster
from config.kubernetes import ACCESS_IS_EMPTY, ADD_ACCESS
from tools.preflight.finding import Finding, Subject
from tools.preflight.read_only_aws import ReadOnlyAws


def check_access(aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
    """Check that the roles and users exist; otherwise EKS rejects the entry an hour into the deployment."""
    if not (cluster.kubernetes.admitted or cluster.kubernetes.existing):
        yield Subject("kubernetes.access").fail(ACCESS_IS_EMPTY, ADD_ACCESS)
    for entry in cluster.kubernetes.admitted:
        yield _principal(aws, entry.principal_arn)


def _principal(aws: ReadOnlyAws, arn: str) -> Finding:
    # arn:aws:iam::<account>:<kind>/<path>/<name>
    account, path = arn.split(":")[4:]
    kind = path.split("/")[0]
    name = path.rpartition("/")[2]
    subject = Subject(f"{kind} {name}")
    if account != aws.account:
        return subject.unknown(
            f"it belongs to account {account}, and these credentials to {aws.account}",
            "verify there that it exists, or replace the example in kubernetes.access with your own",
        )
    found = aws.find("iam", f"get_{kind}", **{f"{kind.title()}Name": name})
    if found is None:
        return subject.fail(
            f"{arn} does not exist", "set kubernetes.access to roles and users that exist"
        )
    actual = found[kind.title()]["Arn"]
    if actual != arn:
        return subject.fail(
            f"the file says {arn}, it is {actual}", f"set principal_arn to {actual}"
        )
    return subject.ok("exists")
